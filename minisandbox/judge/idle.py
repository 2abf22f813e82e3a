"""The guard against programs that wait: it looks at what they use, not at a clock, which a busy host stretches.

A program that wants a processor and gets none does not wait: the kernel counts that time, too (sched-stats.rst).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import trio

from minisandbox.errors import SandboxError
from minisandbox.kernel.cgroup_run import RunCgroup
from minisandbox.runtime.background import background
from minisandbox.runtime.sandbox import Sandbox

LEAST_SHARE = 0.01
"""Of a processor: what even a program beside many others gets, and one that waits does not use."""

LOOKS = 5
"""How often it looks in the time that a program may wait."""


class _Queued:
    """How long threads wanted a processor and got none."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def look(self, leaves: Iterable[RunCgroup]) -> float:
        """Return the seconds of all threads that were ever seen."""
        for leaf in leaves:
            # a group or a process that goes while it is looked at is nothing to tell: this must not raise, ever
            with contextlib.suppress(OSError, SandboxError):
                for pid in leaf.members():
                    self._look_at(pid)
        return sum(self._seconds.values())

    def _look_at(self, pid: int) -> None:
        with contextlib.suppress(OSError, IndexError, ValueError):  # gone, or the kernel does not count
            for thread in os.listdir(f"/proc/{pid}/task"):
                text = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text()
                self._seconds[thread] = int(text.split()[1]) / 1e9


class IdleGuard:
    """Kills what runs in a sandbox when it has used next to nothing for too long."""

    def __init__(self, sandbox: Sandbox, idle_s: float) -> None:
        self._sandbox, self._idle_s = sandbox, idle_s
        self.ended_it = False

    async def watch(self) -> None:
        """Look until it ended what it guards, or is cancelled."""
        looks: list[float] = []
        queued = _Queued()
        while True:
            leaves = [command.leaf for command in self._sandbox.commands.values()]
            looks.append(sum(leaf.cpu_time_s() for leaf in leaves) + queued.look(leaves))
            if len(looks) > LOOKS and looks[-1] - looks[-1 - LOOKS] < LEAST_SHARE * self._idle_s:
                self.ended_it = True
                with contextlib.suppress(SandboxError):  # it is gone, and what ran in it
                    await self._sandbox.kill_all()
                return
            await trio.sleep(self._idle_s / LOOKS)


@contextlib.asynccontextmanager
async def guarding(sandbox: Sandbox, idle_s: float) -> AsyncIterator[IdleGuard]:
    """Guard the commands of a sandbox during the block."""
    guard = IdleGuard(sandbox, idle_s)
    async with background(guard.watch):
        yield guard
