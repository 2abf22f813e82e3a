"""The benchmark of the loop plays episodes in every way, and its report says what the samples say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report import Goal
from bench.rollouts_report import (
    HAND,
    LABELS,
    LOOP,
    PLAIN,
    ROLLOUT_GOALS,
    MemorySample,
    RolloutReport,
    Slow,
    places_of,
    slow_text,
)
from bench.samples import Timed
from bench.tools import Rate
from tests.benchmarks import MACHINE, facts_of, measured, run_quick, table, to_paste


def report_of(loop_s: float, last_bytes: int, playing: int = 2) -> RolloutReport:
    """Make a report whose turns by hand take 4 s, and whose memory begins with 1,000 bytes."""
    memory = [
        MemorySample(seconds=at, playing=playing, own_bytes=own, charged_bytes=None)
        for at, own in ((0.0, 1000), (1.0, 5000), (2.0, last_bytes))
    ]
    return RolloutReport(
        machine=MACHINE,
        turns={
            LOOP: Timed(label="", seconds=[loop_s] * 3),
            HAND: Timed(label="", seconds=[4.0] * 3),
        },
        rates={LOOP: {4: [Rate(starts=10, seconds=1.0), Rate(starts=10, seconds=3.0)]}},
        slow=Slow(episodes=2, rewarded=2, seconds=3.0, memory=memory),
    )


@pytest.mark.parametrize("goal", ROLLOUT_GOALS, ids=lambda goal: goal.text)
def test_goal_is_reached_at_its_bound_and_not_beyond(goal: Goal[RolloutReport]) -> None:
    """The bound itself is good enough, a little more is not."""
    assert "[green]reached" in goal.line(report_of(5.0, 1250))
    assert "[red]not reached" in goal.line(report_of(5.1, 1251))


def test_memory_of_a_crowd_that_never_was_whole_is_not_measured() -> None:
    """It is said, and no goal is reached by it."""
    report = report_of(5.0, 1000, playing=1)

    assert "not measured" in ROLLOUT_GOALS[1].line(report)
    assert "never" in slow_text(report)


def test_throughput_is_of_all_rounds() -> None:
    """All episodes in all seconds, not a mean of means."""
    assert 5.0 == report_of(5.0, 1000).throughput(LOOP, 4)


@pytest.mark.slow
@pytest.mark.requires_root
def test_benchmark_plays_in_every_way(tmp_path: Path, state_dir: Path) -> None:
    """A short run has turns and rates of each, memory of a crowd, a line for each goal, and a picture."""
    report = run_quick("rollouts", RolloutReport, ROLLOUT_GOALS, tmp_path, "--state-dir", state_dir)

    assert {LOOP, HAND} == report.turns.keys()
    assert {LOOP, HAND, PLAIN} == report.rates.keys()
    assert all(timed.seconds for timed in report.turns.values())
    assert all(report.throughput(key, at_once) > 0 for key in report.rates for at_once in places_of(report))
    assert report.slow.episodes == report.slow.rewarded
    assert report.slow.while_all_play()


def page_of(report: RolloutReport) -> str:
    """Return what docs/benchmarks.md says of a measurement."""
    machine, places = report.machine, places_of(report)
    episodes = sum(rate.starts for way in report.rates.values() for rates in way.values() for rate in rates)
    turns = [
        [LABELS[key], *(f"{timed.quantile(part) * 1e3:.2f}" for part in (0.5, 0.9, 0.99)), f"{len(timed.seconds):,}"]
        for key, timed in report.turns.items()
    ]
    rates = [[LABELS[key], *(f"{report.throughput(key, place):,.1f}" for place in places)] for key in report.rates]
    return "\n\n".join(
        [
            facts_of(machine),
            f"A turn that runs `true`; in the loop it takes {report.turn_ratio():.2f} times as long as by hand:",
            table(["", "p50 ms", "p90 ms", "p99 ms", "turns"], turns),
            f"Episodes a second, by the number at once, of {episodes:,} that were played:",
            table(["", *map(str, places)], rates),
            f"{slow_text(report)}.",
        ]
    )


def test_tables_of_the_page_are_what_was_measured() -> None:
    """The figures of the page are those of the samples beside it."""
    report, block = measured("rollouts", RolloutReport)
    expected = page_of(report)

    assert expected == block, to_paste(expected)
