"""How far a verdict can be trusted: the ceiling of its kind, lowered by every cap that holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from minisandbox.degradation import Degradation
from minisandbox.judge.spec import Integrity


class Cap(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A reason why a verdict is worth no more than a level."""

    reason: str
    level: Integrity


UNCERTIFIED = Cap(reason="the task has no valid certificate", level=Integrity.L1)
SHARED_USER = Cap(reason="the judge runs as a user who is not its own", level=Integrity.L3)
OVER_CLAIM = "the task claims no more"
ONE_ID = Cap(reason="cells are run as the judge's own user: it has no subordinate ids", level=Integrity.L3)
UNTRACKED = Cap(reason="cells are run without control groups: no budget holds", level=Integrity.L3)
LIVE_STATE = Cap(reason="judged in the live sandbox of the episode", level=Integrity.L1)
SELF_REPORTED = Cap(reason="reported by the submission itself", level=Integrity.L0)


_DEGRADED = {Degradation.SINGLE_ID: ONE_ID, Degradation.CONTROL_GROUPS: UNTRACKED}


def caps_of(degraded: Iterable[Degradation]) -> tuple[Cap, ...]:
    """Return what a host that cannot enforce everything costs its verdicts. Limits that are missing fail cells."""
    return tuple(_DEGRADED[each] for each in degraded if each in _DEGRADED)


def integrity_of(ceiling: Integrity, caps: Iterable[Cap]) -> tuple[Integrity, tuple[str, ...]]:
    """Return the level, and the reasons of those caps that are below the ceiling. One cap more never raises it."""
    lower = [cap for cap in set(caps) if cap.level.level < ceiling.level]
    level = min([ceiling, *(cap.level for cap in lower)], key=lambda each: each.level)
    return level, tuple(sorted(cap.reason for cap in lower))
