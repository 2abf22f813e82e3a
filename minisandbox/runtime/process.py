"""Commands that are talked to while they run: live byte streams, or a terminal.

A task of its own watches each for its limits, whether or not anybody waits for it. What a reader does not read stays in
the pipe, and the program waits: there is no cap on output here, and nothing is kept.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import trio

from minisandbox.errors import SandboxError, StartError
from minisandbox.kernel.descriptors import open_pipe, open_to_all
from minisandbox.kernel.protocol import Request, stage_name
from minisandbox.runtime.accounting import count, make_result
from minisandbox.runtime.command import Command, CommandSpec, MakeRequest, common_request, run_request
from minisandbox.runtime.supervision import supervise
from minisandbox.spec import ExitReason, Limits, Result

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

_TIOCGPTPEER = 0x5441
"""ioctl_tty(2), asm-generic/ioctls.h; the termios module has it from Python 3.13 on."""

_TIOCSPTLCK = 0x40045431
"""The same: locks a terminal, or with 0 unlocks it."""

_CHUNK_BYTES = 65536


class LiveCommand:
    """A running command. It is killed, with its whole tree, when the block it was opened for ends."""

    def __init__(self, sandbox: Sandbox, spec: CommandSpec) -> None:
        self._sandbox = sandbox
        self._spec = spec
        self._command: Command = sandbox.new_command(spec.limits)
        self._memory = sandbox.memory
        self._mark = self._memory.begin()
        self._started_ns = time.monotonic_ns()
        self._ended = trio.Event()
        self._watch_scope = trio.CancelScope()
        self._outcome: Result | SandboxError | None = None
        self._counted = False
        self._closed = False

    async def _begin(self, stdio: list[int], make_request: MakeRequest) -> None:
        await self._sandbox.start_command(self._command, make_request(self._command, self._spec, stdio))
        trio.lowlevel.spawn_system_task(self._watch)

    async def _watch(self) -> None:
        sandbox = self._sandbox
        with self._watch_scope:
            try:
                await supervise(self._command, self._spec.limits)
                counters = count(self._command, self._memory, self._mark)
                self._counted = True
                self._outcome = make_result(
                    self._command, self._spec, counters, self._started_ns, sandbox.timing, sandbox.degraded
                )
                if self._outcome.exit_reason not in (ExitReason.EXITED, ExitReason.SIGNALED):
                    self._command.leaf.kill()  # a limit ends the whole tree
            except SandboxError as error:
                self._outcome = error
        self._ended.set()

    async def wait(self) -> Result:
        """Wait for the end of the main process and return the result, without output: that is for the reader.

        Raises what `Sandbox.run` raises when it never ran, or the sandbox went first.
        """
        await self._ended.wait()
        if isinstance(self._outcome, Result):
            return self._outcome
        raise self._outcome or StartError("the command was closed before it ended", "none", errno.ECANCELED)

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the main process; SIGKILL kills the whole tree, whatever it does about it."""
        if number == signal.SIGKILL:
            self._command.leaf.kill()
        else:
            await self._sandbox.signal_command(self._command, number)

    async def aclose(self) -> None:
        """Kill the tree, if it still runs, and give back what the command held. Shielded."""
        if self._closed:
            return
        self._closed = True
        self._watch_scope.cancel()
        if not self._counted:
            self._counted = True
            self._memory.abandon()
        await self._sandbox.abandon(self._command)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Process(LiveCommand):
    """A running command with a pipe each for stdin, stdout and stderr, as trio streams."""

    stdin: trio.lowlevel.FdStream
    stdout: trio.lowlevel.FdStream
    stderr: trio.lowlevel.FdStream

    @classmethod
    async def open(cls, sandbox: Sandbox, spec: CommandSpec, make_request: MakeRequest = run_request) -> Process:
        """Start a command, as `make_request` asks for it."""
        process = cls(sandbox, spec)
        theirs: list[int] = []
        try:
            for name in ("stdin", "stdout", "stderr"):
                read_fd, write_fd = open_pipe()
                ours, their = (write_fd, read_fd) if name == "stdin" else (read_fd, write_fd)
                theirs.append(their)
                open_to_all(their)  # as in Pipes.add
                setattr(process, name, trio.lowlevel.FdStream(ours))
            await process._begin(theirs, make_request)
        except BaseException:
            await process.aclose()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return process

    async def aclose(self) -> None:
        """Kill the tree, if it still runs, and close the streams."""
        await super().aclose()
        for name in ("stdin", "stdout", "stderr"):
            stream = self.__dict__.get(name)
            if stream is not None:
                stream.close()


class Terminal(LiveCommand):
    """A running command whose controlling terminal is one of the sandbox; we hold its master."""

    _master_fd = -1

    @classmethod
    async def open(cls, sandbox: Sandbox, spec: CommandSpec, columns: int, rows: int) -> Terminal:
        """Open a terminal inside and start the command on it."""
        master_fd = await _open_master(sandbox)
        try:
            terminal = cls(sandbox, spec)
        except BaseException:
            os.close(master_fd)
            raise
        terminal._master_fd = master_fd
        try:
            os.set_blocking(master_fd, False)
            terminal.resize(columns, rows)
            # by the master and not by path: nothing inside can put something else in its place (ioctl_tty(2))
            fcntl.ioctl(master_fd, _TIOCSPTLCK, struct.pack("i", 0))  # a new one is locked (unlockpt(3))
            peer_fd = fcntl.ioctl(master_fd, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                await terminal._begin([peer_fd] * 3, _terminal_request)
            finally:
                os.close(peer_fd)
        except BaseException:
            await terminal.aclose()
            raise
        return terminal

    def resize(self, columns: int, rows: int) -> None:
        """Tell the terminal its size; the foreground processes get SIGWINCH."""
        fcntl.ioctl(self._master_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def send_all(self, data: bytes) -> None:
        """Type data."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._master_fd, view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._master_fd)

    async def receive_some(self) -> bytes:
        """Return what was printed, at least one byte, or b"" when nobody has the terminal open any more."""
        while True:
            try:
                return os.read(self._master_fd, _CHUNK_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._master_fd)
            except OSError as error:
                if error.errno == errno.EIO:  # how Linux says that the other side is closed (pty(7))
                    return b""
                raise

    async def aclose(self) -> None:
        """Kill the tree, if it still runs, and close the terminal."""
        await super().aclose()
        if self._master_fd >= 0:
            trio.lowlevel.notify_closing(self._master_fd)
            os.close(self._master_fd)
            self._master_fd = -1


def _terminal_request(command: Command, spec: CommandSpec, stdio: Sequence[int]) -> Request:
    request = run_request(command, spec, stdio)
    request.words.insert(1, "--new-terminal")
    return request


async def _open_master(sandbox: Sandbox) -> int:
    limits = Limits(wall_time_s=30.0)
    command = sandbox.new_command(limits)
    try:
        request = common_request("get", command, [])
        request.words.append("--terminal")
        await sandbox.start_command(command, request)
        await supervise(command, limits)
    except BaseException:
        await sandbox.abandon(command)
        if command.outcome.opened_fd >= 0:
            os.close(command.outcome.opened_fd)
        raise
    sandbox.finish(command)
    failure = command.outcome.failure
    if failure is not None:
        advice = "open the sandbox with terminal=True"
        raise StartError("cannot open a terminal", stage_name(failure.stage), failure.error, advice=advice)
    return command.outcome.opened_fd
