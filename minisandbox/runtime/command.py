"""One command in a sandbox: what is asked of init, what is watched while it runs, and what came of it.

Owns the pipes and the control group leaf of the command. The processes are started and reaped by init.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from minisandbox.errors import (
    BrokenError,
    ClosedError,
    CommandNotExecutableError,
    CommandNotFoundError,
    SandboxError,
    StartError,
    UsageError,
)
from minisandbox.kernel.descriptors import open_pipe, open_to_all
from minisandbox.kernel.protocol import Record, RecordKind, Request, Stage, stage_name
from minisandbox.runtime.capture import Capture, Feed
from minisandbox.spec import ExitReason, Limits

if TYPE_CHECKING:
    from minisandbox.kernel.cgroup import RunCgroup
    from minisandbox.kernel.reactor import Reactor
    from minisandbox.runtime.observer import Observer
    from minisandbox.runtime.standing import Standing

OnData = Callable[[bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A command with everything resolved: words for init, nothing left to look up."""

    argv: Sequence[str]
    env: tuple[str, ...]
    """Words of the form `--env=NAME=VALUE`."""
    cwd: str
    uid: int
    gid: int
    capabilities: int
    limits: Limits
    stdin: bytes = b""
    on_stdout: OnData | None = None
    on_stderr: OnData | None = None


@dataclass(slots=True)
class Outcome:
    """What init reported about a command."""

    wait_status: int | None = None
    ended_ns: int = 0
    disk_bytes: int = 0
    disk_inodes: int = 0
    failure: Record | None = None
    opened_fd: int = -1


class Command:
    """A command from its request to its end. `ended` is set when init reaped the main process or the sandbox broke."""

    def __init__(self, number: int, leaf: RunCgroup, observer: Observer) -> None:
        self.number = number
        self.leaf = leaf
        self.observer = observer
        self.observed = False
        """Whether the observer was told that it began, and not yet how it ended."""
        self.ended = trio.Event()
        self.drained = trio.Event()
        self.changed = trio.Event()
        self.outcome = Outcome()
        self.asked = False
        """Whether init was asked for it, and will report its end."""
        self.broken: BrokenError | ClosedError | None = None
        self.stopped_for: ExitReason | None = None
        self.stdout: Capture | None = None
        self.stderr: Capture | None = None
        self.feed: Feed | None = None
        self.standing: Standing | None = None
        """How it is told what it is to do, if it was started ahead."""

    def take(self, record: Record, fd: int) -> None:
        """Take one record of init about this command."""
        outcome = self.outcome
        if record.kind == RecordKind.DISK:
            outcome.disk_bytes, outcome.disk_inodes = record.value, record.item
        elif record.kind == RecordKind.OPENED:
            outcome.opened_fd = fd
            fd = -1
        elif record.kind == RecordKind.FAILED:
            outcome.failure = record
            if record.stage in (
                Stage.COMMAND_WARM,
                Stage.COMMAND_CLONE,
                Stage.REQUEST,
            ):  # there is no child that could end
                self._end()
        elif record.kind == RecordKind.EXIT:
            outcome.wait_status, outcome.ended_ns = record.value, record.time_ns
            self._end()
        if fd >= 0:
            os.close(fd)

    def break_(self, error: BrokenError | ClosedError) -> None:
        """The sandbox is gone, and this command with it."""
        self.broken = error
        self._end()

    def stop(self, reason: ExitReason) -> None:
        """Kill the whole tree of the command for a limit; the first reason stays."""
        if self.stopped_for is None and not self.ended.is_set():
            self.stopped_for = reason
            self.leaf.kill()

    def on_stream(self) -> None:
        """A stream ended or passed its limit, or the one who watches it failed."""
        if any(stream is not None and (stream.over_limit or stream.error) for stream in (self.stdout, self.stderr)):
            self.stop(ExitReason.OUTPUT)
        if self.ended.is_set() and self._streams_ended():
            self.drained.set()
        self.changed.set()
        self.changed = trio.Event()

    @property
    def paused(self) -> bool:
        """Whether a stream waits for the one who watches it."""
        return any(stream is not None and stream.paused for stream in (self.stdout, self.stderr))

    def on_processes(self) -> None:
        """The kernel refused a process of the command for its limit."""
        if self.leaf.processes_refused() > 0:
            self.stop(ExitReason.PROCESSES)

    def _streams_ended(self) -> bool:
        return all(stream is None or stream.ended for stream in (self.stdout, self.stderr))

    def _end(self) -> None:
        self.ended.set()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.drain()
        if self._streams_ended():
            self.drained.set()

    def close_streams(self) -> None:
        """Give the pipes back, whoever still holds their other ends."""
        if self.observed:
            self.observed = False
            self.observer.command_dropped(self.number)
        for stream in (self.stdout, self.stderr, self.feed, self.standing):
            if stream is not None:
                stream.close()


