"""A sandbox: an init that serves commands and file transfers until it is closed.

Theory of operation. `Supervisor.open_sandbox` starts an init in a slot and makes a `Sandbox` of its control socket. A
command is one request on that socket; init clones it into a control group leaf made for it alone, and reports its end
there. Who holds which right: init may start processes in the sandbox and nothing else; the limits, the leaf and the
kill switch (cgroup.kill) are ours. Whatever a command does to its own processes, the leaf knows all of them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio

from minisandbox.errors import BrokenError, BusyError, ClosedError, ProtocolError
from minisandbox.kernel.cgroup import RunCgroup
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.protocol import RUNS_MAX, Record, RecordKind, Request, stage_name
from minisandbox.kernel.reactor import PRIORITY, Reactor
from minisandbox.policy import capability_mask
from minisandbox.runtime.accounting import MemoryMeter, count, make_result, take_back
from minisandbox.runtime.body import DiskAnswer, Movable
from minisandbox.runtime.branchable import Branchable
from minisandbox.runtime.branching import Branches
from minisandbox.runtime.command import Command, CommandSpec, MakeRequest, OnData, open_streams, run_request
from minisandbox.runtime.disk import DiskDirectory
from minisandbox.runtime.interactive import Interactive
from minisandbox.runtime.network import Networked, SandboxNetwork
from minisandbox.runtime.observer import Observer
from minisandbox.runtime.options import Options
from minisandbox.runtime.outcome import Counters
from minisandbox.runtime.resolve import Streams, Wishes, env_words, resolve
from minisandbox.runtime.slots import Slot
from minisandbox.runtime.supervision import KILL_DEADLINE_S, supervise, watch_background
from minisandbox.runtime.transfers import Transfers
from minisandbox.runtime.warm_run import Warmed
from minisandbox.spec import ExitReason, Limits, Result, Timing


class Sandbox(Interactive, Transfers, Networked, Branchable, Movable, Warmed):
    """An open sandbox. `Supervisor.open_sandbox` makes it and closes it."""

    def __init__(
        self,
        *,
        number: int,
        slot: Slot,
        channel: Channel,
        reactor: Reactor,
        network: SandboxNetwork,
        branches: Branches,
        options: Options,
    ) -> None:
        self.number, self.slot = number, slot
        self.observer = Observer()
        self.timing = Timing(slot_s=0.0, start_s=0.0)
        self.degraded: tuple[str, ...] = ()
        self.directory: DiskDirectory | None = None
        self.ahead = False
        """Whether it was started ahead and belongs to nobody yet."""
        self.started = trio.Event()
        self.start_failure: Record | None = None
        self.stages: list[Record] = []
        self._channel = channel
        self.reactor, self.network = reactor, network
        self.branches = branches
        self.assign(options)
        self.layers = tuple(layer.hold() for layer in options.layers)
        self.ends_at = math.inf if options.lifetime_s is None else time.monotonic() + options.lifetime_s
        self._moving: trio.Event | None = None
        self.commands: dict[int, Command] = {}
        self.leftover: list[Command] = []
        self._numbers = 0
        self._broken: BrokenError | ClosedError | None = None
        self._disk: DiskAnswer | None = None
        self.memory = MemoryMeter(slot)
        slot.is_quiet = self.may_rest
        reactor.register(channel.fd, self._on_readable)

    def assign(self, options: Options) -> None:
        """Give it what can still change before its first command."""
        self.options = options
        self.policy = options.policy
        self.limits = options.limits
        self.env = options.env
        self.env_words = env_words(self.env)
        self.capabilities = capability_mask(self.policy.capabilities)

    @property
    def usable(self) -> bool:
        """Whether commands can be run: asked of the kernel, since an end may not have been read yet."""
        return self._broken is None and not self._channel.closed and not self._channel.hung_up

    # ---- what users call

    async def run(
        self,
        command: Sequence[str] | str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        user: str | int | None = None,
        limits: Limits | None = None,
        on_stdout: OnData | None = None,
        on_stderr: OnData | None = None,
    ) -> Result:
        """Run a command to its end and return what came of it; a string is run by /bin/sh.

        `stdin` is all that it can read, `env` adds variables, `limits` overrides those of the sandbox for this command,
        `on_stdout` and `on_stderr` see the output as it comes; one that returns a trio.Event pauses its stream until
        that is set. It ends when its main process ends: background processes stay, but their output is read for a short
        grace only.
        Raises CommandNotFoundError, CommandNotExecutableError, UsageError or StartError when it never ran, BrokenError
        when the sandbox is gone. Cancelled: the whole tree of the command is killed and the sandbox can be used on.
        """
        spec = await resolve(self, command, Wishes(env, cwd, user, limits), Streams(stdin, on_stdout, on_stderr))
        return await self.run_to_end(spec)

    async def kill_all(self) -> None:
        """Kill every process of the sandbox but its init, background ones too. Commands that run end as killed."""
        await self.settled()
        # leaf by leaf, never the slot: it holds the leaf of the next command, and since Linux 6.14 a process that is
        # cloned into a group that was killed more often than its parent's is killed at birth (cgroup_post_fork)
        running = list(self.commands.values())
        for command in [*running, *self.leftover]:
            command.leaf.kill()
        for command in running:
            await command.ended.wait()

    # ---- commands

    async def run_to_end(self, spec: CommandSpec, make_request: MakeRequest = run_request) -> Result:
        """Run what was resolved, as `make_request` asks for it."""
        command = self.new_command(spec.limits)
        return await self.supervise_from(partial(self._begin, command, spec, make_request), command, spec)

    async def _begin(self, command: Command, spec: CommandSpec, make_request: MakeRequest) -> None:
        pipes = open_streams(command, spec, self.reactor)
        try:
            await self.start_command(command, make_request(command, spec, pipes.stdio))
        finally:
            pipes.close()

    async def supervise_from(self, begin: Callable[[], Awaitable[None]], command: Command, spec: CommandSpec) -> Result:
        """Run a command from its beginning to its end."""
        memory = self.memory  # restoring the sandbox while this runs gives it another
        mark = memory.begin()
        if command.standing is not None:
            mark.held_bytes = command.standing.held_bytes
        started_ns = time.monotonic_ns()
        try:
            await begin()
            self._housekeep()  # while the command starts, so that it costs no time
            await supervise(command, spec.limits)
        except BaseException:
            memory.abandon()
            await self.abandon(command)
            raise
        counters = count(command, memory, mark)
        try:
            result = make_result(command, spec, counters, started_ns, self.timing, self.degraded)
            if result.exit_reason not in (ExitReason.EXITED, ExitReason.SIGNALED):
                command.leaf.kill()  # a limit ends the whole tree, also what the main process left in the background
        finally:
            self.finish(command, counters)
            if spec.limits.cpu_time_s is not None and command in self.leftover:
                trio.lowlevel.spawn_system_task(watch_background, command, spec.limits.cpu_time_s)
        return result

    def check_open(self) -> None:
        """Raise ClosedError or BrokenError unless it can be used; one that broke did so, whoever closed it then."""
        if self._channel.closed and not isinstance(self._broken, BrokenError):
            raise ClosedError("this sandbox is closed; open another")
        if self._broken is not None:
            raise self._broken

    def new_command(self, limits: Limits) -> Command:
        """Return a command with a leaf of its own, not yet asked for. End it with `finish` or `abandon`."""
        if self._moving is not None:
            raise BusyError("this sandbox is just being sealed or restored; wait for that")
        self.check_open()
        if len(self.commands) >= RUNS_MAX:
            raise BusyError(f"{RUNS_MAX} commands run in this sandbox; wait for one of them to end")
        self._numbers += 1
        leaf = self.slot.cgroup.open_run(self.slot.warden_uid, limits.processes)
        command = Command(self._numbers, leaf, self.observer)
        self.commands[command.number] = command
        return command

    @property
    def running(self) -> bool:
        """Whether a command or a transfer has not ended yet."""
        return bool(self.commands)

    def remove_leftover(self) -> bool:
        """Remove the leaves of commands that left nothing running, and return whether none stays."""
        self.leftover = [command for command in self.leftover if not command.leaf.remove()]
        return not self.leftover

    def _housekeep(self) -> None:
        """Clear away what ended commands left, and make a leaf ready for the next command."""
        self.remove_leftover()
        self.slot.cgroup.prepare_spare(self.slot.warden_uid)

    async def start_command(self, command: Command, request: Request) -> None:
        """Ask init for the command."""
        await self._channel.send(request)
        command.asked = True
        command.leaf.close_start_fds()
        if command.leaf.events_fd >= 0:
            self.reactor.register(command.leaf.events_fd, command.on_processes, PRIORITY)

    async def signal_command(self, command: Command, number: int, *flags: str) -> None:
        """Send a signal to the main process of a command, with the flag "group" to its process group."""
        request = Request("signal").option("id", command.number).option("signal", number)
        for name in flags:
            request.flag(name)
        await self._channel.send(request)

    def finish(self, command: Command, counters: Counters | None = None) -> None:
        """Give back what a command that ended held. Its background processes stay, and its leaf until later."""
        command.close_streams()
        self.commands.pop(command.number, None)
        if command.leaf.events_fd >= 0:
            self.reactor.unregister(command.leaf.events_fd)
        if counters is None or not take_back(self.slot.cgroup, command.leaf, counters):
            command.leaf.close_fds()
            self.leftover.append(command)

    async def abandon(self, command: Command) -> None:
        """Kill the tree of a command and give back what it held, also when cancelled."""
        with trio.CancelScope(shield=True), trio.move_on_after(KILL_DEADLINE_S):
            command.leaf.kill()
            if command.asked:
                await command.ended.wait()
        command.leaf.kill()
        self.finish(command)

    # ---- what init reports

    def _on_readable(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                self._take(*received)
        except (BrokenError, ProtocolError) as error:
            self.break_(BrokenError(f"the sandbox in slot {self.slot.number} is gone: {error}"))

    def _take(self, record: Record, fd: int) -> None:
        kind = RecordKind(record.kind)
        if kind is RecordKind.READY:
            self.started.set()
        elif kind is RecordKind.STAGE:
            self.stages.append(record)
        elif self._disk is not None and record.id == 0 and kind in (RecordKind.OPENED, RecordKind.FAILED):
            self._disk.take(record, fd)
            fd = -1
        elif not self.started.is_set():
            self.start_failure = record
            self.started.set()
        elif (command := self.commands.get(record.id)) is not None:
            command.take(record, fd)
            fd = -1
        elif kind is RecordKind.FAILED and record.id == 0:
            raise ProtocolError(f"init refused a request at step {stage_name(record.stage)}")
        if fd >= 0:
            os.close(fd)

    def break_(self, error: BrokenError | ClosedError) -> None:
        """Take note that init is gone: commands end with the error, and nothing can be run any more."""
        if self._broken is None:
            self._broken = error
            self.observer.broken(error)
            self.reactor.unregister(self._channel.fd)
            self.started.set()
            if self._disk is not None:
                self._disk.done.set()
            for command in list(self.commands.values()):
                command.break_(error)

    # ---- the end, called by the supervisor

    def disconnect(self) -> None:
        """Close our end of the control socket; an init that still lives takes that as the order to exit."""
        self._channel.close()

    def take_leaves(self) -> list[RunCgroup]:
        """Return the leaves of all commands, for the caller to remove, once every process of the sandbox is dead."""
        commands = [*self.commands.values(), *self.leftover]
        for command in commands:
            command.close_streams()
            if command.leaf.events_fd >= 0:
                self.reactor.unregister(command.leaf.events_fd)
        self.commands.clear()
        self.leftover.clear()
        return [command.leaf for command in commands]
