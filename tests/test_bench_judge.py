"""The benchmark of verdicts measures every subject, and its page says what the samples say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.judge import AT_ONCE, LABELS
from bench.judge_report import JUDGE_GOALS, KINDS, JudgeReport
from bench.report import Goal
from bench.samples import Timed
from bench.tools import Rate
from tests.benchmarks import MACHINE, facts_of, measured, run_quick, table, to_paste


def report_of(seconds: dict[str, float]) -> JudgeReport:
    """Make a report of subjects that always took the same time."""
    subjects = {key: Timed(label=key, seconds=[value] * 10) for key, value in seconds.items()}
    rates = {kind: {1: [Rate(starts=3, seconds=1.0), Rate(starts=1, seconds=1.0)]} for kind in KINDS}
    return JudgeReport(machine=MACHINE, subjects=subjects, rates=rates)


GOOD = {"bare_test": 1.0, "function_verdict": 2.0, "start_run_gone": 2.0, "stdio_verdict": 3.0}
BAD = {"bare_test": 1.0, "function_verdict": 2.1, "start_run_gone": 2.0, "stdio_verdict": 3.1}


@pytest.mark.parametrize("goal", JUDGE_GOALS, ids=lambda goal: goal.text)
def test_goal_is_reached_at_its_bound_and_not_beyond(goal: Goal[JudgeReport]) -> None:
    """The bound itself is good enough, a little more is not, and what was not measured is said to be so."""
    assert "[green]reached" in goal.line(report_of(GOOD))
    assert "[red]not reached" in goal.line(report_of(BAD))
    assert "not measured" in goal.line(report_of({}))


def test_shares_are_of_the_whole() -> None:
    """What a verdict takes beyond its cell is planning, deciding and recording."""
    report = report_of({"ingest": 1.0, "stdio_cell": 2.0, "stdio_verdict": 3.0})

    assert {"ingest": 25.0, "cell": 50.0, "plan, decide, record": 25.0} == report.shares("stdio")
    assert 2.0 == report.rate("stdio", 1)


def page_of(report: JudgeReport) -> str:
    """Return what docs/benchmarks.md says of a measurement."""
    machine = report.machine
    rows = []
    for timed in report.subjects.values():
        times = [f"{timed.quantile(fraction) * 1e3:.2f}" for fraction in (0.5, 0.9, 0.99)]
        rows.append([timed.label, *times, str(len(timed.seconds))])
    ratios = [
        [goal.text.removeprefix("p50, "), f"{goal.measure(report):.2f}", f"{goal.at_most:g}"] for goal in JUDGE_GOALS
    ]
    shares = [[kind, *(f"{share:.0f}" for share in report.shares(kind).values())] for kind in KINDS]
    rates = [[kind, *(f"{report.rate(kind, number):,.0f}" for number in AT_ONCE)] for kind in KINDS]
    parts = [
        facts_of(machine),
        table(["", "p50 ms", "p90 ms", "p99 ms", "samples"], rows),
        table(["", "x", "at most"], ratios),
        "Share of each stage of a verdict with its ingest, in percent:",
        table(["", *report.shares(KINDS[0])], shares),
        "Verdicts in a second, by the number at once:",
        table(["", *map(str, AT_ONCE)], rates),
    ]
    return "\n\n".join(parts)


def test_tables_of_the_page_are_what_was_measured() -> None:
    """The figures of the page are those of the samples beside it."""
    report, block = measured("judge", JudgeReport)
    expected = page_of(report)

    assert expected == block, to_paste(expected)


@pytest.mark.slow
@pytest.mark.requires_root
def test_benchmark_measures_every_subject(tmp_path: Path) -> None:
    """A short run has samples of each, rates of both kinds, a line for each goal, and a picture."""
    report = run_quick("judge", JudgeReport, JUDGE_GOALS, tmp_path, "--runs", "3")

    assert LABELS.keys() == report.subjects.keys()
    assert all(3 == len(timed.seconds) for timed in report.subjects.values())
    assert all(report.rate(kind, number) > 0 for kind in KINDS for number in AT_ONCE)
