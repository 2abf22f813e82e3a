"""One start of a sandbox, from a slot to an init that answers; `Supervisor` inherits it.

A start takes no longer than its deadline. Whatever fails, the slot comes back, or goes into quarantine.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from minisandbox.errors import BusyError, DeadlineError, StartError
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.descriptors import open_socket_pair
from minisandbox.kernel.launcher import STEP_DEADLINE_S
from minisandbox.kernel.protocol import stage_name, stage_seconds
from minisandbox.kernel.reactor import Reactor
from minisandbox.policy import Network
from minisandbox.runtime.admission import Demand
from minisandbox.runtime.branching import Branches
from minisandbox.runtime.degraded import kill_inside
from minisandbox.runtime.disk import DiskDirectories
from minisandbox.runtime.engines import Attempt
from minisandbox.runtime.engines.choice import Engines
from minisandbox.runtime.engines.native import StartSpec
from minisandbox.runtime.network import SandboxNetwork
from minisandbox.runtime.options import Options
from minisandbox.runtime.parking import ParkingLot
from minisandbox.runtime.pinned import pinned_files
from minisandbox.runtime.pod import Place
from minisandbox.runtime.queue import AdmissionQueue, Lease
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.slots import Slot, SlotPool
from minisandbox.runtime.standing import prepare
from minisandbox.runtime.telemetry import Telemetry
from minisandbox.runtime.templates import Templated
from minisandbox.runtime.uplink import Uplink
from minisandbox.spec import Limits, Timing

if TYPE_CHECKING:
    from minisandbox.degradation import Degradation
    from minisandbox.images.state import StateDir


DEFAULT_LIFETIME_S = 7 * 86400.0


class Starting(Templated):
    """Starts of a supervisor's sandboxes."""

    state: StateDir
    telemetry: Telemetry
    degraded: tuple[Degradation, ...]
    max_lifetime_s: float | None = DEFAULT_LIFETIME_S
    """After so long init ends by itself, whatever its owner does; of sandboxes that were given no lifetime."""
    parking: ParkingLot
    reactor: Reactor
    branches: Branches
    queue: AdmissionQueue
    close_sandbox: Callable[[Sandbox], Awaitable[None]]
    _engines: Engines
    _disks: DiskDirectories
    _uplink: Uplink

    async def _acquire(self, slots: SlotPool, limits: Limits) -> Slot:
        while True:
            try:
                return await slots.acquire(limits)
            except BusyError:
                if not (await self.parking.give_up_one() or await self.branches.changes.freed_one()):
                    raise

    async def _start(self, options: Options, lease: Lease | None = None) -> Sandbox:
        with self.telemetry.starting_one():
            return await self._start_in_slot(options, lease)

    async def _start_ahead(self, options: Options) -> Sandbox:
        """Start one that nobody asked for. Raises BusyError while anybody would have to wait."""
        place = await self.place_of(options)
        if self.queue.is_short(Demand.of(options.limits), place.slots):
            raise BusyError("there is no room for a sandbox that nobody asked for yet")
        return await self._start(options)

    async def place_of(self, options: Options) -> Place:
        """Return where a sandbox is to be started."""
        return self._place if options.template is None else await options.template.ensure_place()

    async def _start_in_slot(self, options: Options, lease: Lease | None) -> Sandbox:
        begun = time.monotonic()
        engine = self._engines.find(options.engine)
        self.handles.filter_fds(options.policy)  # what can fail of it fails here, while there is no slot to be lost
        place = await self.place_of(options)
        slot = await self._acquire(place.slots, options.limits)
        if lease is not None:
            lease.place()
        self.telemetry.slots_taken += 1
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
                options = await sandbox.found()
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
        layer_fds, shown = await self.shown(options)
        async with contextlib.AsyncExitStack() as stack:
            bind_fds = await stack.enter_async_context(self.handles.bind_fds(options.binds))
            disk_fd = stack.enter_context(self._disks.opened(sandbox, options))
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
                lifetime_s=options.lifetime_s or self.max_lifetime_s,
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
