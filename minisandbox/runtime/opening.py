"""Opening a supervisor: what must be there before it, in order, and what is taken down after it, in reverse."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import AsyncIterator
from pathlib import Path

from minisandbox.errors import CgroupError, HostError, UsageError
from minisandbox.images.state import StateDir
from minisandbox.kernel.cgroup import CgroupLayout, CgroupTree, detect_layout
from minisandbox.kernel.ids import IdRange, claim_ids
from minisandbox.kernel.launcher import Launcher, open_launcher
from minisandbox.kernel.protocol import SLOT_IDS
from minisandbox.kernel.reactor import Reactor
from minisandbox.launcher import binary_path
from minisandbox.runtime.background import background
from minisandbox.runtime.engines.choice import DEFAULT_ENGINE, Engines
from minisandbox.runtime.handles import Handles
from minisandbox.runtime.host_checks import kernel_refusal
from minisandbox.runtime.selftest import run_self_test
from minisandbox.runtime.slots import SlotPool
from minisandbox.runtime.supervisor import Supervisor

DEFAULT_MAX_SANDBOXES = 1024
DEFAULT_MAX_PARKED = 4


@contextlib.asynccontextmanager
async def open_supervisor(
    *,
    state_dir: Path | None = None,
    max_sandboxes: int = DEFAULT_MAX_SANDBOXES,
    max_parked: int = DEFAULT_MAX_PARKED,
    cgroup_layout: CgroupLayout | None = None,
    self_test: bool = True,
    engine: str = DEFAULT_ENGINE,
) -> AsyncIterator[Supervisor]:
    """Open a supervisor for the block: at its end every sandbox is closed and nothing is left.

    `state_dir` holds layers and locks (default /var/lib/minisandbox). Kinds of sandboxes that are opened often are
    started ahead, at most `max_parked` at once; 0 is never. What a dead supervisor of this state directory
    left is removed first. With `self_test` a sandbox tries what none may do before any is served. `engine` makes the
    containers of sandboxes that name none.
    Raises HostError when this host cannot run sandboxes, or one does not hold, and says why.
    """
    _check_caller(max_sandboxes)
    async with contextlib.AsyncExitStack() as stack:
        engines = stack.enter_context(contextlib.closing(Engines(engine)))
        state = StateDir.open(state_dir)
        layout = cgroup_layout or detect_layout()
        CgroupTree.sweep(layout, state.is_alive)
        lock = stack.enter_context(state.open_instance())
        ids = stack.enter_context(contextlib.closing(claim_ids(max_sandboxes)))
        cgroups = CgroupTree.create(layout, lock.id, _warden_gid(ids))
        stack.callback(_close_cgroups, cgroups)
        reactor = stack.enter_context(contextlib.closing(Reactor()))
        handles = stack.enter_context(contextlib.closing(Handles()))
        await stack.enter_async_context(background(reactor.run))
        launcher = await _open_launcher(reactor, cgroups, ids, lock.fd, max_sandboxes)
        stack.push_async_callback(launcher.aclose)
        slots = SlotPool(launcher, cgroups, ids.base, max_sandboxes)
        await stack.enter_async_context(background(slots.serve))
        supervisor = Supervisor(state, reactor, launcher, slots, handles, engines, max_parked)
        stack.push_async_callback(supervisor.aclose)
        await stack.enter_async_context(background(supervisor.parking.serve))
        if self_test:
            await run_self_test(supervisor)
        yield supervisor


def _check_caller(max_sandboxes: int) -> None:
    if refusal := kernel_refusal(platform.release(), platform.machine()):
        raise HostError(
            f"minisandbox does not run on Linux {platform.release()} on {platform.machine()}: it needs {refusal}"
        )
    if os.geteuid() != 0:
        raise HostError("minisandbox needs root on this host: run it with sudo (a rootless mode is not there yet)")
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        raise HostError(
            "this is root of a user namespace, and minisandbox needs the host's root (a rootless mode is not there yet)"
            "; in a container, run it without user namespace remapping"
        )
    if max_sandboxes < 1:
        raise UsageError(f"max_sandboxes is {max_sandboxes}, it must be at least 1")


def _warden_gid(ids: IdRange) -> int:
    """The group of all inits: the last id of the first slot, which is mapped into no sandbox."""
    return ids.base + SLOT_IDS - 1


async def _open_launcher(
    reactor: Reactor, cgroups: CgroupTree, ids: IdRange, lock_fd: int, max_sandboxes: int
) -> Launcher:
    with contextlib.ExitStack() as stack:
        inits_fds = list(cgroups.inits_tasks_fds)
        if cgroups.inits_fd >= 0:
            procs_fd = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroups.inits_fd)
            stack.callback(os.close, procs_fd)
            inits_fds.append(procs_fd)
        return await open_launcher(
            binary_path(),
            reactor,
            slots=max_sandboxes,
            lock_fd=lock_fd,
            inits_fds=inits_fds,
            warden_gid=_warden_gid(ids),
        )


def _close_cgroups(cgroups: CgroupTree) -> None:
    left = cgroups.close()
    if left:
        raise CgroupError(f"control groups that could not be removed: {', '.join(left)}; the next start tries again")
