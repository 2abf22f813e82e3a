"""Opening a supervisor: what must be there before it, in order, and what is taken down after it, in reverse."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minisandbox.degradation import Degradation, parse_degradations
from minisandbox.errors import CgroupError, HostError, UsageError
from minisandbox.images.state import StateDir
from minisandbox.kernel.cgroup import CgroupLayout, CgroupTree
from minisandbox.kernel.cgroup_reserve import check_reserve
from minisandbox.kernel.ids import MAX_SLOTS, Ids, OwnIds, claim_ids
from minisandbox.kernel.launcher import Launcher, open_launcher
from minisandbox.kernel.load import LoadMeter
from minisandbox.kernel.outer import OuterNamespace, find_outer
from minisandbox.kernel.pod import PodSpec
from minisandbox.kernel.reactor import Reactor
from minisandbox.launcher import binary_path
from minisandbox.runtime.admission import Admission, Bookkeeper, Capacity
from minisandbox.runtime.background import background
from minisandbox.runtime.degraded import check_degradations, find_layout
from minisandbox.runtime.disk import DiskDirectories
from minisandbox.runtime.engines.choice import DEFAULT_ENGINE, Engines
from minisandbox.runtime.events import EventReceiver, opened_events
from minisandbox.runtime.handles import Handles
from minisandbox.runtime.host_checks import kernel_refusal
from minisandbox.runtime.options import check_lifetime
from minisandbox.runtime.pod import SpawnLauncher
from minisandbox.runtime.queue import AdmissionQueue
from minisandbox.runtime.relaunch import open_lasting_launcher
from minisandbox.runtime.selftest import run_self_test
from minisandbox.runtime.slots import SlotPool
from minisandbox.runtime.starting import DEFAULT_LIFETIME_S
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
    admission: Admission | None = None,
    reserve_cpus: int = 0,
    reserve_memory_bytes: int = 0,
    max_lifetime_s: float | None = DEFAULT_LIFETIME_S,
) -> AsyncIterator[Supervisor]:
    """Open a supervisor for the block; at its end nothing of it is left. Raises HostError when none can run here."""
    host = _look(cgroup_layout, degrade, max_sandboxes)
    async with contextlib.AsyncExitStack() as stack:
        engines = stack.enter_context(contextlib.closing(Engines(engine)))
        state = _swept(StateDir.open(state_dir), host.layout)
        lock = stack.enter_context(state.open_instance())
        telemetry = Telemetry(lock.id, leaked=len(_dead(host.layout, state)), with_argv=event_argv)
        receive = await stack.enter_async_context(opened_events(events, telemetry.lose_events))
        ids = stack.enter_context(contextlib.closing(OwnIds() if host.outer else claim_ids(max_sandboxes)))
        cgroups = stack.enter_context(_open_cgroups(host, lock.id, ids))
        meter = stack.enter_context(contextlib.closing(LoadMeter(host.layout)))
        queue = _open_queue(meter, cgroups, telemetry, admission, (reserve_cpus, reserve_memory_bytes))
        reactor = await stack.enter_async_context(_open_reactor())
        handles = stack.enter_context(contextlib.closing(Handles()))
        launch = partial(_open_launcher, reactor, cgroups, ids, lock.fd, host.outer, slots=max_sandboxes)
        launcher = await stack.enter_async_context(open_lasting_launcher(launch, cgroups, telemetry))
        disks = stack.enter_context(contextlib.closing(DiskDirectories(state, without_limit=host.without_disk_limit)))
        slots = SlotPool(launcher, cgroups, ids, max_sandboxes, telemetry)
        supervisor = Supervisor(disks, reactor, launcher, slots, handles, engines, max_parked, queue, host.degraded)
        supervisor.max_lifetime_s = check_lifetime(max_lifetime_s)
        await stack.enter_async_context(_serving(supervisor, slots, launch))
        await _begin(supervisor, receive, self_test=self_test)
        async with serving_status(supervisor, lock.path):
            yield supervisor


async def _begin(supervisor: Supervisor, receive: EventReceiver | None, *, self_test: bool) -> None:
    if self_test:
        await run_self_test(supervisor)
    supervisor.telemetry.begin(receive)  # the self-test is nothing that anybody asked for


@dataclass(frozen=True, slots=True)
class _Host:
    """What there is for this user on this host."""

    layout: CgroupLayout
    outer: OuterNamespace | None
    degraded: frozenset[Degradation]
    without_disk_limit: bool


def _look(layout: CgroupLayout | None, degrade: Collection[str], max_sandboxes: int) -> _Host:
    if refusal := kernel_refusal(platform.release(), platform.machine()):
        raise HostError(
            f"minisandbox does not run on Linux {platform.release()} on {platform.machine()}: it needs {refusal}"
        )
    if not 1 <= max_sandboxes <= MAX_SLOTS:
        raise UsageError(f"max_sandboxes is {max_sandboxes}, it must be from 1 to {MAX_SLOTS}")
    agreed, outer = parse_degradations(degrade), find_outer()
    found = layout or find_layout(outer)
    without_disk_limit = Degradation.DISK_LIMIT in agreed
    return _Host(found, outer, check_degradations(found, outer, agreed), without_disk_limit)


def _swept(state: StateDir, layout: CgroupLayout) -> StateDir:
    """Remove what dead instances of a state directory left in the control groups."""
    CgroupTree.sweep(layout, state.is_alive)
    return state


def _dead(layout: CgroupLayout, state: StateDir) -> list[str]:
    """Return the instances that are dead, and of which control groups stay that could not be removed."""
    return [instance for instance in CgroupTree.instances(layout) if not state.is_alive(instance)]


async def _open_launcher(
    reactor: Reactor,
    cgroups: CgroupTree,
    ids: Ids,
    lock_fd: int,
    outer: OuterNamespace | None,
    slots: int,
    pod: PodSpec | None = None,
) -> Launcher:
    with contextlib.ExitStack() as stack:
        inits_fds = cgroups.join_fds()
        for fd in inits_fds:
            stack.callback(os.close, fd)
        return await open_launcher(
            binary_path(),
            reactor,
            slots=slots,
            lock_fd=lock_fd,
            inits_fds=inits_fds,
            warden_gid=ids.launcher_warden_gid,
            outer=outer,
            pod=pod,
        )


@contextlib.asynccontextmanager
async def _serving(supervisor: Supervisor, slots: SlotPool, launch: SpawnLauncher) -> AsyncIterator[None]:
    supervisor.spawn = launch
    async with background(slots.serve):
        try:
            async with background(supervisor.parking.serve), background(supervisor.queue.serve):
                yield
        finally:
            await supervisor.aclose()


@contextlib.asynccontextmanager
async def _open_reactor() -> AsyncIterator[Reactor]:
    with contextlib.closing(Reactor()) as reactor:
        async with background(reactor.run):
            yield reactor


def _open_queue(
    meter: LoadMeter, cgroups: CgroupTree, telemetry: Telemetry, admission: Admission | None, reserve: tuple[int, int]
) -> AdmissionQueue:
    """Keep cores and memory free of sandboxes, and return the queue for what is left."""
    cpus, memory_bytes = reserve
    cores, host_bytes = len(os.sched_getaffinity(0)), meter.memory_bytes()
    meter.look()  # what it keeps open is open from now on
    check_reserve(cpus, memory_bytes, cpus + 1, host_bytes)  # how many cores there are is for the cpuset to say
    cgroups.keep(cpus, memory_bytes, host_bytes)
    if memory_bytes:
        meter.bound(host_bytes - memory_bytes, cgroups.memory_bytes)
    capacity = Capacity(host_bytes - memory_bytes, max(1, cores - cpus), meter.processes())
    return AdmissionQueue(Bookkeeper(admission or Admission(), capacity), meter, telemetry)


@contextlib.contextmanager
def _open_cgroups(host: _Host, instance: str, ids: Ids) -> Iterator[CgroupTree]:
    cgroups = CgroupTree.create(host.layout, instance, ids.warden_gid, host.degraded)
    try:
        yield cgroups
    finally:
        left = cgroups.close()
    if left:
        raise CgroupError(f"control groups that could not be removed: {', '.join(left)}; the next start tries again")
