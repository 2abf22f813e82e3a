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
from minisandbox.errors import BrokenError, BusyError, ClosedError, DeadlineError, StartError
from minisandbox.images.rootfs import Rootfs
from minisandbox.images.snapshot_manifest import StoredSnapshot
from minisandbox.images.state import StateDir
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.descriptors import open_socket_pair
from minisandbox.kernel.launcher import STEP_DEADLINE_S, Launcher
from minisandbox.kernel.protocol import stage_name, stage_seconds
from minisandbox.kernel.reactor import Reactor
from minisandbox.policy import Network, Policy
from minisandbox.runtime.branching import Branches
from minisandbox.runtime.degraded import kill_inside
from minisandbox.runtime.engines import Attempt
from minisandbox.runtime.engines.choice import Engines
from minisandbox.runtime.engines.native import StartSpec
from minisandbox.runtime.handles import Handles
from minisandbox.runtime.inspection import Inspected
from minisandbox.runtime.lookup import Lookup
from minisandbox.runtime.network import SandboxNetwork
from minisandbox.runtime.options import Options, check_options
from minisandbox.runtime.parking import ParkingLot
from minisandbox.runtime.pinned import PINNED_ENV, pinned_files
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.slots import Slot, SlotPool, configure
from minisandbox.runtime.snapshot import Snapshot
from minisandbox.runtime.telemetry import Telemetry
from minisandbox.runtime.uplink import Uplink
from minisandbox.spec import Limits, Timing


