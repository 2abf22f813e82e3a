"""Another launcher in place of one that died: made by the next start, once nothing of the old one lives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from minisandbox.errors import DeadlineError
from minisandbox.kernel.cgroup import CgroupTree
from minisandbox.kernel.launcher import Launcher
from minisandbox.runtime.telemetry import Telemetry

SURVIVAL_S = 10.0
"""How long inits may outlive their launcher: they are killed with it (PR_SET_PDEATHSIG, prctl(2))."""

_PIDFDS_AT_ONCE = 128


@contextlib.asynccontextmanager
async def open_lasting_launcher(
    spawn: Callable[[], Awaitable[Launcher]], cgroups: CgroupTree, telemetry: Telemetry
) -> AsyncIterator[Launcher]:
    """Open a launcher that is replaced when it dies: what it served is gone, and the next start is served anew."""

    async def respawn() -> Launcher:
        telemetry.launchers_lost += 1
        telemetry.tell("launcher_lost")
        await wait_inits_gone(cgroups)
        replacement = await spawn()
        telemetry.tell("launcher_started")
        return replacement

    launcher = await spawn()
    launcher.respawn = respawn
    try:
        yield launcher
    finally:
        await launcher.aclose()


async def wait_inits_gone(cgroups: CgroupTree) -> None:
    """Wait until no process is left among the inits, so that no two launchers ever serve the same ids.

    Raises DeadlineError when one lives on, in the kernel and unkillable.
    """
    with trio.move_on_after(SURVIVAL_S) as scope:
        while pids := cgroups.inits():
            for pid in pids[:_PIDFDS_AT_ONCE]:
                await _wait_ended(pid)
    if scope.cancelled_caught:
        raise DeadlineError(f"processes of a launcher that died did not end within {SURVIVAL_S:g} s")


async def _wait_ended(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        await trio.lowlevel.checkpoint()  # it ends just now: it may still be listed for a moment
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
