"""What comes of a measurement of snapshots, forks, restores and templates: values, goals and tables. It only prints."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.table import Table

from bench.report import Goal, empty_table, milliseconds, print_measurement
from bench.samples import Machine, Timed

EMPTY = "empty_start"
"""The subject that restores and forks are compared with."""

EMPTY_AFTER = "empty_after"
"""The same when state was just written, as it was when forks are timed: the memory for that takes what caches held."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Every time that was measured of one thing, by how much there was of another."""

    label: str
    seconds: dict[int, list[float]]

    def medians(self) -> dict[int, float]:
        """Return the median at each place, in order."""
        return {at: statistics.median(self.seconds[at]) for at in sorted(self.seconds)}


class StateReport(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement. `skipped` says why a subject is missing."""

    format: int = 1
    machine: Machine
    held_bytes: int
    """What the sandboxes hold that are forked and restored."""
    subjects: dict[str, Timed]
    by_size: dict[str, Curve]
    by_depth: dict[str, Curve]
    by_layers: dict[str, Curve]
    by_siblings: dict[str, Curve]
    by_forks: dict[str, Curve]
    skipped: dict[str, str]

    def ratio(self, key: str, base: str) -> float:
        """Return a median as a multiple of another."""
        return self.subjects[key].quantile(0.5) / self.subjects[base].quantile(0.5)


STATE_GOALS: tuple[Goal[StateReport], ...] = (
    Goal(
        "p50, fork of a sandbox that holds state / empty start",
        lambda report: report.ratio("fork", EMPTY),
        at_most=1.5,
    ),
    Goal("p50, restore in place / empty start", lambda report: report.ratio("restore", EMPTY), at_most=1.0),
    Goal(
        "p50, numpy, cold / warm, both started ahead",
        lambda report: report.ratio("ahead_cold_numpy", "ahead_warm_numpy"),
        at_least=20,
    ),
    Goal(
        "p50, print(1), cold / warm, both started ahead",
        lambda report: report.ratio("ahead_cold_print", "ahead_warm_print"),
        at_least=4,
    ),
    Goal(
        "p50, numpy, cold / warm, nothing started ahead",
        lambda report: report.ratio("cold_numpy", "warm_numpy"),
        at_least=20,
    ),
    Goal(
        "p50, print(1), cold / warm, nothing started ahead",
        lambda report: report.ratio("cold_print", "warm_print"),
        at_least=4,
    ),
)


def print_state(console: Console, report: StateReport) -> None:
    """Print everything that was measured, and what it means for the goals."""
    curves = [curve_table(title, curves, at) for title, curves, at in curve_sets(report) if curves]
    print_measurement(console, report, STATE_GOALS, (subjects_table(report), *curves), skipped=report.skipped)


def curve_sets(report: StateReport) -> tuple[tuple[str, dict[str, Curve], Callable[[int], str]], ...]:
    """Return what the curves are drawn over, and how a place on them is called."""
    return (
        ("by what the sandbox holds, median in milliseconds", report.by_size, size_text),
        ("by snapshots upon each other, median in milliseconds", report.by_depth, str),
        ("by layers that were not made fewer, median in milliseconds of 1,000 calls", report.by_layers, str),
        ("by siblings at once, median in milliseconds", report.by_siblings, "{:,}".format),
        ("by forks of one template at once, median in milliseconds", report.by_forks, str),
    )


def size_text(count: int) -> str:
    """Return a number of bytes as a person says it."""
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def subjects_table(report: StateReport) -> Table:
    """Times of one after the other."""
    table = empty_table("one at a time, in milliseconds", ("p50", "p90", "p99", "x empty", "n"))
    for key, timed in report.subjects.items():
        times = milliseconds(timed.seconds)
        table.add_row(timed.label, *times, f"{report.ratio(key, EMPTY):.2f} x", str(len(timed.seconds)))
    return table


def curve_table(title: str, curves: dict[str, Curve], at: Callable[[int], str]) -> Table:
    """One row for each curve."""
    table = empty_table(title, map(at, sorted(next(iter(curves.values())).seconds)))
    for curve in curves.values():
        table.add_row(curve.label, *(f"{seconds * 1e3:,.2f}" for seconds in curve.medians().values()))
    return table
