"""Many sandboxes asked for at once, and the probe on a reserved core, by the benchmark of both."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from bench import burst, neighbours
from bench.burst import MOST_TIMES, Burst, Waited, measure
from bench.samples import look_at_machine

SLACK = 4.0
"""Tests run on machines that are busy with others."""


@pytest.mark.slow
@pytest.mark.requires_root
async def test_a_burst_is_served_whole_in_order_and_in_time(tmp_path: Path) -> None:
    """Two hundred where sixteen may be open: none fails, few are passed by, no wait is too long."""
    with trio.fail_after(240):
        report = await measure(200, 20, 16, 0.5)
    moved = [abs(each.opened_as - place) for place, each in enumerate(report.burst)]
    burst.draw(report, tmp_path / "burst.png")

    assert ([], 200) == (report.failed, len(report.burst))
    assert max(moved) <= 16
    assert report.times() < SLACK * MOST_TIMES
    assert {"reserved", "shared"} == report.late_s.keys()
    assert (tmp_path / "burst.png").stat().st_size > 0


def test_what_follows_from_samples() -> None:
    """The slowest of a hundred, by what one alone takes and its place."""
    report = Burst(
        machine=look_at_machine(),
        max_sandboxes=1,
        alone_s=[0.01],
        burst=[Waited(open_s=0.02 * (place + 1), opened_as=place) for place in range(100)],
        failed=[],
        seconds=2.0,
        reserved="",
        late_s={},
    )

    assert 2.0 < report.times() < 2.1


def test_a_broken_promise_is_named() -> None:
    """By the kind of hog: a median that is too high, and each wrong result."""
    slow = neighbours.Effect(hog="slow", without_s=[0.01], beside_s=[0.05], wrong=[], hog_runs=1)
    wrong = neighbours.Effect(hog="wrong", without_s=[0.01], beside_s=[0.01], wrong=["exited b''"], hog_runs=1)
    report = neighbours.Neighbours(machine=look_at_machine(), sandboxes=1, effects=[slow, wrong])

    assert ["wrong: exited b''", "slow: the median is 5.00 times that without it"] == report.broken()
