"""What comes of a measurement of many sandboxes: values, goals and tables. It only prints."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table

from bench.density_memory import Counts, Memory
from bench.report import Goal, empty_table, print_measurement
from bench.samples import Machine, quantile
from bench.tools import Rate
from minisandbox.kernel.capacity import Ceiling

KIB = 1024

LABELS = {
    "bare": "bare process",
    "start_run_gone": "minisandbox: start, run, gone",
    "run_in_live": "minisandbox: run in one of the live",
    "bubblewrap": "bubblewrap",
    "nsjail": "nsjail",
}

SHOWN_SLABS = 8


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured beside so many live sandboxes."""

    live: int
    memory: Memory
    """What there is more than before the supervisor was opened."""
    latency_s: dict[str, list[float]]
    """By subject, one at a time."""
    steps_s: dict[str, list[float]]
    """By step of minisandbox's own start, run and end."""
    rates: dict[str, Rate]
    """By subject, several at once."""
    fds: dict[str, int]
    """Descriptors of each process that has some for every sandbox."""

    def quantile(self, key: str, fraction: float) -> float:
        """Return the time that this fraction of the starts kept within, in seconds. Raises KeyError if not measured."""
        return quantile(self.latency_s[key], fraction)

    def each(self, name: str) -> float:
        """Return KiB of one part for each sandbox."""
        return self.memory.parts[name] / self.live / KIB


class DensityReport(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement. `skipped` says why a subject is missing."""

    format: int = 1
    machine: Machine
    levels: list[Level]
    opened_s: list[float]
    """How long each sandbox took to open and run its first command, in the order in which they were opened."""
    close_s: float
    """How long closing all of them took, with the supervisor and its launcher."""
    settle_s: float
    """How long the kernel took after that until everything was gone."""
    before: Counts
    after: Counts
    capacity: list[Ceiling]
    """What the host allowed before it began, that which comes first before the others."""
    skipped: dict[str, str]

    @property
    def top(self) -> Level:
        """The level with the most sandboxes."""
        return self.levels[-1]

    def slower(self, key: str) -> float:
        """Return the median beside the most sandboxes as a multiple of that beside the fewest."""
        return self.top.quantile(key, 0.5) / self.levels[0].quantile(key, 0.5)

    def slower_than_bare(self) -> float:
        """Return the same of a start in multiples of a bare process at the same time: others slow both."""
        return self.slower("start_run_gone") / self.slower("bare")

    def left(self) -> dict[str, int]:
        """Return what there was more afterwards than before, of what must not be more."""
        before, after = msgspec.structs.asdict(self.before), msgspec.structs.asdict(self.after)
        return {name: after[name] - before[name] for name in before}


Rows = Callable[[DensityReport], list[tuple[str, list[str]]]]
"""Returns the rows of a table by their names, with a figure for each level."""

DENSITY_GOALS: tuple[Goal[DensityReport], ...] = (
    Goal("memory of each of the most", lambda report: report.top.memory.total / report.top.live / KIB, 700, unit="KiB"),
    Goal("descriptors, each of the most", lambda report: max(report.top.fds.values()) / report.top.live, 1.5, unit=""),
    Goal("p50, start, run, gone beside the most / the fewest", lambda report: report.slower("start_run_gone"), 1.2),
    Goal("the same in multiples of a bare process", lambda report: report.slower_than_bare(), 1.2),
    Goal("until all are closed and gone", lambda report: report.close_s + report.settle_s, 60, unit="s"),
)
"""What the project sets itself for 10,000."""


def print_density(console: Console, report: DensityReport) -> None:
    """Print everything that was measured, and what it means for the goals."""
    first = report.capacity[0]
    shown: tuple[RenderableType, ...] = (
        *(levels_table(report, title, rows) for title, rows in TABLES),
        f"comes first       {first.name}: {first.limit:,}, {first.used:,} used, so {first.allows:,} sandboxes",
        f"closed            in {report.close_s:.1f} s, and gone {report.settle_s:.1f} s later",
        f"more than before  {', '.join(f'{value:,} {name}' for name, value in report.left().items())}",
    )
    print_measurement(console, report, DENSITY_GOALS, shown, skipped=report.skipped)


def levels_table(report: DensityReport, title: str, rows: Rows) -> Table:
    """Return a table with a column for each level."""
    table = empty_table(f"{title}, by the number live", (f"{level.live:,}" for level in report.levels))
    for name, figures in rows(report):
        table.add_row(name, *figures)
    return table


def memory_rows(report: DensityReport) -> list[tuple[str, list[str]]]:
    """Return each part, their sum, and the largest slabs."""
    rows = [(name, [f"{level.each(name):,.1f}" for level in report.levels]) for name in report.top.memory.parts]
    rows.append(("all of these", [f"{level.memory.total / level.live / KIB:,.1f}" for level in report.levels]))
    fell = [f"{level.memory.unavailable / level.live / KIB:,.1f}" for level in report.levels]
    rows.append(("less available on the host", fell))
    largest = sorted(report.top.memory.slabs, key=lambda name: -report.top.memory.slabs[name])[:SHOWN_SLABS]
    for name in largest:
        cells = [f"{level.memory.slabs.get(name, 0) / level.live / KIB:,.1f}" for level in report.levels]
        rows.append((f"of slab: {name}", cells))
    rows += [
        (f"descriptors of the {name}", [f"{level.fds[name] / level.live:,.2f}" for level in report.levels])
        for name in report.top.fds
    ]
    return rows


def latency_rows(report: DensityReport) -> list[tuple[str, list[str]]]:
    """Return medians and tails of one start after the other beside those that live, of each subject."""
    return [
        (
            LABELS[key],
            [f"{level.quantile(key, 0.5) * 1e3:.2f}, {level.quantile(key, 0.99) * 1e3:.2f}" for level in report.levels],
        )
        for key in report.top.latency_s
    ]


def rate_rows(report: DensityReport) -> list[tuple[str, list[str]]]:
    """Return the starts a second of each subject."""
    rates = [(key, [level.rates[key] for level in report.levels]) for key in report.top.rates]
    return [(LABELS[key], [f"{rate.starts / rate.seconds:,.0f}" for rate in each]) for key, each in rates]


def step_rows(report: DensityReport) -> list[tuple[str, list[str]]]:
    """Return the median of each step: where the time of a start goes."""
    return [
        (name, [f"{statistics.median(level.steps_s[name]) * 1e6:,.0f}" for level in report.levels])
        for name in report.top.steps_s
        if all(name in level.steps_s for level in report.levels)
    ]


TABLES: tuple[tuple[str, Rows], ...] = (
    ("KiB for each sandbox", memory_rows),
    ("one at a time, p50 and p99 in milliseconds", latency_rows),
    ("starts a second with several at once", rate_rows),
    ("each step, median in microseconds", step_rows),
)
"""In the order in which they are printed."""
