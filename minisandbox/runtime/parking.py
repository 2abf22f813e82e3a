"""Parked sandboxes: started ahead of demand, handed out once, never used before.

Kinds that are opened often get a few parked sandboxes; each that is handed out is replaced in the background. When a
kind is not asked for any more, its sandboxes are closed, and nothing runs. Each is checked before it is handed out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace

import trio

from minisandbox.errors import SandboxError
from minisandbox.runtime.options import Options
from minisandbox.runtime.sandbox import Sandbox

OFTEN = 4
"""So many starts of a kind within WINDOW_S make it one that is worth parking."""

WINDOW_S = 1.0
IDLE_S = 5.0
"""A kind that was not asked for so long is not parked any longer."""


class _Kind:
    """What is known of one kind of sandbox."""

    __slots__ = ("asked", "options", "parked")

    def __init__(self, options: Options) -> None:
        self.options = options
        self.parked: deque[Sandbox] = deque()
        self.asked: deque[float] = deque(maxlen=OFTEN)

    @property
    def wanted(self) -> bool:
        return len(self.asked) == OFTEN and self.asked[-1] - self.asked[0] < WINDOW_S


class ParkingLot:
    """Parks at most `limit` sandboxes. `serve` must run beside it."""

    def __init__(
        self, limit: int, start: Callable[[Options], Awaitable[Sandbox]], close: Callable[[Sandbox], Awaitable[None]]
    ) -> None:
        self._limit = limit
        self._start = start
        self._close = close
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._changed = trio.Event()
        self._progress = trio.Event()
        self._closed = False

    @property
    def parked(self) -> int:
        """How many are parked."""
        return sum(len(kind.parked) for kind in self._kinds.values())

    def take(self, options: Options) -> Sandbox | None:
        """Return a parked sandbox that fits, or None; either way, note that one was asked for."""
        if self._limit == 0 or not options.parkable:
            return None
        kind = self._kinds.get(options.kind)
        if kind is None:
            kind = self._kinds[options.kind] = _Kind(replace(options, ahead=True))
        self._kinds.move_to_end(options.kind)
        kind.asked.append(trio.current_time())
        if kind.wanted:
            self._changed.set()
        while kind.parked:
            sandbox = kind.parked.popleft()
            if sandbox.usable:
                return sandbox
            trio.lowlevel.spawn_system_task(self._discard, sandbox)
        return None

    async def filled(self) -> None:
        """Wait until every sandbox that is wanted is parked; `serve` must run meanwhile."""
        while any(kind.wanted and len(kind.parked) < self._share() for kind in self._kinds.values()):
            await self._progress.wait()

    async def serve(self) -> None:
        """Start what is wanted and close what is not, until cancelled. No timer runs while nothing is parked."""
        while not self._closed:
            if self._kinds:
                with trio.move_on_after(IDLE_S):
                    await self._changed.wait()
            else:
                await self._changed.wait()
            self._changed = trio.Event()
            await self._close_idle()
            await self._fill()
            self._progress.set()
            self._progress = trio.Event()

    async def _fill(self) -> None:
        for kind in list(self._kinds.values()):
            while kind.wanted and len(kind.parked) < self._share() and not self._closed:
                try:
                    kind.parked.append(await self._start(kind.options))
                except SandboxError:
                    return  # whoever asks next gets the error himself

    def _share(self) -> int:
        return max(1, self._limit // max(1, len(self._kinds)))

    async def _close_idle(self) -> None:
        now = trio.current_time()
        for key, kind in list(self._kinds.items()):
            if now - kind.asked[-1] >= IDLE_S:
                del self._kinds[key]
                for sandbox in kind.parked:
                    await self._discard(sandbox)

    async def give_up_one(self) -> bool:
        """Close one parked sandbox, of the kind that was asked for longest ago, and return whether there was one."""
        for kind in self._kinds.values():
            if kind.parked:
                await self._discard(kind.parked.popleft())
                return True
        return False

    async def aclose(self) -> None:
        """Close all; none is parked any more."""
        self._closed = True
        self._limit = 0
        while await self.give_up_one():
            pass

    async def _discard(self, sandbox: Sandbox) -> None:
        try:
            await self._close(sandbox)
        except SandboxError:
            pass  # its slot is in quarantine, and counted there
