"""The benchmark of starts measures every subject, and its report says what the samples say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.plot import apart
from bench.report import GOALS
from bench.samples import Report, Samples
from bench.tools import Rate
from tests.benchmarks import MACHINE, run_quick

SUBJECTS = {"bare", "start_run_gone", "started_ahead", "nsjail_engine", "run_in_open", "bubblewrap", "nsjail"}


def report_of(latency_s: dict[str, float], starts: dict[str, int]) -> Report:
    """Make a report of subjects that always took the same time."""
    samples = {
        key: Samples(
            label=key,
            command=(),
            latency_s=[seconds] * 10,
            rates={1: [Rate(starts=starts[key], seconds=1.0)], 8: [Rate(starts=1, seconds=1.0)]},
        )
        for key, seconds in latency_s.items()
    }
    return Report(machine=MACHINE, samples=samples, skipped={})


GOOD = report_of(
    {"bare": 1.0, "start_run_gone": 3.0, "started_ahead": 3.0, "run_in_open": 1.5, "bubblewrap": 8.0, "nsjail": 12.0},
    {"bare": 900, "start_run_gone": 500, "started_ahead": 500, "run_in_open": 800, "bubblewrap": 166, "nsjail": 100},
)
BAD = report_of(
    {"bare": 1.0, "start_run_gone": 3.1, "started_ahead": 3.1, "run_in_open": 1.6, "bubblewrap": 8.0, "nsjail": 12.0},
    {"bare": 900, "start_run_gone": 490, "started_ahead": 490, "run_in_open": 800, "bubblewrap": 166, "nsjail": 100},
)
WITHOUT_OURS = report_of({"bare": 1.0, "nsjail": 12.0}, {"bare": 900, "nsjail": 100})


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.text)
def test_goal_is_reached_at_its_bound_and_not_beyond(goal: object) -> None:
    """The bound itself is good enough, a little more is not, and what was not measured is said to be so."""
    assert isinstance(goal, type(GOALS[0]))

    assert "[green]reached" in goal.line(GOOD)
    assert "[red]not reached" in goal.line(BAD)
    assert "not measured" in goal.line(WITHOUT_OURS)


def test_quantile_is_a_sample_that_was_measured() -> None:
    """Half of ten samples are within the fifth, and all are within the last."""
    samples = Samples(label="", command=(), latency_s=[float(number) for number in range(10, 0, -1)], rates={})

    assert [5.0, 9.0, 10.0] == [samples.latency(fraction) for fraction in (0.5, 0.9, 0.99)]


def test_labels_of_lines_do_not_cover_each_other() -> None:
    """Labels keep their order and the distance, and one with room stays where it is."""
    assert {"low": 10.0, "mid": 20.0, "top": 100.0} == apart({"top": 100.0, "mid": 12.0, "low": 10.0}, 2.0)


@pytest.mark.slow
@pytest.mark.requires_root
def test_benchmark_measures_every_subject(tmp_path: Path, state_dir: Path) -> None:
    """A short run has samples of each subject at each number at once, a line for each goal, and a picture."""
    report = run_quick("launch", Report, GOALS, tmp_path, "--runs", "5", "--state-dir", state_dir)

    assert SUBJECTS == report.samples.keys() | report.skipped.keys()
    for samples in report.samples.values():
        assert 5 == len(samples.latency_s)
        assert [1, 2, 8, 32] == sorted(samples.rates)
