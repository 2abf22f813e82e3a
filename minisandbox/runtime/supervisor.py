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
from minisandbox.images.rootfs import Rootfs, build_rootfs
from minisandbox.images.state import StateDir
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.descriptors import open_socket_pair
from minisandbox.kernel.launcher import STEP_DEADLINE_S, Launcher
from minisandbox.kernel.protocol import Record, stage_name
from minisandbox.kernel.reactor import Reactor
from minisandbox.policy import Network, Policy, load_policy
from minisandbox.runtime.degraded import kill_inside
from minisandbox.runtime.engines import Attempt
from minisandbox.runtime.engines.choice import Engines
from minisandbox.runtime.engines.native import StartSpec
from minisandbox.runtime.handles import Handles
from minisandbox.runtime.inspection import Inspected
from minisandbox.runtime.network import SandboxNetwork
from minisandbox.runtime.options import Options, check_options
from minisandbox.runtime.parking import ParkingLot
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.slots import Slot, SlotPool, configure
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
        self._numbers = 0
        self._rootfs: dict[str, Rootfs] = {}
        self._policies: dict[str, Policy] = {}
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
        rootfs: str | Rootfs = "host",
        policy: str | Policy = "default",
        limits: Limits | None = None,
        binds: Sequence[Bind] = (),
        hostname: str | None = None,
        env: Mapping[str, str] | None = None,
        lifetime_s: float | None = None,
        terminal: bool = False,
        trace: bool = False,
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox for the block. `limits` overrides those of the policy, `binds` and `env` add to it.

        `engine` makes its container. `lifetime_s` ends it whatever becomes of its owner; `terminal` lets it have
        terminals; `trace` fills `timing.stages`. Raises StartError with the step that failed, UsageError for what
        cannot be, BusyError when too many are open. Cancelled: nothing is left.
        """
        self._check_open()
        found_rootfs = await self._find_rootfs(rootfs)
        found = self._find_policy(policy)
        options = Options(
            engine=self._engines.default if engine is None else engine,
            rootfs=found_rootfs,
            policy=found,
            limits=found.limits.overridden_by(limits),
            binds=(*found.binds, *binds),
            hostname=found.hostname if hostname is None else hostname,
            env={**found_rootfs.env, **found.env, **(env or {})},
            lifetime_s=lifetime_s,
            terminal=terminal,
            trace=trace,
        )
        sandbox = await self._open(options)
        try:
            yield sandbox
        finally:
            await self._close(sandbox)

    async def aclose(self) -> None:
        """Close every sandbox that is still open; their owners find them closed."""
        self._closed = True
        await self.parking.aclose()
        for sandbox in list(self._sandboxes.values()):
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
                parked.assign(options.policy, options.limits, options.env)
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
            policy=options.policy,
            limits=options.limits,
            env=options.env,
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
                layer_fds=self._handles.layer_fds(options.rootfs),
                binds=[*self._handles.rootfs_binds(options.rootfs), *bind_fds],
                filter_fds=self._handles.filter_fds(options.policy),
                lifetime_s=options.lifetime_s,
                terminal=options.terminal,
                trace=options.trace,
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
        if self._sandboxes.pop(sandbox.number, None) is None:
            return
        sandbox.break_(ClosedError("the sandbox was closed"))
        with trio.CancelScope(shield=True), self.telemetry.closing(sandbox):
            await sandbox.network.aclose()
            try:
                await self._launcher.end(sandbox.slot.number, sandbox.number)
            except DeadlineError:
                sandbox.slot.leaves = sandbox.take_leaves()
                self._slots.quarantine(sandbox.slot)
                raise
            finally:
                sandbox.disconnect()
            self._slots.release(sandbox.slot, sandbox.take_leaves())

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this supervisor is closed; open another")

    def _on_launcher_broken(self) -> None:
        for sandbox in list(self._sandboxes.values()):
            sandbox.break_(BrokenError("the launcher is gone, and every sandbox it started with it"))

    async def _find_rootfs(self, rootfs: str | Rootfs) -> Rootfs:
        if isinstance(rootfs, Rootfs):
            return rootfs
        if rootfs not in self._rootfs:
            self._rootfs[rootfs] = await trio.to_thread.run_sync(build_rootfs, self.state, rootfs)
        return self._rootfs[rootfs]

    def _find_policy(self, policy: str | Policy) -> Policy:
        if isinstance(policy, Policy):
            return policy
        if policy not in self._policies:
            self._policies[policy] = load_policy(policy)
        return self._policies[policy]


def stage_seconds(records: Sequence[Record], asked_ns: int) -> dict[str, float]:
    """Return how long each traced stage took, by name, in order."""
    seconds = {}
    for record in records:
        seconds[stage_name(record.stage)] = (record.time_ns - asked_ns) * 1e-9
        asked_ns = record.time_ns
    return seconds
