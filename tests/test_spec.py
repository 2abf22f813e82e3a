"""Limits are checked when they are made, and override each other field by field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.errors import UsageError
from minisandbox.spec import (
    MAX_BYTES,
    MAX_OPEN_FILES,
    MAX_PROCESSES,
    MAX_SECONDS,
    ExitReason,
    Limits,
    Result,
    Timing,
    Usage,
)

NAMES = Limits.__struct_fields__
SECONDS = ("wall_time_s", "cpu_time_s")
FLOATS = (*SECONDS, "cpus")


def valid(name: str) -> st.SearchStrategy[Any]:
    """Values that a limit can have."""
    if name in FLOATS:
        return st.floats(1e-9, MAX_SECONDS if name in SECONDS else float(MAX_BYTES))
    return st.integers(1, {"processes": MAX_PROCESSES, "open_files": MAX_OPEN_FILES}.get(name, MAX_BYTES))


LIMITS = st.fixed_dictionaries({}, optional={name: valid(name) for name in NAMES}).map(lambda fields: Limits(**fields))


@given(st.sampled_from(NAMES), st.one_of(st.integers(max_value=0), st.floats(max_value=0.0), st.just(math.nan)))
def test_no_limit_is_zero_negative_or_not_a_number(name: str, value: Any) -> None:
    """Zero is not a way to say "no limit"."""
    with pytest.raises(UsageError, match=name):
        Limits(**{name: value})


@given(st.sampled_from(NAMES), st.sampled_from([math.inf, 1e300, 10**30, MAX_BYTES + 1]))
def test_an_absurd_limit_is_refused(name: str, value: Any) -> None:
    """A limit nobody can mean is a mistake, said at once."""
    with pytest.raises(UsageError, match=name):
        Limits(**{name: value})


@given(st.sampled_from(NAMES), st.sampled_from(["5", True, b"5", [5]]))
def test_a_limit_of_another_type_is_refused(name: str, value: Any) -> None:
    """Text, truth values and lists are no limits."""
    with pytest.raises(UsageError, match=name):
        Limits(**{name: value})


@given(st.sampled_from([name for name in NAMES if name not in FLOATS]))
def test_counts_are_whole(name: str) -> None:
    """There is no half byte and no half process."""
    half: dict[str, Any] = {name: 1.5}
    with pytest.raises(UsageError, match="integer"):
        Limits(**half)


@given(LIMITS, LIMITS)
def test_overriding_takes_what_the_other_sets(base: Limits, other: Limits) -> None:
    """A field that the other sets wins; one it leaves at its default stays."""
    defaults = Limits()
    merged = base.overridden_by(other)

    for name in NAMES:
        given_value = getattr(other, name)
        expected = getattr(base, name) if given_value == getattr(defaults, name) else given_value
        assert expected == getattr(merged, name)


@given(LIMITS)
def test_overriding_by_nothing_changes_nothing(base: Limits) -> None:
    """None and empty limits override nothing."""
    assert base == base.overridden_by(None) == base.overridden_by(Limits())


@given(LIMITS)
def test_limits_survive_json(limits: Limits) -> None:
    """What is written to a record reads back the same."""
    assert limits == msgspec.json.decode(msgspec.json.encode(limits), type=Limits)


@pytest.mark.parametrize(
    ("reason", "code", "ok"),
    [(ExitReason.EXITED, 0, True), (ExitReason.EXITED, 1, False), (ExitReason.MEMORY, 0, False)],
)
def test_only_an_exit_with_code_0_and_no_limit_is_ok(reason: ExitReason, code: int, ok: bool) -> None:
    """A program that was limited is not ok, whatever its exit code."""
    usage = Usage(
        wall_time_s=0.0,
        cpu_time_s=None,
        memory_peak_bytes=None,
        memory_held_bytes=None,
        processes_peak=None,
        stdout_bytes=0,
        stderr_bytes=0,
        disk_bytes=0,
        disk_inodes=0,
    )
    result = Result(
        exit_reason=reason,
        exit_code=code,
        signal=None,
        stdout=b"",
        stderr=b"",
        stdout_truncated=False,
        stderr_truncated=False,
        usage=usage,
        limits=Limits(),
        timing=Timing(slot_s=0.0, start_s=0.0),
    )

    assert ok == result.ok
