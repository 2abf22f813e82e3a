"""The supervisor: owns the launcher, the pool of slots and every open sandbox of one instance.

Opened first and closed last; when it is closed, or its process dies, nothing of its sandboxes is left running. It never
forks, and reads nothing that a workload wrote but what it asks of a proxy.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial

import trio

from minisandbox.binds import Bind
from minisandbox.degradation import Degradation
from minisandbox.errors import BusyError, ClosedError, DeadlineError
from minisandbox.images.rootfs import Rootfs
from minisandbox.images.snapshot_manifest import StoredSnapshot
from minisandbox.kernel.launcher import Launcher
from minisandbox.kernel.reactor import Reactor
from minisandbox.policy import Policy
from minisandbox.runtime.admission import Demand
from minisandbox.runtime.branching import Branches
from minisandbox.runtime.disk import Disk, DiskDirectories, find_disk
from minisandbox.runtime.engines.choice import DEFAULT_ENGINE, Engines
from minisandbox.runtime.handles import Handles
from minisandbox.runtime.inspection import Inspected
from minisandbox.runtime.lookup import Lookup
from minisandbox.runtime.options import Options, check_options
from minisandbox.runtime.parking import ParkingLot
from minisandbox.runtime.pinned import PINNED_ENV
from minisandbox.runtime.pod import Place
from minisandbox.runtime.queue import AdmissionQueue, Lease
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.slots import SlotPool, configure
from minisandbox.runtime.snapshot import Snapshot
from minisandbox.runtime.starting import Starting
from minisandbox.runtime.template import Template
from minisandbox.runtime.uplink import Uplink
from minisandbox.spec import Limits, Timing


class Supervisor(Inspected, Starting):
    """An open supervisor. Make it with `open_supervisor`."""

    def __init__(
        self,
        disks: DiskDirectories,
        reactor: Reactor,
        launcher: Launcher,
        slots: SlotPool,
        handles: Handles,
        engines: Engines,
        max_parked: int,
        queue: AdmissionQueue,
        degraded: Iterable[Degradation] = (),
    ) -> None:
        self.state = disks.state
        self.telemetry = queue.telemetry
        self.degraded = tuple(name for name in Degradation if name in set(degraded))
        """What its sandboxes are opened without, since this host cannot enforce it and that was agreed to."""
        self.parking = ParkingLot(max_parked, self._start_ahead, self.close_sandbox)
        self.queue = queue
        slots.on_room, slots.can_free = queue.change, self._can_free
        self.reactor = reactor
        self._launcher, self._slots = launcher, slots
        self._place = Place(launcher, slots)
        self.handles = handles
        self.templates = []
        self._engines, self._disks = engines, disks
        self._uplink = Uplink()
        self._sandboxes: dict[int, Sandbox] = {}
        self._lookup = Lookup(disks.state)
        self.branches = Branches(
            launcher,
            slots,
            self._sandboxes,
            self._admit_all,
            self._hand_out,
            self._start,
            self.close_sandbox,
            self._lookup.library,
        )
        launcher.on_broken = partial(self.on_launcher_broken, self._place)

    @contextlib.asynccontextmanager
    async def open_sandbox(
        self,
        *,
        engine: str | None = None,
        rootfs: str | Rootfs | None = None,
        template: Template | None = None,
        snapshot: Snapshot | StoredSnapshot | str | None = None,
        policy: str | Policy = "default",
        limits: Limits | None = None,
        binds: Sequence[Bind] = (),
        hostname: str | None = None,
        env: Mapping[str, str] | None = None,
        lifetime_s: float | None = None,
        terminal: bool = False,
        trace: bool = False,
        deterministic: bool = False,
        disk: Disk | str = Disk.MEMORY,
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox for the block, once there is room. Raises SandboxErrors, see the manual; cancelled: gone."""
        origin = await self._lookup.find_start(template or rootfs, snapshot, self.branches)
        found = self._lookup.find_policy(policy)
        options = Options(
            engine=engine or (DEFAULT_ENGINE if template else self._engines.default),
            template=template,
            **origin,
            policy=found,
            limits=found.limits.overridden_by(limits),
            binds=(*found.binds, *binds),
            hostname=found.hostname if hostname is None else hostname,
            env={**origin["rootfs"].env, **found.env, **(PINNED_ENV if deterministic else {}), **(env or {})},
            lifetime_s=lifetime_s,
            terminal=terminal,
            trace=trace,
            deterministic=deterministic,
            disk=find_disk(disk),
        )
        async with self._opened(options, priority, deadline_s) as sandbox:
            yield sandbox

    async def find_rootfs(self, rootfs: str | Rootfs) -> Rootfs:
        """Return a root file system by name, as `open_sandbox` takes it: built or looked up once."""
        return await self._lookup.find_rootfs(rootfs)

    async def aclose(self) -> None:
        """Close every sandbox that is still open; their owners find them closed."""
        self._closed = True
        self.queue.close()
        await self.parking.aclose()
        await self.branches.aclose()
        for sandbox in list(self._sandboxes.values()):
            await self.close_sandbox(sandbox)
        await self.close_templates()

    @contextlib.asynccontextmanager
    async def _opened(self, options: Options, priority: int, deadline_s: float | None) -> AsyncIterator[Sandbox]:
        self.check_open()
        with self.telemetry.opening():
            check_options(options)
            sandbox = await self._open(options, priority, deadline_s)
        try:
            yield sandbox
        finally:
            await self.close_sandbox(sandbox)

    async def _open(self, options: Options, priority: int, deadline_s: float | None) -> Sandbox:
        give_up_at = None if deadline_s is None else trio.current_time() + deadline_s
        place = await self.place_of(options)
        demand = Demand.of(options.limits)
        while True:
            lease = await self.queue.admit(demand, place.slots, priority, deadline_s)
            try:
                return await self._hand_out(options, lease)
            except BusyError:  # what was promised is gone: somebody who needs no admission was faster
                if deadline_s == 0:
                    raise
                deadline_s = None if give_up_at is None else max(0.001, give_up_at - trio.current_time())
                await trio.lowlevel.checkpoint()  # or we could keep everybody else from making room

    def _can_free(self) -> int:
        return self.parking.parked + self.branches.changes.going

    async def _admit_all(self, options: Options, count: int) -> list[Lease]:
        place = await self.place_of(options)
        return self.queue.admit_at_once(Demand.of(options.limits), place.slots, count)

    async def _hand_out(self, options: Options, lease: Lease) -> Sandbox:
        sandbox = None
        try:
            self._disks.check(options)
            parked = self.parking.take(options)
            sandbox = parked or await self._start(options, lease)
            lease.start()
            sandbox.lease = lease
            if parked is not None:
                if parked.limits != options.limits:
                    await parked.drop_standing()
                configure(parked.slot, options.limits)
                parked.assign(options)
                parked.ahead = False
                parked.timing = Timing(slot_s=0.0, start_s=0.0, parked=True)
            if options.policy.allow:
                await sandbox.set_network(allow=options.policy.allow)
            self.telemetry.handed_out(sandbox)
        except BaseException:
            if sandbox is not None:
                await self.close_sandbox(sandbox)
            lease.release()
            raise
        return sandbox

    async def close_sandbox(self, sandbox: Sandbox) -> None:
        """Kill what is in a sandbox and give its slot back, or quarantine that when it cannot be proved empty.

        Shielded. A second call waits for nothing and does nothing: the supervisor may have closed it already.
        """
        with trio.CancelScope(shield=True):
            await sandbox.wait_moved()
            if self._sandboxes.pop(sandbox.number, None) is None:
                return
            sandbox.break_(ClosedError("the sandbox was closed"))
            try:
                await self._end(sandbox)
            finally:
                if sandbox.lease is not None:
                    sandbox.lease.release()

    async def _end(self, sandbox: Sandbox) -> None:
        with self.telemetry.closing(sandbox):
            await self._slots.cleanup.wait("network", sandbox.network.aclose)
            try:
                await sandbox.place.launcher.end(sandbox.slot.number, sandbox.number)
            except DeadlineError:
                sandbox.slot.leaves = sandbox.take_leaves()
                sandbox.place.slots.quarantine(sandbox.slot)
                raise
            finally:
                sandbox.disconnect()
            sandbox.place.slots.release(sandbox.slot, sandbox.take_leaves(), sandbox.layers)
            for layer in sandbox.layers:
                await layer.release()
            if sandbox.directory is not None:
                await sandbox.directory.aclose(self._slots.cleanup)
