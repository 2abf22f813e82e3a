"""The launcher process, seen from the supervisor: spawned once, asked for slots and starts, and told when one ends.

Owns the process and our end of its socket. Never forks (posix_spawn shares the parent's memory until exec) and decides
nothing about what a sandbox may do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import trio

from minisandbox.errors import BrokenError, DeadlineError, ProtocolError, SandboxError, StartError
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.descriptors import open_socket_pair
from minisandbox.kernel.outer import OuterNamespace
from minisandbox.kernel.pod import PodSpec
from minisandbox.kernel.protocol import VERSION, Record, RecordKind, Request, Stage, answered, stage_name
from minisandbox.kernel.reactor import Reactor
from minisandbox.kernel.spawn import spawn_launcher

STEP_DEADLINE_S = 30.0
"""How long the launcher may take for one step. It takes milliseconds; a busy host may need a while."""

KILL_DEADLINE_S = 10.0
"""How long a launcher that was killed may take; one that does not end hangs in the kernel."""


class Launcher:
    """A running launcher. Make it with `open_launcher`."""

    def __init__(self, pid: int, pidfd: int, channel: Channel, reactor: Reactor) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._channel = channel
        self._reactor = reactor
        self._waiting: dict[tuple[RecordKind, int], trio.Event] = {}
        self._answers: dict[tuple[RecordKind, int], Record] = {}
        self._opened: dict[int, int] = {}
        self._broken: BrokenError | StartError | None = None
        self.on_broken: Callable[[], None] = lambda: None
        self.respawn: Callable[[], Awaitable[Launcher]] | None = None
        """Makes another process in place of one that is gone."""
        self._generation = 0
        self._made_in: dict[int, int] = {}
        """The generation of the process that made each slot."""
        self._reviving = trio.Lock()
        reactor.register(channel.fd, self._on_readable)

    @property
    def broken(self) -> bool:
        """True when the process is gone; every sandbox it started is gone with it."""
        return self._broken is not None

    def _on_readable(self) -> None:
        try:
            while not self.broken and (received := self._channel.receive()) is not None:
                self._take(*received)
        except (BrokenError, ProtocolError) as error:
            self._break(BrokenError(str(error)))

    def _take(self, record: Record, fd: int) -> None:
        kind = RecordKind(record.kind)
        if kind is RecordKind.FAILED and (RecordKind.HELLO, 0) in self._waiting:
            stage = stage_name(record.stage)
            self._break(StartError("cannot set the launcher up", stage, record.error, record.item))
            return
        key = (answered(record), record.id)
        event = self._waiting.pop(key, None)
        if fd >= 0 and event is not None:
            self._opened[record.id] = fd
        elif fd >= 0:  # whoever asked for it gave up
            os.close(fd)
        if event is not None:
            self._answers[key] = record
            event.set()
        elif (
            kind is RecordKind.FAILED and record.stage != Stage.COPY
        ):  # of a request that nobody waits for: the launcher and we disagree
            self._break(BrokenError(f"the launcher refused a request at step {stage_name(record.stage)}"))

    def _break(self, error: BrokenError | StartError) -> None:
        self._broken = self._broken or error
        if not self._channel.closed:
            self._reactor.unregister(self._channel.fd)
        for event in self._waiting.values():
            event.set()
        self._waiting.clear()
        self.on_broken()

    def expect(self, kind: RecordKind, number: int) -> trio.Event:
        """Return an event that is set when the record comes, or the launcher is gone; then call `answer`."""
        event = trio.Event()
        if self._broken is not None:
            event.set()
        else:
            self._waiting[kind, number] = event
        return event

    def answer(self, kind: RecordKind, number: int) -> Record:
        """Return the record that came. Raises BrokenError when the launcher is gone instead."""
        record = self._answers.pop((kind, number), None)
        if record is None:
            raise self._broken or BrokenError("the launcher is gone")
        return record

    async def send(self, request: Request) -> None:
        """Send one request. Raises BrokenError when the launcher is gone."""
        if self._broken is not None:
            raise self._broken
        try:
            await self._channel.send(request)
        except BrokenError as error:
            self._on_readable()  # what it said before it went says more
            raise self._broken or error from None

    async def configure(
        self, inits_fds: Sequence[int], warden_gid: int, overlay_by_path: bool = False, pod: PodSpec | None = None
    ) -> None:
        """Tell it where inits belong, and check that it speaks our protocol."""
        request = Request("configure").option("warden-gid", warden_gid)
        if overlay_by_path:
            request.flag("by-path")
        for fd in inits_fds:
            request.descriptor("inits", fd)
        if pod is not None:
            pod.add_to(request)
        event = self.expect(RecordKind.HELLO, 0)
        await self.send(request)
        with step_deadline("the launcher to answer"):
            await event.wait()
        version = self.answer(RecordKind.HELLO, 0).value
        if version != VERSION:
            raise ProtocolError(f"the launcher speaks protocol {version}, this package {VERSION}; rebuild it")

    def kill(self) -> None:
        """Kill the process, and with it all that it started."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def revive(self) -> None:
        """Go on with another process if this one is gone. The slots of the old one must be made anew.

        Raises what `open_launcher` raises; then the next call tries again.
        """
        if self._broken is None or self.respawn is None:
            return
        async with self._reviving:
            if self.broken:
                await self.aclose()
                self._adopt(await self.respawn())

    def _adopt(self, other: Launcher) -> None:
        self._reactor.unregister(other._channel.fd)
        self.pid, self._pidfd, self._channel = other.pid, other._pidfd, other._channel
        self._answers.clear()
        self._generation += 1
        self._broken = None
        self._reactor.register(self._channel.fd, self._on_readable)

    async def ensure_slot(self, number: int, uid_base: int) -> None:
        """Make a slot that this process does not have, since an earlier one made it."""
        if self._made_in.get(number) != self._generation:
            await self.make_slot(number, uid_base)

    async def make_slot(self, number: int, uid_base: int) -> None:
        """Make the namespaces of a slot. Raises StartError with the stage when the kernel refuses."""
        event = self.expect(RecordKind.SLOT, number)
        await self.send(Request("slot").option("slot", number).option("uid-base", uid_base))
        with step_deadline(f"the namespaces of slot {number}"):
            await event.wait()
        record = self.answer(RecordKind.SLOT, number)
        if record.kind == RecordKind.FAILED:
            raise StartError("cannot make namespaces for a sandbox", stage_name(record.stage), record.error)
        self._made_in[number] = self._generation

    async def listen(self, slot: int, sandbox: int, port: int) -> int:
        """Return a descriptor that listens on a TCP port of 127.0.0.1 in the network of a sandbox. It is the caller's.

        Raises StartError when it cannot be had. Shielded, with a deadline: one that came late would be nobody's.
        """
        opened = self.expect(RecordKind.OPENED, sandbox)
        request = Request("listen").option("slot", slot).option("id", sandbox).option("port", port)
        try:
            with trio.CancelScope(shield=True), step_deadline(f"a listening socket in slot {slot}"):
                await self.send(request)
                await opened.wait()
        finally:
            self._waiting.pop((RecordKind.OPENED, sandbox), None)
        record = self.answer(RecordKind.OPENED, sandbox)
        if record.kind == RecordKind.FAILED:
            raise StartError("cannot listen in the network of a sandbox", stage_name(record.stage), record.error)
        return self._opened.pop(sandbox)

    def take_opened(self, number: int) -> int:
        """Return the descriptor that came with an answer, or -1; it is the caller's."""
        return self._opened.pop(number, -1)

    def forget(self, kind: RecordKind, number: int) -> None:
        """Wait no longer for what was expected; what comes all the same is closed."""
        self._waiting.pop((kind, number), None)

    async def end(self, slot: int, sandbox: int, deadline_s: float = STEP_DEADLINE_S) -> None:
        """Kill a sandbox and wait until all its processes are dead.

        It does not end by itself: the launcher keeps its network namespace for the next one before it kills.
        Raises DeadlineError when that takes longer, and returns at once when the launcher is gone: so are they then.
        """
        if self._made_in.get(slot) != self._generation:  # gone with the process that started it
            return
        gone = self.expect(RecordKind.GONE, sandbox)
        with contextlib.suppress(BrokenError, StartError):
            await self.send(Request("end").option("slot", slot).option("id", sandbox))
            with step_deadline(f"the processes of the sandbox in slot {slot} to end", deadline_s):
                await gone.wait()
            self.answer(RecordKind.GONE, sandbox)

    async def aclose(self) -> None:
        """End the launcher and every sandbox it still serves; kill it when it does not end by itself."""
        if self._pidfd < 0:
            return
        if not self._channel.closed:
            self._reactor.unregister(self._channel.fd)
            self._channel.close()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(5):
                await trio.lowlevel.wait_readable(self._pidfd)
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            with trio.move_on_after(KILL_DEADLINE_S) as scope:
                await trio.lowlevel.wait_readable(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if scope.cancelled_caught:
            raise DeadlineError(f"the launcher, process {self.pid}, did not end {KILL_DEADLINE_S:g} s after SIGKILL")
        os.waitpid(self.pid, 0)


@contextlib.contextmanager
def step_deadline(what: str, seconds: float = STEP_DEADLINE_S) -> Iterator[None]:
    """Raise DeadlineError, saying what was waited for, when the block takes longer."""
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError as error:
        raise DeadlineError(f"waited {seconds:g} s for {what}") from error


async def open_launcher(
    binary: Path,
    reactor: Reactor,
    *,
    slots: int,
    lock_fd: int,
    inits_fds: Sequence[int],
    warden_gid: int,
    overlay_by_path: bool = False,
    outer: OuterNamespace | None = None,
    pod: PodSpec | None = None,
) -> Launcher:
    """Spawn a launcher for at most `slots` sandboxes at once, perhaps in a pod, and check that it answers.

    An ordinary user's is root of an `outer` user namespace. It shares the open file `lock_fd` (borrowed), so that a
    lock on it lasts until both processes are gone. With `overlay_by_path` it makes overlays as kernels before 6.15 need
    it, whatever this one can do.

    Raises BrokenError, with the step that failed, when it cannot set itself up.
    """
    words = ["serve", str(slots), *(outer.words if outer else ())]
    ours, theirs = open_socket_pair(socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = spawn_launcher(binary, words, theirs.fileno(), lock_fd)
        except OSError as error:
            ours.close()
            raise StartError("cannot start the launcher", "none", error.errno or 0) from error
    launcher = Launcher(pid, os.pidfd_open(pid), Channel(ours, "the launcher"), reactor)
    try:
        await launcher.configure(inits_fds, warden_gid, overlay_by_path, pod)
    except (SandboxError, trio.Cancelled):
        await launcher.aclose()
        raise
    return launcher
