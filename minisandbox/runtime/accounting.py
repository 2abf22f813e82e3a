"""What a command used: counters are read when it has ended and before its leaf is removed."""

from __future__ import annotations

import errno
import signal

from minisandbox.errors import BrokenError, ProtocolError, SandboxError
from minisandbox.kernel.cgroup import RunCgroup, SlotCgroup
from minisandbox.kernel.protocol import Record, Stage
from minisandbox.runtime.command import Command, CommandSpec, failure_error
from minisandbox.runtime.observer import Spent
from minisandbox.runtime.outcome import Counters, decide_reason, exit_of, is_killed_for_others
from minisandbox.runtime.slots import Slot
from minisandbox.spec import ExitReason, Result, Timing, Usage

_NS = 1e-9

_KILLED_FOR_OTHERS = (
    "the host ran out of memory while this command ran, and the kernel ended it: its own limit was not reached;"
    " run it again with fewer sandboxes at once, or a smaller Admission.memory_overcommit"
)


class MemoryMeter:
    """Memory of one sandbox, told apart by command as far as one control group allows.

    Each command that runs alone begins with a peak of its own. Commands that overlap share the peak since the first of
    them began, and an out-of-memory kill counts for each of them.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._users = 0

    def begin(self) -> MemoryMark:
        """Begin the account of one command, whose leaf is there: so the groups stay its own until the end."""
        self._cgroup = self._slot.cgroup
        held = self._cgroup.memory_current()
        if self._users == 0:
            self._cgroup.reset_memory_peak()
        self._users += 1
        return MemoryMark(held, self._cgroup.oom_kills())

    def end(self, mark: MemoryMark) -> tuple[int | None, int]:
        """Return the peak beyond what was held, in bytes, and the out-of-memory kills since the mark."""
        peak = self._cgroup.memory_peak()
        kills = self._cgroup.oom_kills() - mark.oom_kills
        self.abandon()
        return (None if peak is None else max(0, peak - mark.held_bytes)), kills

    def abandon(self) -> None:
        """End the account of one command without reading it."""
        self._users -= 1
        if self._users == 0:
            self._cgroup.end_memory_peak()


class MemoryMark:
    """Where the memory counters stood when a command began."""

    __slots__ = ("held_bytes", "oom_kills")

    def __init__(self, held_bytes: int, oom_kills: int) -> None:
        self.held_bytes = held_bytes
        self.oom_kills = oom_kills


def count(command: Command, meter: MemoryMeter, mark: MemoryMark) -> Counters:
    """Read all counters of a command that ended."""
    peak, oom_kills = meter.end(mark)
    leaf = command.leaf
    return Counters(
        cpu_time_s=leaf.cpu_time_s() if leaf.tracked else None,
        memory_peak_bytes=peak,
        memory_held_bytes=mark.held_bytes,
        processes_peak=leaf.processes_peak(),
        processes_refused=leaf.processes_refused(),
        oom_kills=oom_kills,
        disk_bytes=command.outcome.disk_bytes,
        disk_inodes=command.outcome.disk_inodes,
    )


def _failed_for_memory(failure: Record, spec: CommandSpec) -> bool:
    """Whether the program could not even begin for want of memory: that is the sandbox's own limit at work.

    execve(2) says E2BIG when it cannot get a page for arguments that are not too many.
    """
    begun = failure.stage > Stage.COMMAND_CLONE
    starved = failure.error == errno.ENOMEM or (failure.stage == Stage.COMMAND_EXEC and failure.error == errno.E2BIG)
    return spec.limits.memory_bytes is not None and begun and starved


def take_back(cgroup: SlotCgroup, leaf: RunCgroup, counters: Counters) -> bool:
    """Keep the leaf of a command that ended for the next one, if it is as good as new, and return whether it is."""
    if counters.cpu_time_s is None:
        return False
    return cgroup.take_back(leaf, counters.cpu_time_s, counters.processes_peak, counters.processes_refused)


def make_result(
    command: Command, spec: CommandSpec, counters: Counters, started_ns: int, timing: Timing, degraded: tuple[str, ...]
) -> Result:
    """Return the result of a command that ran, and tell its observer. Raises what failed when it never did."""
    command.observed = False
    try:
        result = _result_of(command, spec, counters, started_ns, timing, degraded)
    except SandboxError as error:
        command.observer.command_failed(command.number, error)
        raise
    usage = result.usage
    spent = Spent(usage.wall_time_s, usage.cpu_time_s, usage.memory_peak_bytes)
    command.observer.command_ended(command.number, result.exit_reason, result.exit_code, spent)
    return result


def _result_of(
    command: Command, spec: CommandSpec, counters: Counters, started_ns: int, timing: Timing, degraded: tuple[str, ...]
) -> Result:
    outcome, stdout, stderr = command.outcome, command.stdout, command.stderr
    reason = None
    if outcome.failure is not None:
        if not _failed_for_memory(outcome.failure, spec):
            raise failure_error(outcome.failure, spec)
        reason, outcome.wait_status = ExitReason.MEMORY, signal.SIGKILL
    if is_killed_for_others(counters, spec.limits):
        raise BrokenError(_KILLED_FOR_OTHERS)
    if outcome.wait_status is None:
        raise ProtocolError("a command ended without a status")
    for stream in (stdout, stderr):
        if stream is not None and stream.error is not None:
            raise stream.error
    code, number = exit_of(outcome.wait_status)
    return Result(
        exit_reason=reason or decide_reason(outcome.wait_status, command.stopped_for, counters, spec.limits),
        exit_code=code,
        signal=number,
        stdout=stdout.kept() if stdout else b"",
        stderr=stderr.kept() if stderr else b"",
        stdout_truncated=stdout is not None and stdout.truncated,
        stderr_truncated=stderr is not None and stderr.truncated,
        usage=Usage(
            wall_time_s=(outcome.ended_ns - started_ns) * _NS,
            cpu_time_s=counters.cpu_time_s,
            memory_peak_bytes=counters.memory_peak_bytes,
            memory_held_bytes=counters.memory_held_bytes,
            processes_peak=counters.processes_peak,
            stdout_bytes=stdout.total_bytes if stdout else 0,
            stderr_bytes=stderr.total_bytes if stderr else 0,
            disk_bytes=counters.disk_bytes,
            disk_inodes=counters.disk_inodes,
        ),
        limits=spec.limits,
        timing=timing,
        degraded=degraded,
    )
