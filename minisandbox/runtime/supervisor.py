"""The supervisor: owns the launcher, the pool of slots and every open sandbox of one instance.

Opened first and closed last; when it is closed, or its process dies, nothing of its sandboxes is left running. It never
forks, and reads nothing that a workload wrote but what it asks of a proxy.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial

import trio

from minisandbox.binds import Bind
from minisandbox.degradation import Degradation
from minisandbox.errors import BusyError, ClosedError, DeadlineError, StartError
from minisandbox.images.rootfs import Rootfs
from minisandbox.images.snapshot_manifest import StoredSnapshot
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.descriptors import open_socket_pair
from minisandbox.kernel.launcher import STEP_DEADLINE_S, Launcher
from minisandbox.kernel.protocol import stage_name, stage_seconds
from minisandbox.kernel.reactor import Reactor
from minisandbox.policy import Network, Policy
from minisandbox.runtime.branching import Branches
from minisandbox.runtime.degraded import kill_inside
from minisandbox.runtime.disk import Disk, DiskDirectories, find_disk
from minisandbox.runtime.engines import Attempt
from minisandbox.runtime.engines.choice import DEFAULT_ENGINE, Engines
from minisandbox.runtime.engines.native import StartSpec
from minisandbox.runtime.handles import Handles
from minisandbox.runtime.inspection import Inspected
from minisandbox.runtime.lookup import Lookup
from minisandbox.runtime.network import SandboxNetwork
from minisandbox.runtime.options import Options, check_options
from minisandbox.runtime.parking import ParkingLot
from minisandbox.runtime.pinned import PINNED_ENV, pinned_files
from minisandbox.runtime.pod import Place
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.slots import Slot, SlotPool, configure
from minisandbox.runtime.snapshot import Snapshot
from minisandbox.runtime.standing import prepare
from minisandbox.runtime.telemetry import Telemetry
from minisandbox.runtime.template import Template
from minisandbox.runtime.templates import Templated
from minisandbox.runtime.uplink import Uplink
from minisandbox.spec import Limits, Timing


class Supervisor(Inspected, Templated):
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
        telemetry: Telemetry,
        degraded: Iterable[Degradation] = (),
    ) -> None:
        self.state = disks.state
        self.telemetry = telemetry
        self.degraded = tuple(name for name in Degradation if name in set(degraded))
        """What its sandboxes are opened without, since this host cannot enforce it and that was agreed to."""
        self.parking = ParkingLot(max_parked, self._start, self.close_sandbox)
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
            launcher, slots, self._sandboxes, self._open, self._start, self.close_sandbox, self._lookup.library
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
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox for the block. Raises StartError, UsageError, BusyError, HostError; cancelled: gone."""
        found_rootfs, stored, layers = await self._lookup.find_start(template or rootfs, snapshot, self.branches)
        found = self._lookup.find_policy(policy)
        options = Options(
            engine=engine or (DEFAULT_ENGINE if template else self._engines.default),
            template=template,
            rootfs=found_rootfs,
            policy=found,
            limits=found.limits.overridden_by(limits),
            binds=(*found.binds, *binds),
            hostname=found.hostname if hostname is None else hostname,
            env={**found_rootfs.env, **found.env, **(PINNED_ENV if deterministic else {}), **(env or {})},
            lifetime_s=lifetime_s,
            terminal=terminal,
            trace=trace,
            deterministic=deterministic,
            disk=find_disk(disk),
            stored=stored,
            layers=layers,
        )
        async with self._opened(options) as sandbox:
            yield sandbox

    async def find_rootfs(self, rootfs: str | Rootfs) -> Rootfs:
        """Return a root file system by name, as `open_sandbox` takes it: built or looked up once."""
        return await self._lookup.find_rootfs(rootfs)

    async def aclose(self) -> None:
        """Close every sandbox that is still open; their owners find them closed."""
        self._closed = True
        await self.parking.aclose()
        await self.branches.aclose()
        for sandbox in list(self._sandboxes.values()):
            await self.close_sandbox(sandbox)
        await self.close_templates()

    @contextlib.asynccontextmanager
    async def _opened(self, options: Options) -> AsyncIterator[Sandbox]:
        self.check_open()
        sandbox = await self._open(options)
        try:
            yield sandbox
        finally:
            await self.close_sandbox(sandbox)

    async def _open(self, options: Options) -> Sandbox:
        with self.telemetry.opening():
            return await self._hand_out(options)

    async def _hand_out(self, options: Options) -> Sandbox:
        check_options(options)
        self._disks.check(options)
        parked = self.parking.take(options)
        sandbox = parked or await self._start(options)
        try:
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
            await self.close_sandbox(sandbox)
            raise
        return sandbox

    async def _acquire(self, slots: SlotPool, limits: Limits) -> Slot:
        while True:
            try:
                return await slots.acquire(limits)
            except BusyError:
                if not (await self.parking.give_up_one() or await self.branches.changes.freed_one()):
                    raise

    async def _start(self, options: Options) -> Sandbox:
        with self.telemetry.starting_one():
            return await self._start_in_slot(options)

    async def _start_in_slot(self, options: Options) -> Sandbox:
        begun = time.monotonic()
        engine = self._engines.find(options.engine)
        place = self._place if options.template is None else await options.template.ensure_place()
        with self.telemetry.queueing():
            slot = await self._acquire(place.slots, options.limits)
        slot_s = time.monotonic() - begun
        try:
            self.check_open()
            ours, theirs = open_socket_pair(socket.SOCK_SEQPACKET)
        except BaseException:
            place.slots.release(slot, [])
            raise
        with theirs, engine.attempt() as attempt:
            sandbox = self._make_sandbox(place, slot, ours, options)
            try:
                asked_ns = time.monotonic_ns()
                await self._ask(attempt, sandbox, theirs.fileno(), options)
                theirs.close()  # or the end of init could not be seen on ours
                await prepare(sandbox)
                await self._wait_started(attempt, sandbox, slot_s, asked_ns)
            except BaseException:
                await self.close_sandbox(sandbox)
                raise
        return sandbox

    def _make_sandbox(self, place: Place, slot: Slot, control: socket.socket, options: Options) -> Sandbox:
        number = self.next_number()
        listen = partial(place.launcher.listen, slot.number, number)
        channel = Channel(control, f"the init of slot {slot.number}")
        sandbox = Sandbox(
            number=number,
            slot=slot,
            channel=channel,
            reactor=self.reactor,
            network=SandboxNetwork(listen, self._uplink, is_host=options.policy.network is Network.HOST),
            branches=self.branches,
            options=options,
        )
        sandbox.ahead, sandbox.place = options.ahead, place
        sandbox.filter_fds = self.handles.filter_fds(options.policy)
        sandbox.observer = self.telemetry.watch(sandbox.number)
        sandbox.degraded = (*self.degraded, *self._disks.check(options))
        slot.cgroup.kill_untracked = partial(kill_inside, channel)
        self._sandboxes[sandbox.number] = sandbox
        return sandbox

    async def _ask(self, attempt: Attempt, sandbox: Sandbox, control_fd: int, options: Options) -> None:
        layer_fds, shown = self.shown(options)
        with self.handles.bind_fds(options.binds) as bind_fds, self._disks.opened(sandbox, options) as disk_fd:
            spec = StartSpec(
                number=sandbox.number,
                slot=sandbox.slot.number,
                policy=options.policy,
                limits=options.limits,
                hostname=options.hostname,
                control_fd=control_fd,
                disk_fd=disk_fd,
                layer_fds=layer_fds,
                namespace_fds=[layer.namespace_fd for layer in options.layers if layer.namespace_fd >= 0],
                binds=[*shown, *bind_fds],
                pinned=pinned_files(self.state, self.handles, options.policy) if options.deterministic else (),
                filter_fds=sandbox.filter_fds,
                lifetime_s=options.lifetime_s,
                terminal=options.terminal,
                trace=options.trace,
                deterministic=options.deterministic,
            )
            await sandbox.place.launcher.send(attempt.request(spec))

    async def _wait_started(self, attempt: Attempt, sandbox: Sandbox, slot_s: float, asked_ns: int) -> None:
        with trio.move_on_after(STEP_DEADLINE_S) as scope:
            await sandbox.started.wait()
        if scope.cancelled_caught:
            raise DeadlineError(f"a sandbox did not become ready within {STEP_DEADLINE_S:g} s")
        failure = sandbox.start_failure
        if failure is not None:
            raise StartError("cannot start a sandbox", stage_name(failure.stage), failure.error, failure.item)
        if not sandbox.usable and not sandbox.place.launcher.broken and (why := attempt.failure()) is not None:
            raise why
        sandbox.check_open()
        start_s = (time.monotonic_ns() - asked_ns) * 1e-9
        sandbox.timing = Timing(slot_s=slot_s, start_s=start_s, stages=stage_seconds(sandbox.stages, asked_ns))
        self.telemetry.started(sandbox)

    async def close_sandbox(self, sandbox: Sandbox) -> None:
        """Kill what is in a sandbox and give its slot back, or quarantine that when it cannot be proved empty.

        Shielded. A second call waits for nothing and does nothing: the supervisor may have closed it already.
        """
        with trio.CancelScope(shield=True):
            await sandbox.wait_moved()
            if self._sandboxes.pop(sandbox.number, None) is None:
                return
            sandbox.break_(ClosedError("the sandbox was closed"))
            await self._end(sandbox)

    async def _end(self, sandbox: Sandbox) -> None:
        with self.telemetry.closing(sandbox):
            await sandbox.network.aclose()
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
                await sandbox.directory.aclose()
