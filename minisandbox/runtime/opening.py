"""Opening a supervisor: what must be there before it, in order, and what is taken down after it, in reverse."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Collection, Iterator
from functools import partial
from pathlib import Path

from minisandbox.degradation import Degradation, parse_degradations
from minisandbox.errors import CgroupError, UsageError
from minisandbox.images.state import StateDir
from minisandbox.kernel.cgroup import CgroupLayout, CgroupTree
from minisandbox.kernel.ids import Ids, OwnIds, claim_ids
from minisandbox.kernel.launcher import Launcher, open_launcher
from minisandbox.kernel.outer import OuterNamespace, find_outer
from minisandbox.kernel.reactor import Reactor
from minisandbox.launcher import binary_path
from minisandbox.runtime.background import background
from minisandbox.runtime.degraded import check_degradations, find_layout
from minisandbox.runtime.engines.choice import DEFAULT_ENGINE, Engines
from minisandbox.runtime.events import EventReceiver, opened_events
from minisandbox.runtime.handles import Handles
from minisandbox.runtime.relaunch import open_lasting_launcher
from minisandbox.runtime.selftest import run_self_test
from minisandbox.runtime.slots import SlotPool
from minisandbox.runtime.status import serving_status
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.telemetry import Telemetry

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
    events: Path | EventReceiver | None = None,
    event_argv: bool = False,
    degrade: Collection[str] = (),
) -> AsyncIterator[Supervisor]:
    """Open a supervisor for the block: at its end every sandbox is closed and nothing is left.

    `state_dir` holds layers and locks. Kinds of sandboxes that are opened often are started ahead, at most `max_parked`
    at once. What a dead supervisor of this state directory left is removed first. With `self_test` a sandbox tries what
    none may do. `engine` makes the containers of sandboxes that name none. `events`, a file or a function, gets each
    event of a sandbox's life, with the words of commands if `event_argv`. What this host cannot enforce is refused but
    for what `degrade` names; each result carries it. Raises HostError when none can run here.
    """
    agreed, outer = _agreed(degrade, max_sandboxes), find_outer()
    async with contextlib.AsyncExitStack() as stack:
        engines = stack.enter_context(contextlib.closing(Engines(engine)))
        state = StateDir.open(state_dir)
        layout = cgroup_layout or find_layout(outer)
        degraded = check_degradations(layout, outer, agreed)
        CgroupTree.sweep(layout, state.is_alive)
        lock = stack.enter_context(state.open_instance())
        telemetry = Telemetry(lock.id, leaked=len(_dead(layout, state)), with_argv=event_argv)
        receiver = await stack.enter_async_context(opened_events(events, telemetry.lose_events))
        ids = stack.enter_context(contextlib.closing(OwnIds() if outer else claim_ids(max_sandboxes)))
        cgroups = stack.enter_context(_open_cgroups(layout, lock.id, ids, degraded))
        reactor = await stack.enter_async_context(_open_reactor())
        handles = stack.enter_context(contextlib.closing(Handles()))
        launch = partial(_open_launcher, reactor, cgroups, ids, lock.fd, max_sandboxes, outer)
        launcher = await open_lasting_launcher(launch, cgroups, telemetry)
        stack.push_async_callback(launcher.aclose)
        slots = SlotPool(launcher, cgroups, ids, max_sandboxes, telemetry)
        supervisor = Supervisor(state, reactor, launcher, slots, handles, engines, max_parked, telemetry, degraded)
        await stack.enter_async_context(_serving(supervisor, slots))
        if self_test:
            await run_self_test(supervisor)
        telemetry.begin(receiver)  # the self-test is nothing that anybody asked for
        await stack.enter_async_context(serving_status(supervisor, lock.path))
        yield supervisor


def _agreed(degrade: Collection[str], max_sandboxes: int) -> frozenset[Degradation]:
    if max_sandboxes < 1:
        raise UsageError(f"max_sandboxes is {max_sandboxes}, it must be at least 1")
    return parse_degradations(degrade)


def _dead(layout: CgroupLayout, state: StateDir) -> list[str]:
    """Return the instances that are dead, and of which control groups stay that could not be removed."""
    return [instance for instance in CgroupTree.instances(layout) if not state.is_alive(instance)]


async def _open_launcher(
    reactor: Reactor,
    cgroups: CgroupTree,
    ids: Ids,
    lock_fd: int,
    max_sandboxes: int,
    outer: OuterNamespace | None,
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
            warden_gid=ids.launcher_warden_gid,
            outer=outer,
        )


@contextlib.asynccontextmanager
async def _serving(supervisor: Supervisor, slots: SlotPool) -> AsyncIterator[None]:
    async with background(slots.serve):
        try:
            async with background(supervisor.parking.serve):
                yield
        finally:
            await supervisor.aclose()


@contextlib.asynccontextmanager
async def _open_reactor() -> AsyncIterator[Reactor]:
    with contextlib.closing(Reactor()) as reactor:
        async with background(reactor.run):
            yield reactor


@contextlib.contextmanager
def _open_cgroups(
    layout: CgroupLayout, instance: str, ids: Ids, degraded: frozenset[Degradation]
) -> Iterator[CgroupTree]:
    cgroups = CgroupTree.create(layout, instance, ids.warden_gid, degraded)
    try:
        yield cgroups
    finally:
        left = cgroups.close()
    if left:
        raise CgroupError(f"control groups that could not be removed: {', '.join(left)}; the next start tries again")
