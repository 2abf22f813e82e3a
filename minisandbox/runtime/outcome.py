"""How a command ended, from what was reported and counted: pure functions."""

from __future__ import annotations

import os

import msgspec

from minisandbox.spec import ExitReason, Limits


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What the control groups of a command counted by its end; None where this host cannot tell."""

    cpu_time_s: float | None
    memory_peak_bytes: int | None
    memory_held_bytes: int | None
    processes_peak: int | None
    processes_refused: int
    oom_kills: int
    disk_bytes: int
    disk_inodes: int


def exit_of(wait_status: int) -> tuple[int | None, int | None]:
    """Return the exit code and the signal of a wait status (waitpid(2)); one of them is None."""
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), None


def disk_is_full(counters: Counters, limits: Limits) -> bool:
    """Return whether a file system of these limits has no page or no inode left."""
    bytes_full = limits.disk_bytes is not None and counters.disk_bytes + os.sysconf("SC_PAGESIZE") > limits.disk_bytes
    inodes_full = limits.disk_inodes is not None and counters.disk_inodes >= limits.disk_inodes
    return bytes_full or inodes_full


LIMIT_SLACK_BYTES = 4 << 20
"""How far below its limit a group may be when the kernel kills in it: what is held ready for each CPU, a huge page."""


def is_killed_for_others(counters: Counters, limits: Limits) -> bool:
    """Return whether processes were killed for memory though the sandbox was not near its own limit.

    Then the host ran out, or all sandboxes together did, which is nothing that the program did.
    """
    if counters.oom_kills == 0 or counters.memory_peak_bytes is None or counters.memory_held_bytes is None:
        return counters.oom_kills > 0 and limits.memory_bytes is None
    used = counters.memory_peak_bytes + counters.memory_held_bytes
    return limits.memory_bytes is None or used + LIMIT_SLACK_BYTES < limits.memory_bytes


def decide_reason(wait_status: int, stopped_for: ExitReason | None, counters: Counters, limits: Limits) -> ExitReason:
    """Return the one reason why a command ended.

    What the kernel counted goes before what we stopped it for, since a tree that was out of memory or processes may
    hang until its time is up. A full disk is to blame only for a command that failed.
    """
    code, signal = exit_of(wait_status)
    if counters.oom_kills > 0:
        return ExitReason.MEMORY
    if counters.processes_refused > 0:
        return ExitReason.PROCESSES
    if stopped_for is not None:
        return stopped_for
    cpu = counters.cpu_time_s
    if limits.cpu_time_s is not None and cpu is not None and cpu >= limits.cpu_time_s:
        return ExitReason.CPU_TIME
    if (code != 0) and disk_is_full(counters, limits):
        return ExitReason.DISK
    return ExitReason.SIGNALED if signal is not None else ExitReason.EXITED
