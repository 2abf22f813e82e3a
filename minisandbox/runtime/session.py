"""A persistent shell without a terminal: exact stdout, stderr and exit code of each command, state kept in between.

Theory of operation. One bash serves all commands of a session, one after the other (`shell_driver` says how it is
talked to). When its report of a command arrives, all that the foreground processes wrote is in the pipes already: they
are read until they are empty, and no mark in the output is needed. A command that must end gets SIGINT with its process
group, as at Ctrl-C; what it started and did not end by that is killed, and only if bash itself hangs, the session ends.
What background processes write between two commands belongs to the next result, as it would on a terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
import trio

from minisandbox.degradation import MISSING, Degradation
from minisandbox.errors import (
    BusyError,
    ClosedError,
    CommandNotFoundError,
    HostError,
    SessionEndedError,
    UsageError,
)
from minisandbox.runtime.command import CommandSpec, failure_error
from minisandbox.runtime.observer import Spent
from minisandbox.runtime.resolve import Wishes, resolve
from minisandbox.runtime.shell import Shell
from minisandbox.runtime.shell_driver import INTERRUPTED, Report, encode_command, shell_argv
from minisandbox.spec import MAX_SECONDS, ExitReason, Limits

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

START_DEADLINE_S = 30.0
"""How long bash may take to be ready. It takes milliseconds; a busy host may need a while."""

TIMED_OUT = 124
"""$? of a command whose time was up, as of timeout(1)."""

_CPU_PATIENCE_MIN_S = 0.005
_PROCESSES_PATIENCE_S = 0.1
"""How often a counter is looked at that does not notify (pids.events of v1)."""


class SessionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one command of a session."""

    exit_reason: ExitReason
    """EXITED when it ended by itself, SIGNALED by `interrupt`, else the limit for which it was ended."""
    exit_code: int
    """What `$?` is for the next command: 130 when it was interrupted, 124 when its time was up."""
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    wall_time_s: float
    cpu_time_s: float
    """Used by all processes of the session while the command ran, background ones too."""

    @property
    def ok(self) -> bool:
        """True when the command ended by itself with code 0."""
        return self.exit_reason is ExitReason.EXITED and self.exit_code == 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Mark:
    """Where clocks and counters stood when a command began."""

    time: float
    wall_end: float
    members: frozenset[int]
    cpu_time_s: float
    refused: int
    oom_kills: int


