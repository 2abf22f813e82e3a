"""What tests as an ordinary user ask for: the degradations that this host needs, and the skips that follow."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

from minisandbox.degradation import MISSING, Degradation
from minisandbox.errors import SandboxError
from minisandbox.kernel.outer import find_outer
from minisandbox.runtime.degraded import find_layout, missing_protections


@functools.cache
def needed_degradations() -> tuple[Degradation, ...]:
    """Return what this host cannot enforce for this user; nothing for root."""
    if os.geteuid() == 0:
        return ()
    outer = find_outer()
    return tuple(sorted(missing_protections(find_layout(outer), outer)))


def refusals(error: BaseException) -> Iterator[str]:
    """Yield the messages of an error, or of those in a group, that come of what this host lacks for this user."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from refusals(each)
    elif isinstance(error, SandboxError) and any(what in str(error) for what, _advice in MISSING.values()):
        yield str(error)


def missing_for(needs: tuple[str, ...]) -> str | None:
    """Return the fact for which a test that needs these protections cannot be run here."""
    missing = [name for name in needed_degradations() if name in needs]
    return f"this user's sandboxes are without {', '.join(missing)}" if missing else None
