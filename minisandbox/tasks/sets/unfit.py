"""What of a set is no task, and why: it is told, and not left out in silence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A problem that cannot be judged here without giving away what is expected."""

    name: str
    why: str