class Session:
    """An open session. `Sandbox.open_session` makes it and closes it."""

    def __init__(self, sandbox: Sandbox, limits: Limits, shell: Shell) -> None:
        self._sandbox, self._limits, self._shell = sandbox, limits, shell
        self._before = Report(0, "", traps_interrupt=False)
        self._busy = self._closed = self._interrupted = False

    @classmethod
    async def open(cls, sandbox: Sandbox, spec: CommandSpec) -> Session:
        """Start a shell with the user, directory, variables and limits of `spec`, whose words do not matter."""
        # time and output are limits of each command, and processes must not end the shell
        limits = spec.limits
        of_shell = msgspec.structs.replace(limits, cpu_time_s=None)
        spec = dataclasses.replace(spec, argv=shell_argv(limits.open_files), limits=of_shell)
        shell = Shell(sandbox, spec)
        session = cls(sandbox, limits, shell)
        try:
            await shell.start(spec)
            await shell.wait_report(trio.current_time() + START_DEADLINE_S)
            if shell.report is None:
                raise _start_error(shell, spec)
        except BaseException:
            await session.aclose()
            raise
        session._before = shell.report
        return session

    async def run(self, command: str, *, timeout_s: float | None = None) -> SessionResult:
        """Run a command, which may have many lines, as if it were typed into the shell; return what came of it.

        `timeout_s` goes before the wall-time limit of the session. Background processes outlive the command, but those
        that it started are killed when a limit ends it.
        Raises SessionEndedError when the shell ends (`exit`, `set -e`), UsageError for text with a NUL, BusyError while
        another task runs a command. Cancelled: what runs is ended, and the session can be used on.
        """
        self._check_open()
        if self._busy:
            raise BusyError("this session runs a command already; open another session for another task")
        if timeout_s is not None and not 0 < timeout_s <= MAX_SECONDS:
            raise UsageError(
                f"timeout_s is {timeout_s!r}; give seconds greater than 0, or None for the session's limit"
            )
        data = encode_command(command, self._before)
        self._busy = True
        self._sandbox.observer.command_began(self._shell.command.number, ["bash", "-c", command])
        result = None
        try:
            result = await self._run(data, self._limits.wall_time_s if timeout_s is None else timeout_s)
            return result
        finally:
            self._busy = False
            self._tell(result)

    def _tell(self, result: SessionResult | None) -> None:
        """Tell the observer of the sandbox how a command ended, or that it has no result."""
        number, observer = self._shell.command.number, self._sandbox.observer
        if result is None:
            observer.command_dropped(number)
        else:
            spent = Spent(result.wall_time_s, result.cpu_time_s)
            observer.command_ended(number, result.exit_reason, result.exit_code, spent)

    async def interrupt(self) -> None:
        """Do to the command that runs what Ctrl-C would. Does nothing while none runs."""
        self._check_open()
        if self._shell.report is None:
            self._interrupted = True
            await self._shell.interrupt()

    async def aclose(self) -> None:
        """End the shell; background processes stay until the sandbox is closed. A second call does nothing."""
        if not self._closed:
            self._closed = True
            await self._shell.aclose()

    def _check_open(self) -> None:
        self._sandbox.check_open()
        if self._closed:
            raise ClosedError("this session is closed; open another")

    async def _run(self, data: bytes, timeout_s: float | None) -> SessionResult:
        shell, mark = self._shell, self._mark(timeout_s)
        self._interrupted = False
        shell.stdout.begin(self._limits.stdout_bytes)
        shell.stderr.begin(self._limits.stderr_bytes)
        try:
            with trio.move_on_at(mark.wall_end):
                await shell.send(data)
            reason = await self._supervise(mark)
            await self._settle(mark, reason)
        except BaseException:
            await self._settle(mark, ExitReason.SIGNALED)
            shell.stdout.end()
            shell.stderr.end()
            raise
        return self._finish(mark, reason)

    async def _settle(self, mark: _Mark, stopped_for: ExitReason | None) -> None:
        """End what must end, and leave the shell such that it can take the next command. Shielded."""
        shell = self._shell
        with trio.CancelScope(shield=True):
            if stopped_for is not None and not shell.ended:
                await shell.stop(mark.members)
            await shell.settle()
            if shell.report is not None and not shell.report.traps_interrupt:  # the command took it away
                await shell.refresh(shell.report)
        if shell.report is not None:
            self._before = shell.report

    def _mark(self, timeout_s: float | None) -> _Mark:
        leaf, now = self._shell.command.leaf, trio.current_time()
        return _Mark(
            time=now,
            wall_end=math.inf if timeout_s is None else now + timeout_s,
            members=leaf.members(),
            cpu_time_s=leaf.cpu_time_s(),
            refused=leaf.processes_refused(),
            oom_kills=self._sandbox.slot.cgroup.oom_kills(),
        )

    async def _supervise(self, mark: _Mark) -> ExitReason | None:
        """Wait for the end of a command. Return the limit for which it must be ended, if it did not end before."""
        shell = self._shell
        while shell.report is None and not shell.ended:
            now = trio.current_time()
            if now >= mark.wall_end:
                return ExitReason.WALL_TIME
            if shell.stdout.over_limit or shell.stderr.over_limit:
                return ExitReason.OUTPUT
            if self._refused(mark):
                return ExitReason.PROCESSES
            cpu_left_s = self._cpu_left_s(mark)
            if cpu_left_s <= 0:
                return ExitReason.CPU_TIME
            polled = self._limits.processes is not None and shell.command.leaf.events_fd < 0
            await shell.wait_change(
                min(
                    mark.wall_end,
                    now + max(_CPU_PATIENCE_MIN_S, cpu_left_s / (os.cpu_count() or 1)),
                    now + _PROCESSES_PATIENCE_S if polled else math.inf,
                )
            )
        return ExitReason.PROCESSES if self._refused(mark) else None

    def _refused(self, mark: _Mark) -> bool:
        return self._limits.processes is not None and self._shell.command.leaf.processes_refused() > mark.refused

    def _cpu_left_s(self, mark: _Mark) -> float:
        if self._limits.cpu_time_s is None:
            return math.inf
        return self._limits.cpu_time_s - (self._shell.command.leaf.cpu_time_s() - mark.cpu_time_s)

    def _finish(self, mark: _Mark, stopped_for: ExitReason | None) -> SessionResult:
        shell, report = self._shell, self._shell.report
        out_of_memory = self._sandbox.slot.cgroup.oom_kills() > mark.oom_kills
        if report is None:
            raise shell.end_error(ExitReason.MEMORY if out_of_memory else stopped_for)
        interrupted = self._interrupted and report.status == INTERRUPTED
        reason = stopped_for or (ExitReason.SIGNALED if interrupted else ExitReason.EXITED)
        if out_of_memory:
            reason = ExitReason.MEMORY
        if reason is ExitReason.WALL_TIME:
            report = report._replace(status=TIMED_OUT)
        self._before = report
        (stdout, stdout_truncated), (stderr, stderr_truncated) = shell.stdout.end(), shell.stderr.end()
        return SessionResult(
            exit_reason=reason,
            exit_code=report.status,
            stdout=stdout,
            stderr=stderr,
            stdout_truncated=stdout_truncated,
            stderr_truncated=stderr_truncated,
            wall_time_s=trio.current_time() - mark.time,
            cpu_time_s=shell.command.leaf.cpu_time_s() - mark.cpu_time_s,
        )


@contextlib.asynccontextmanager
async def open_session(sandbox: Sandbox, wishes: Wishes) -> AsyncIterator[Session]:
    """Open a session for the block.

    Raises UsageError when the sandbox has no bash that can serve one, HostError where nothing tells processes apart.
    """
    if Degradation.CONTROL_GROUPS in sandbox.degraded:
        what, advice = MISSING[Degradation.CONTROL_GROUPS]
        raise HostError(f"a session cannot tell its commands from others, since {what}; {advice}")
    session = await Session.open(sandbox, await resolve(sandbox, ["bash"], wishes))
    try:
        yield session
    finally:
        await session.aclose()


def _start_error(shell: Shell, spec: CommandSpec) -> Exception:
    """Return what to raise when bash did not come to its first report."""
    failure = shell.command.outcome.failure
    if failure is not None:
        failed = failure_error(failure, spec)
        if isinstance(failed, CommandNotFoundError):
            return UsageError(
                "a session needs bash, and there is none on the PATH of the sandbox: dash and busybox cannot serve one;"
                " use a rootfs with bash, or run() for single commands"
            )
        return failed
    error = shell.end_error(None)
    if isinstance(error, SessionEndedError):
        said = error.stderr.decode("utf-8", "replace").strip()
        return UsageError(f"the bash of the sandbox cannot serve a session: it ended at once, and said {said!r}")
    return error
