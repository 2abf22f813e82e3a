"""One reason for every end, from what was counted."""

from __future__ import annotations

import signal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.runtime.outcome import Counters, decide_reason, disk_is_full, exit_of, is_killed_for_others
from minisandbox.spec import ExitReason, Limits

CALM = Counters(
    cpu_time_s=0.1,
    memory_peak_bytes=1,
    memory_held_bytes=0,
    processes_peak=1,
    processes_refused=0,
    oom_kills=0,
    disk_bytes=0,
    disk_inodes=0,
)
OK, FAILED, KILLED = 0, 1 << 8, signal.SIGKILL
STOPPED = st.sampled_from([None, ExitReason.WALL_TIME, ExitReason.CPU_TIME, ExitReason.OUTPUT, ExitReason.PROCESSES])
STATUS = st.sampled_from([OK, FAILED, KILLED, signal.SIGSEGV])


def counters(**changes: Any) -> Counters:
    """Counters of a calm command, but for these."""
    return msgspec.structs.replace(CALM, **changes)


def test_wait_statuses_are_told_apart() -> None:
    """An exit code and a signal never come together."""
    assert exit_of(3 << 8) == (3, None)
    assert exit_of(signal.SIGSEGV | 0x80) == (None, signal.SIGSEGV)  # with a core dump


@given(STATUS, STOPPED)
def test_an_out_of_memory_kill_is_always_the_reason(status: int, stopped_for: ExitReason | None) -> None:
    """Also when only a child was killed, and when the rest then hung until its time was up."""
    assert decide_reason(status, stopped_for, counters(oom_kills=1), Limits()) is ExitReason.MEMORY


@given(STATUS, STOPPED)
def test_a_refused_process_is_the_reason_unless_memory_is(status: int, stopped_for: ExitReason | None) -> None:
    """A fork bomb is one also when its wall time ends it."""
    assert decide_reason(status, stopped_for, counters(processes_refused=3), Limits()) is ExitReason.PROCESSES


@given(STATUS)
def test_what_it_was_stopped_for_is_the_reason(status: int) -> None:
    """The signal that we sent is not the program's."""
    assert decide_reason(status, ExitReason.WALL_TIME, CALM, Limits()) is ExitReason.WALL_TIME


def test_a_program_that_used_its_cpu_time_up_just_before_it_ended_is_over() -> None:
    """Between two looks it may have ended by itself, or by the per-process limit."""
    assert decide_reason(OK, None, counters(cpu_time_s=2.0), Limits(cpu_time_s=1.5)) is ExitReason.CPU_TIME


def test_a_full_disk_is_the_reason_only_of_a_failure() -> None:
    """A program that coped with a full disk did cope."""
    full, limits = counters(disk_bytes=1 << 20), Limits(disk_bytes=1 << 20)

    assert decide_reason(FAILED, None, full, limits) is ExitReason.DISK
    assert decide_reason(OK, None, full, limits) is ExitReason.EXITED


def test_no_inode_left_is_a_full_disk() -> None:
    """Bytes or inodes, whichever ends first."""
    limits = Limits(disk_bytes=1 << 20, disk_inodes=10)

    assert disk_is_full(counters(disk_inodes=10), limits)
    assert not disk_is_full(counters(disk_inodes=9), limits)


def test_a_signal_without_a_limit_is_a_signal() -> None:
    """A crash is a crash."""
    assert decide_reason(signal.SIGSEGV, None, CALM, Limits()) is ExitReason.SIGNALED


@given(STATUS, STOPPED, st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.floats(0, 10))
def test_success_needs_an_exit_code_0_and_calm_counters(
    status: int, stopped_for: ExitReason | None, oom: int, refused: int, disk: int, cpu: float
) -> None:
    """No combination of counters gives a plain exit where a limit was hit."""
    counted = counters(oom_kills=oom, processes_refused=refused, disk_bytes=disk << 20, cpu_time_s=cpu)
    reason = decide_reason(status, stopped_for, counted, Limits(cpu_time_s=5.0, disk_bytes=2 << 20))

    if reason is ExitReason.EXITED:
        assert (oom, refused, stopped_for) == (0, 0, None)
        assert cpu < 5.0


@pytest.mark.parametrize(
    ("kills", "peak", "limit", "for_others"),
    [
        (0, 1 << 20, 1 << 30, False),
        (1, 1 << 20, 1 << 30, True),
        (1, (1 << 30) - 4096, 1 << 30, False),
        (1, None, 1 << 30, False),
        (1, None, None, True),
        (1, 1 << 20, None, True),
    ],
)
def test_a_kill_for_memory_far_below_the_limit_is_not_the_program_s(
    kills: int, peak: int | None, limit: int | None, for_others: bool
) -> None:
    """The host ran out then; where the peak is not known, the limit is to blame as far as there is one."""
    counted = msgspec.structs.replace(counters(oom_kills=kills), memory_peak_bytes=peak, memory_held_bytes=0)

    assert for_others == is_killed_for_others(counted, Limits(memory_bytes=limit))