@dataclass(slots=True)
class Pipes:
    """The ends of a command's standard streams that are passed to init, to be closed once they were sent."""

    stdio: list[int] = field(default_factory=list)
    """Descriptors for init: stdin (unless nothing is fed), stdout, stderr."""
    owned: list[int] = field(default_factory=list)

    def add(self, fd: int) -> None:
        """Take the next stream, to be closed by `close`.

        Programs may open it again by name (/dev/stderr) as users that do not own the pipe. Nobody else can reach it.
        """
        open_to_all(fd)
        self.stdio.append(fd)
        self.owned.append(fd)

    def close(self) -> None:
        """Close what is not borrowed."""
        while self.owned:
            os.close(self.owned.pop())


def open_streams(command: Command, spec: CommandSpec, reactor: Reactor) -> Pipes:
    """Make the pipes of a command and start to serve our ends. Returns the ends for init."""
    pipes = Pipes()
    limits = spec.limits
    if spec.stdin:
        read_fd, write_fd = open_pipe()
        pipes.add(read_fd)
        command.feed = Feed(reactor, write_fd, spec.stdin)

    def capture(limit_bytes: int | None, on_data: OnData | None) -> Capture:
        read_fd, write_fd = open_pipe()
        pipes.add(write_fd)
        return Capture(
            reactor,
            read_fd,
            kept_bytes=limits.output_kept_bytes,
            limit_bytes=limit_bytes,
            on_data=on_data,
            on_change=command.on_stream,
        )

    try:
        command.stdout = capture(limits.stdout_bytes, spec.on_stdout)
        command.stderr = capture(limits.stderr_bytes, spec.on_stderr)
    except StartError:
        pipes.close()
        raise
    return pipes


MakeRequest = Callable[[Command, CommandSpec, Sequence[int]], Request]
"""From a command and its streams to what init is asked."""


def common_request(verb: str, command: Command, stdio: Sequence[int]) -> Request:
    """Return the part of a request that commands and file transfers share: number, cgroups, streams."""
    request = Request(verb).option("id", command.number)
    if command.leaf.dir_fd >= 0:
        request.descriptor("cgroup", command.leaf.dir_fd)
    for fd in command.leaf.tasks_fds:
        request.descriptor("tasks", fd)
    for fd in stdio:
        request.descriptor("stdio", fd)
    return request


def run_request(command: Command, spec: CommandSpec, stdio: Sequence[int]) -> Request:
    """Return the request that makes init start the command, and tell its observer."""
    command.observed = True
    command.observer.command_began(command.number, spec.argv)
    request = common_request("run", command, stdio)
    add_rights(request, spec, len(stdio))
    request.words.extend(spec.env)
    return request.command(spec.argv)


def add_rights(request: Request, spec: CommandSpec, streams: int) -> None:
    """Add where and as whom a command runs and its limits."""
    words = request.words
    words.append(f"--cwd={spec.cwd}")
    words.append(f"--uid={spec.uid}")
    words.append(f"--gid={spec.gid}")
    words.append(f"--capabilities={spec.capabilities}")
    words.append("--rlimit=core:1")  # 0 would still start a handler to which cores are piped (core(5))
    if streams < 3:
        words.append("--null-stdin")
    if spec.limits.open_files is not None:
        words.append(f"--rlimit=nofile:{spec.limits.open_files}")
    if spec.limits.cpu_time_s is not None:  # only a second line of defence: it counts each process for itself
        words.append(f"--rlimit=cpu:{int(spec.limits.cpu_time_s) + 2}")


def failure_error(record: Record, spec: CommandSpec) -> SandboxError:
    """Return the exception for a command that could not be started."""
    name = spec.argv[0]
    if record.stage == Stage.COMMAND_EXEC:
        if record.error in (errno.ENOENT, errno.ENOTDIR):
            return CommandNotFoundError(name)
        if record.error == errno.E2BIG:
            return UsageError(f"cannot run {name}: its arguments and variables are too long for this kernel")
        return CommandNotExecutableError(name, record.error)
    if record.stage == Stage.COMMAND_CWD:
        return UsageError(f"cannot run {name}: working directory {spec.cwd}: {os.strerror(record.error)}")
    return StartError(f"cannot run {name}", stage_name(record.stage), record.error, record.item)
