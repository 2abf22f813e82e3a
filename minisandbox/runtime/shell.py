"""The bash of a session: its process, its control socket and its output pipes, and how what it runs is made to end.

Owns the descriptors and the control group leaf. It knows nothing of limits: `session` decides when a command must end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from minisandbox.errors import DeadlineError, FileTransferError, ProtocolError, SessionEndedError
from minisandbox.kernel.descriptors import open_pipe, open_socket_pair, open_to_all
from minisandbox.kernel.reactor import PRIORITY
from minisandbox.runtime import files
from minisandbox.runtime.capture import Capture
from minisandbox.runtime.command import CommandSpec, run_request
from minisandbox.runtime.observer import Observer
from minisandbox.runtime.outcome import exit_of
from minisandbox.runtime.shell_driver import ABORT_SIGNAL, Report, ReportReader, encode_command
from minisandbox.runtime.supervision import KILL_DEADLINE_S
from minisandbox.spec import ExitReason

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

INTERRUPT_GRACE_S = 0.5
"""How long a command may take to end after SIGINT."""

KILL_GRACE_S = 1.0
"""How long bash may take to notice that what it waits for was killed, before more is killed."""

CLOSE_GRACE_S = 2.0
"""How long bash may take to end when the session is closed: a trap of EXIT may run."""

_RETRY_S = 0.01
_FORKING_S = 0.1


class Output:
    """One stream of the shell, of which each command has a part."""

    def __init__(self, shell: Shell, fd: int, kept_bytes: int) -> None:
        self._shell, self._fd, self._kept_bytes = shell, fd, kept_bytes
        self._before: Capture | None = None
        self._capture = self._open(None)

    def _open(self, limit_bytes: int | None) -> Capture:
        return Capture(
            self._shell.sandbox.reactor,
            os.dup(self._fd),
            kept_bytes=self._kept_bytes,
            limit_bytes=limit_bytes,
            on_data=None,
            on_change=self._shell.wake,
        )

    @property
    def over_limit(self) -> bool:
        """True when the command that runs wrote more than it may."""
        return self._capture.over_limit

    def begin(self, limit_bytes: int | None) -> None:
        """Begin the part of a command. What came since the last one belongs to it, but counts for no limit."""
        self._capture.close()
        self._before, self._capture = self._capture, self._open(limit_bytes)

    def end(self) -> tuple[bytes, bool]:
        """End the part; return it, and whether something is left out of it.

        One `drain` takes more than a pipe holds that was made larger from inside (pipe(7), pipe-max-size: 1 MiB).
        """
        self._capture.drain()
        self._capture.close()
        parts = [part for part in (self._before, self._capture) if part is not None]
        self._before, self._capture = None, self._open(None)
        return b"".join(part.kept() for part in parts), any(part.truncated for part in parts)

    def close(self) -> None:
        """Stop reading."""
        self._capture.close()
        os.close(self._fd)


class Shell:
    """A running bash. `report` is what it said last, and None while it runs a command."""

    def __init__(self, sandbox: Sandbox, spec: CommandSpec) -> None:
        self.sandbox = sandbox
        self.command = sandbox.new_command(spec.limits)
        self.command.observer = Observer()  # it is no command that somebody asked for; those of the session are
        self.report: Report | None = None
        self._changed = trio.Event()
        self._reader = ReportReader()
        self._broken: ProtocolError | None = None
        self._signalled = False
        self._end_scope = trio.CancelScope()
        self._theirs: list[int] = []
        self._socket, theirs = open_socket_pair(socket.SOCK_STREAM)
        self._theirs.append(theirs.detach())
        self._socket.setblocking(False)
        sandbox.reactor.register(self._socket.fileno(), self._on_report)
        self.stdout, self.stderr = (self._pipe(spec.limits.output_kept_bytes) for _ in range(2))

    def _pipe(self, kept_bytes: int) -> Output:
        read_fd, write_fd = open_pipe()
        open_to_all(write_fd)  # as in Pipes.add
        self._theirs.append(write_fd)
        return Output(self, read_fd, kept_bytes)

    async def start(self, spec: CommandSpec) -> None:
        """Have the process started."""
        try:
            await self.sandbox.start_command(self.command, run_request(self.command, spec, self._theirs))
        finally:
            while self._theirs:
                os.close(self._theirs.pop())
        if self.command.leaf.events_fd >= 0:  # a limit of processes ends what runs, and not the shell
            self.sandbox.reactor.unregister(self.command.leaf.events_fd)
            self.sandbox.reactor.register(self.command.leaf.events_fd, self.wake, PRIORITY)
        trio.lowlevel.spawn_system_task(self._watch_end)

    async def _watch_end(self) -> None:
        with self._end_scope:
            await self.command.ended.wait()
            self.wake()

    def wake(self) -> None:
        """Let those look again who wait for a change."""
        self._changed.set()
        self._changed = trio.Event()

    def _on_report(self) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = self._socket.recv(65536)
        try:
            for report in self._reader.feed(data):
                if self.report is not None:
                    raise ProtocolError("the shell of a session reported twice")
                self.report = report
        except ProtocolError as error:
            self._broken, data = error, b""
            self.command.leaf.kill()
        if not data:
            self.sandbox.reactor.unregister(self._socket.fileno())
        self.wake()

    @property
    def ended(self) -> bool:
        """True when no report will come any more."""
        return self.report is None and self.command.ended.is_set()

    def end_error(self, stopped_for: ExitReason | None) -> Exception:
        """Return what to raise when no report came, whatever the reason; `stopped_for` is why it was ended, if so."""
        outcome = self.command.outcome
        if self.command.broken is not None:
            return self.command.broken
        if outcome.wait_status is None:
            return DeadlineError("the shell of a session did not end or answer in time")
        code, number = exit_of(outcome.wait_status)
        why = "it was killed" if number else "a command ended it (exit, exec, set -e, set -u)"
        if stopped_for is not None:
            why = f"it went with a command that was to end ({stopped_for.value})"
        return SessionEndedError(str(self._broken or why), code, number, self.stdout.end()[0], self.stderr.end()[0])

    async def wait_report(self, until: float) -> None:
        """Wait for a report until then, or for the end of the shell."""
        while self.report is None and not self.ended and trio.current_time() < until:
            await self.wait_change(until)

    async def wait_change(self, until: float) -> None:
        """Wait until anything happened, or until then."""
        with trio.move_on_at(until):
            await self._changed.wait()

    async def send(self, data: bytes) -> None:
        """Hand it a command. Its end is noticed elsewhere."""
        self.report = None
        view = memoryview(data)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while view:
                try:
                    view = view[self._socket.send(view, socket.MSG_NOSIGNAL) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._socket)

    # ---- making a command end

    async def interrupt(self) -> None:
        """Send SIGINT to bash and its foreground processes, as Ctrl-C does."""
        self._signalled = True
        await self.sandbox.signal_command(self.command, signal.SIGINT, "group")

    async def stop(self, spared: frozenset[int]) -> None:
        """Make what runs end: by SIGINT, then by killing all but bash and the processes in `spared`, then those too.

        If nothing helps, bash is killed as well.
        """
        if self.report is None:
            await self.interrupt()
            await self.sandbox.signal_command(self.command, signal.SIGCONT)
            await self.wait_report(trio.current_time() + INTERRUPT_GRACE_S)
        await self._kill_all_but(spared)
        for also_spared in (spared, frozenset[int]()):
            deadline = trio.current_time() + KILL_GRACE_S
            while self.report is None and not self.ended and trio.current_time() < deadline:
                for number in (signal.SIGCONT, ABORT_SIGNAL):
                    await self.sandbox.signal_command(self.command, number)
                await self.wait_report(trio.current_time() + _RETRY_S)
                await self._kill_all_but(also_spared)
        if self.report is None:
            self.command.leaf.kill()
            await self._wait_ended(KILL_DEADLINE_S)
        else:
            await self.refresh(self.report)

    async def refresh(self, report: Report) -> None:
        """Run nothing, so that bash has its trap for SIGINT again, and says which background jobs were killed."""
        await self.send(encode_command(":", report))
        await self.wait_report(trio.current_time() + KILL_GRACE_S)
        if self.report is not None:
            self.report = report

    async def settle(self) -> None:
        """After signals, wait until they were sent, so that none of them hits the next command.

        init serves one request after the other: its answer to a later one, whatever it is, proves it.
        """
        if self._signalled and self.report is not None:
            self._signalled = False
            with contextlib.suppress(FileTransferError):
                await files.read_file(self.sandbox, "/", 0)

    async def _kill_all_but(self, spared: frozenset[int]) -> None:
        """Kill the processes of the session but bash and `spared`, and wait until they are gone.

        Those that fork faster than they are killed may not fork any more after a while.
        """
        begun = trio.current_time()
        with contextlib.ExitStack() as held:
            limited = False
            while victims := [pid for pid in self.command.leaf.members() - spared if not self._is_shell(pid)]:
                self.command.leaf.kill_members(victims)
                await trio.sleep(_RETRY_S)
                taken_s = trio.current_time() - begun
                if taken_s > KILL_GRACE_S:
                    return
                if taken_s > _FORKING_S and not limited:
                    limited = True
                    held.enter_context(self.command.leaf.no_new_processes())

    def _is_shell(self, pid: int) -> bool:
        """Look whether a process has the id inside that the shell said to be its own (proc_pid_status(5), NSpid)."""
        try:
            status = Path(f"/proc/{pid}/status").read_bytes()
        except OSError:  # it is gone
            return True
        inner = next((line.split()[-1] for line in status.splitlines() if line.startswith(b"NSpid:")), b"")
        return inner == b"%d" % self._reader.shell_pid

    # ---- the end

    async def aclose(self) -> None:
        """End bash, but nothing that it left in the background, and give back what it held. Shielded.

        When it runs a command still, the whole tree is killed.
        """
        with trio.CancelScope(shield=True):
            if self.command.asked and not self.command.ended.is_set():
                await self._end()
        self._end_scope.cancel()
        if self._socket.fileno() >= 0:
            self.sandbox.reactor.unregister(self._socket.fileno())
            self._socket.close()
        self.stdout.close()
        self.stderr.close()
        while self._theirs:
            os.close(self._theirs.pop())
        self.sandbox.finish(self.command)

    async def _end(self) -> None:
        if self.report is not None:
            self.sandbox.reactor.unregister(self._socket.fileno())
            self._socket.close()  # bash finds the end of its input
            await self._wait_ended(CLOSE_GRACE_S)
        if not self.command.ended.is_set():
            self.command.leaf.kill()
            await self._wait_ended(KILL_DEADLINE_S)

    async def _wait_ended(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.command.ended.wait()
