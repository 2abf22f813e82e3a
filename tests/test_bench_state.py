"""The benchmark of snapshots, forks and templates measures every subject, and its report says what the samples say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.report import Goal
from bench.samples import Timed
from bench.state_report import STATE_GOALS, Curve, StateReport, curve_sets, size_text
from tests.benchmarks import MACHINE, facts_of, measured, run_quick, table, to_paste
from tests.kernel import HAS_MAPPED_MEMORY

OWN = {"empty_start", "empty_after", "empty_life", "restore", "open_snapshot", "fork", "snapshot"}
WARM = {f"{prefix}{way}_{name}" for prefix in ("", "ahead_") for way in ("cold", "warm") for name in ("print", "numpy")}


def report_of(seconds: dict[str, float]) -> StateReport:
    """Make a report of subjects that always took the same time."""
    subjects = {key: Timed(label=key, seconds=[value] * 10) for key, value in seconds.items()}
    return StateReport(
        machine=MACHINE,
        held_bytes=1 << 30,
        subjects=subjects,
        by_size={},
        by_depth={},
        by_layers={},
        by_siblings={},
        by_forks={},
        skipped={},
    )


GOOD = report_of(
    {
        "empty_start": 2.0,
        "empty_after": 2.0,
        "fork": 3.0,
        "restore": 2.0,
        "cold_numpy": 20.0,
        "warm_numpy": 1.0,
        "cold_print": 4.0,
        "warm_print": 1.0,
        "ahead_cold_numpy": 20.0,
        "ahead_warm_numpy": 1.0,
        "ahead_cold_print": 4.0,
        "ahead_warm_print": 1.0,
    }
)
BAD = report_of(
    {
        "empty_start": 2.0,
        "empty_after": 2.0,
        "fork": 3.1,
        "restore": 2.1,
        "cold_numpy": 19.0,
        "warm_numpy": 1.0,
        "cold_print": 3.9,
        "warm_print": 1.0,
        "ahead_cold_numpy": 19.0,
        "ahead_warm_numpy": 1.0,
        "ahead_cold_print": 3.9,
        "ahead_warm_print": 1.0,
    }
)


@pytest.mark.parametrize("goal", STATE_GOALS, ids=lambda goal: goal.text)
def test_goal_is_reached_at_its_bound_and_not_beyond(goal: Goal[StateReport]) -> None:
    """The bound itself is good enough, a little more is not, and what was not measured is said to be so."""
    assert "[green]reached" in goal.line(GOOD)
    assert "[red]not reached" in goal.line(BAD)
    assert "not measured" in goal.line(report_of({"empty_start": 1.0}))


def test_curves_are_of_medians_in_order() -> None:
    """Whatever order they were measured in."""
    curve = Curve(label="", seconds={8: [3.0, 1.0, 2.0], 1: [5.0]})

    assert [(1, 5.0), (8, 2.0)] == list(curve.medians().items())
    assert ("4 MiB", "4 GiB") == (size_text(4 << 20), size_text(4 << 30))


@pytest.mark.slow
@pytest.mark.requires_root
@pytest.mark.skipif(not HAS_MAPPED_MEMORY, reason=f"snapshots need Linux 6.3, this is {os.uname().release}")
def test_benchmark_measures_every_subject(tmp_path: Path, state_dir: Path) -> None:
    """A short run has samples of each, curves of all, a line for each goal, and a picture."""
    report = run_quick("state", StateReport, STATE_GOALS, tmp_path, "--state-dir", state_dir)

    assert OWN | WARM == report.subjects.keys() | report.skipped.keys()
    assert OWN <= report.subjects.keys()
    assert all(timed.seconds for timed in report.subjects.values())
    assert all(curve.seconds for _, curves, _ in curve_sets(report) for curve in curves.values())


def page_of(report: StateReport) -> str:
    """Return what docs/benchmarks.md says of a measurement."""
    machine = report.machine
    rows = []
    for key, timed in report.subjects.items():
        times = [f"{timed.quantile(fraction) * 1e3:.2f}" for fraction in (0.5, 0.9, 0.99)]
        rows.append([timed.label, *times, f"{report.ratio(key, 'empty_start'):.2f}", str(len(timed.seconds))])
    parts = [
        f"{facts_of(machine)} What is held is {size_text(report.held_bytes)}.",
        table(["", "p50 ms", "p90 ms", "p99 ms", "x empty", "samples"], rows),
    ]
    for title, curves, at in filter(lambda each: each[1], curve_sets(report)):
        places = sorted(next(iter(curves.values())).seconds)
        rows = [
            [curve.label, *(f"{seconds * 1e3:,.2f}" for seconds in curve.medians().values())]
            for curve in curves.values()
        ]
        parts += [f"{title[0].upper()}{title[1:]}:", table(["", *map(at, places)], rows)]
    return "\n\n".join(parts)


def test_tables_of_the_page_are_what_was_measured() -> None:
    """The figures of the page are those of the samples beside it."""
    report, block = measured("state", StateReport)
    expected = page_of(report)

    assert expected == block, to_paste(expected)