class Supervisor(Inspected):
    """An open supervisor. Make it with `open_supervisor`."""

    def __init__(
        self,
        state: StateDir,
        reactor: Reactor,
        launcher: Launcher,
        slots: SlotPool,
        handles: Handles,
        engines: Engines,
        max_parked: int,
        telemetry: Telemetry,
        degraded: Iterable[Degradation] = (),
    ) -> None:
        self.state = state
        self.telemetry = telemetry
        self.degraded = tuple(name for name in Degradation if name in set(degraded))
        """What its sandboxes are opened without, since this host cannot enforce it and that was agreed to."""
        self.parking = ParkingLot(max_parked, self._start, self._close)
        self._reactor = reactor
        self._launcher = launcher
        self._slots = slots
        self._handles = handles
        self._engines = engines
        self._uplink = Uplink()
        self._sandboxes: dict[int, Sandbox] = {}
        self._lookup = Lookup(state)
        self.branches = Branches(
            launcher, slots, self._sandboxes, self._open, self._start, self._close, self._lookup.library
        )
        self._numbers = 0
        self._closed = False
        launcher.on_broken = self._on_launcher_broken

    @property
    def live(self) -> int:
        """How many sandboxes are open, parked ones not counted."""
        return sum(not sandbox.ahead for sandbox in self._sandboxes.values())

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Slots that were taken out of use, since something of a sandbox could not be proved gone."""
        return tuple(slot.cgroup.name for slot in self._slots.quarantined)

    @contextlib.asynccontextmanager
    async def open_sandbox(
        self,
        *,
        engine: str | None = None,
        rootfs: str | Rootfs | None = None,
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
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox for the block. `limits` overrides those of the policy, `binds` and `env` add to it.

        `lifetime_s` ends it whatever becomes of its owner; `trace` fills `timing.stages`. Raises StartError with the
        step that failed, UsageError for what cannot be, BusyError when too many are open. Cancelled: nothing is left.
        """
        found_rootfs, stored, layers = await self._lookup.find_start(rootfs, snapshot, self.branches)
        found = self._lookup.find_policy(policy)
        options = Options(
            engine=self._engines.default if engine is None else engine,
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
            stored=stored,
            layers=layers,
        )
        async with self._opened(options) as sandbox:
            yield sandbox

    async def aclose(self) -> None:
        """Close every sandbox that is still open; their owners find them closed."""
        self._closed = True
        await self.parking.aclose()
        await self.branches.aclose()
        for sandbox in list(self._sandboxes.values()):
            await self._close(sandbox)

    @contextlib.asynccontextmanager
    async def _opened(self, options: Options) -> AsyncIterator[Sandbox]:
        self._check_open()
        sandbox = await self._open(options)
        try:
            yield sandbox
        finally:
            await self._close(sandbox)

    async def _open(self, options: Options) -> Sandbox:
        with self.telemetry.opening():
            return await self._hand_out(options)

    async def _hand_out(self, options: Options) -> Sandbox:
        check_options(options)
        parked = self.parking.take(options)
        sandbox = parked or await self._start(options)
        try:
            if parked is not None:
                configure(parked.slot, options.limits)
                parked.assign(options)
                parked.ahead = False
                parked.timing = Timing(slot_s=0.0, start_s=0.0, parked=True)
            if options.policy.allow:
                await sandbox.set_network(allow=options.policy.allow)
            self.telemetry.handed_out(sandbox)
        except BaseException:
            await self._close(sandbox)
            raise
        return sandbox

    async def _acquire(self, limits: Limits) -> Slot:
        while True:
            try:
                return await self._slots.acquire(limits)
            except BusyError:
                if not await self.parking.give_up_one():
                    raise

    async def _start(self, options: Options) -> Sandbox:
        with self.telemetry.starting_one():
            return await self._start_in_slot(options)

    async def _start_in_slot(self, options: Options) -> Sandbox:
        begun = time.monotonic()
        engine = self._engines.find(options.engine)
        with self.telemetry.queueing():
            slot = await self._acquire(options.limits)
        slot_s = time.monotonic() - begun
        try:
            self._check_open()
            ours, theirs = open_socket_pair(socket.SOCK_SEQPACKET)
        except BaseException:
            self._slots.release(slot, [])
            raise
        with theirs, engine.attempt() as attempt:
            sandbox = self._make_sandbox(slot, ours, options)
            try:
                asked_ns = time.monotonic_ns()
                await self._ask(attempt, sandbox, theirs.fileno(), options)
                theirs.close()  # or the end of init could not be seen on ours
                slot.cgroup.prepare_spare(slot.warden_uid)  # for the first command, while the sandbox starts
                await self._wait_started(attempt, sandbox, slot_s, asked_ns)
            except BaseException:
                await self._close(sandbox)
                raise
        return sandbox

    def _make_sandbox(self, slot: Slot, control: socket.socket, options: Options) -> Sandbox:
        self._numbers = self._numbers % 0xFFFFFFFF + 1
        listen = partial(self._launcher.listen, slot.number, self._numbers)
        channel = Channel(control, f"the init of slot {slot.number}")
        sandbox = Sandbox(
            number=self._numbers,
            slot=slot,
            channel=channel,
            reactor=self._reactor,
            network=SandboxNetwork(listen, self._uplink, is_host=options.policy.network is Network.HOST),
            branches=self.branches,
            options=options,
        )
        sandbox.ahead = options.ahead
        sandbox.observer = self.telemetry.watch(sandbox.number)
        sandbox.degraded = self.degraded
        slot.cgroup.kill_untracked = partial(kill_inside, channel)
        self._sandboxes[sandbox.number] = sandbox
        return sandbox

    async def _ask(self, attempt: Attempt, sandbox: Sandbox, control_fd: int, options: Options) -> None:
        with self._handles.bind_fds(options.binds) as bind_fds:
            spec = StartSpec(
                number=sandbox.number,
                slot=sandbox.slot.number,
                policy=options.policy,
                limits=options.limits,
                hostname=options.hostname,
                control_fd=control_fd,
                layer_fds=[*(layer.fd for layer in options.layers), *self._handles.layer_fds(options.rootfs)],
                binds=[*self._handles.rootfs_binds(options.rootfs), *bind_fds],
                pinned=pinned_files(self.state, self._handles, options.policy) if options.deterministic else (),
                filter_fds=self._handles.filter_fds(options.policy),
                lifetime_s=options.lifetime_s,
                terminal=options.terminal,
                trace=options.trace,
                deterministic=options.deterministic,
            )
            await self._launcher.send(attempt.request(spec))

    async def _wait_started(self, attempt: Attempt, sandbox: Sandbox, slot_s: float, asked_ns: int) -> None:
        with trio.move_on_after(STEP_DEADLINE_S) as scope:
            await sandbox.started.wait()
        if scope.cancelled_caught:
            raise DeadlineError(f"a sandbox did not become ready within {STEP_DEADLINE_S:g} s")
        failure = sandbox.start_failure
        if failure is not None:
            raise StartError("cannot start a sandbox", stage_name(failure.stage), failure.error, failure.item)
        if not sandbox.usable and not self._launcher.broken and (why := attempt.failure()) is not None:
            raise why
        sandbox.check_open()
        start_s = (time.monotonic_ns() - asked_ns) * 1e-9
        sandbox.timing = Timing(slot_s=slot_s, start_s=start_s, stages=stage_seconds(sandbox.stages, asked_ns))
        self.telemetry.started(sandbox)

    async def _close(self, sandbox: Sandbox) -> None:
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
                await self._launcher.end(sandbox.slot.number, sandbox.number)
            except DeadlineError:
                sandbox.slot.leaves = sandbox.take_leaves()
                self._slots.quarantine(sandbox.slot)
                raise
            finally:
                sandbox.disconnect()
            self._slots.release(sandbox.slot, sandbox.take_leaves(), sandbox.layers)
            for layer in sandbox.layers:
                await layer.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this supervisor is closed; open another")

    def _on_launcher_broken(self) -> None:
        for sandbox in list(self._sandboxes.values()):
            sandbox.break_(BrokenError("the launcher is gone, and every sandbox it started with it"))
