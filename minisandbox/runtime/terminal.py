"""A command on a terminal of the sandbox: we hold the master, the command has the other side as its controlling one."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
from types import TracebackType
from typing import TYPE_CHECKING, Self

import trio

from minisandbox.errors import StartError
from minisandbox.kernel.protocol import stage_name
from minisandbox.runtime.command import Command, CommandSpec, common_request, failure_error, run_request
from minisandbox.runtime.outcome import exit_of
from minisandbox.runtime.supervision import supervise
from minisandbox.spec import Limits

if TYPE_CHECKING:
    from minisandbox.kernel.reactor import Reactor
    from minisandbox.runtime.sandbox import Sandbox

_CHUNK_BYTES = 65536


class Terminal:
    """A running command and the master of its terminal. Use it as an async context manager."""

    def __init__(self, sandbox: Sandbox, command: Command, spec: CommandSpec, master_fd: int) -> None:
        os.set_blocking(master_fd, False)
        self._sandbox = sandbox
        self._command = command
        self._spec = spec
        self._master_fd = master_fd

    @classmethod
    async def open(cls, sandbox: Sandbox, reactor: Reactor, spec: CommandSpec, columns: int, rows: int) -> Terminal:
        """Open a terminal inside and start the command on it."""
        master_fd = await _open_master(sandbox)
        command = sandbox.new_command(spec.limits)
        terminal = cls(sandbox, command, spec, master_fd)
        try:
            terminal.resize(columns, rows)
            # by the master and not by path: nothing inside can put something else in its place (ioctl_tty(2))
            peer_fd = fcntl.ioctl(master_fd, termios.TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                request = run_request(command, spec, [peer_fd] * 3)
                request.words.insert(1, "--new-terminal")
                await sandbox.start_command(command, request)
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

    async def wait(self) -> tuple[int | None, int | None]:
        """Wait for the end of the command and return its exit code and signal; one of them is None."""
        await supervise(self._command, self._spec.limits)
        if self._command.outcome.failure is not None:
            raise failure_error(self._command.outcome.failure, self._spec)
        return exit_of(self._command.outcome.wait_status or 0)

    async def aclose(self) -> None:
        """Kill the command's tree and close the terminal."""
        if self._master_fd >= 0:
            await self._sandbox.abandon(self._command)
            os.close(self._master_fd)
            self._master_fd = -1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


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
        raise
    sandbox.finish(command)
    failure = command.outcome.failure
    if failure is not None:
        advice = "open the sandbox with terminal=True"
        raise StartError("cannot open a terminal", stage_name(failure.stage), failure.error, advice=advice)
    return command.outcome.opened_fd
