"""What came of the programs of a run, as values, and the table that a person reads."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

PASSED = "passed"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one program. `total_s` runs from the request for a sandbox until that is gone."""

    task: str
    ending: str
    start_s: float
    total_s: float
    memory_peak_bytes: int | None
    stderr: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of all programs; `outcomes` are fewer than `programs` when it was interrupted."""

    programs: int
    concurrency: int
    interrupted: bool
    wall_time_s: float
    outcomes: list[Outcome]

    @property
    def passed(self) -> int:
        """How many passed their tests."""
        return sum(outcome.ending == PASSED for outcome in self.outcomes)


def print_summary(console: Console, summary: Summary) -> None:
    """Print how many ended how, what they took, and the last words of those that did not pass."""
    if summary.interrupted:
        console.print(f"interrupted after {len(summary.outcomes)} of {summary.programs}; every sandbox is closed")
    if not summary.outcomes:
        return
    console.print(endings_table(summary), measures_table(summary))
    for outcome in summary.outcomes:
        if outcome.ending != PASSED:
            last = (outcome.stderr.strip().splitlines() or ["(no message)"])[-1]
            console.print(f"{outcome.task}: {outcome.ending}: {last}", markup=False)


def endings_table(summary: Summary) -> Table:
    """How many ended how."""
    table = Table(box=box.SIMPLE)
    table.add_column("ended")
    table.add_column("programs", justify="right")
    for ending, count in Counter(outcome.ending for outcome in summary.outcomes).most_common():
        table.add_row(ending, str(count), style="green" if ending == PASSED else "red")
    table.add_row("all", f"{len(summary.outcomes)} of {summary.programs}", style="bold")
    return table


def measures_table(summary: Summary) -> Table:
    """Time and memory."""
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for heading in ("p50", "p90", "p99", "max"):
        table.add_column(heading, justify="right")
    for name, values in (
        ("start of the sandbox, ms", [outcome.start_s * 1e3 for outcome in summary.outcomes]),
        ("start to gone, ms", [outcome.total_s * 1e3 for outcome in summary.outcomes]),
        (
            "peak memory, MiB",
            [o.memory_peak_bytes / 2**20 for o in summary.outcomes if o.memory_peak_bytes is not None],
        ),
    ):
        table.add_row(name, *(f"{quantile(values, fraction):.1f}" for fraction in (0.5, 0.9, 0.99, 1)))
    rate = len(summary.outcomes) / summary.wall_time_s
    table.caption = f"{rate:.1f} programs a second, {summary.concurrency} at once, {summary.wall_time_s:.1f} s in all"
    return table


def quantile(values: list[float], fraction: float) -> float:
    """Return the smallest value that this fraction of the values does not exceed; not a number when there is none."""
    return sorted(values)[math.ceil(fraction * len(values)) - 1] if values else math.nan
