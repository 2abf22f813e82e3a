"""Changes of body that have begun: what goes, what its successor has to do with it, and when its slot is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox


class Change:
    """One body that goes."""

    __slots__ = ("closed", "is_sealed", "old", "started", "was_quiet")

    def __init__(self, old: Sandbox, is_sealed: bool) -> None:
        self.old, self.is_sealed, self.was_quiet = old, is_sealed, False
        self.started, self.closed = trio.Event(), trio.Event()


class Changes:
    """Those of one supervisor that have not come to their end."""

    def __init__(self) -> None:
        self._going: list[Change] = []

    def begin(self, old: Sandbox, is_sealed: bool) -> Change:
        """Take note of one."""
        self._going = [change for change in self._going if not change.closed.is_set()]
        self._going.append(Change(old, is_sealed))
        return self._going[-1]

    @property
    def going(self) -> int:
        """How many old bodies are about to give their slots back."""
        return sum(change.started.is_set() and not change.closed.is_set() for change in self._going)

    async def freed_one(self) -> bool:
        """Wait until the slot of an old body is given back, and return False when none will be by itself."""
        for change in self._going:
            if change.started.is_set() and not change.closed.is_set():
                await change.closed.wait()
                return True
        return False
