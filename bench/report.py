"""What a person reads of a measurement: the tables, and a line for each goal. It only prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from bench.samples import Machine, Report, quantile

R = TypeVar("R")


class Measured(Protocol):
    """A report of any benchmark."""

    @property
    def machine(self) -> Machine:
        """What the figures depend on."""


M = TypeVar("M", bound=Measured)
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Goal(Generic[R]):
    """One figure to reach: a multiple, or another unit, that must be at most or at least a bound."""

    text: str
    measure: Callable[[R], float]
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "x"

    def line(self, report: R) -> str:
        """Say whether the goal is reached, with the figures."""
        wanted = (
            f"at most {self.at_most:g} {self.unit}"
            if self.at_most is not None
            else f"at least {self.at_least:g} {self.unit}"
        )
        try:
            figure = self.measure(report)
        except KeyError as missing:
            return f"[yellow]not measured[/]           {self.text}: {wanted}; {missing.args[0]} is missing"
        too_high = self.at_most is not None and figure > self.at_most
        too_low = self.at_least is not None and figure < self.at_least
        verdict = "[red]not reached[/]" if too_high or too_low else "[green]reached[/]    "
        return f"{verdict} [bold]{figure:7.2f} {self.unit}[/]  {self.text}: {wanted}"


GOALS: tuple[Goal[Report], ...] = (
    Goal("p50, start, run, gone / bare", lambda report: report.ratio("start_run_gone"), at_most=3),
    Goal("p50, started ahead, run, gone / bare", lambda report: report.ratio("started_ahead"), at_most=3),
    Goal("p50, nsjail / start, run, gone", lambda report: slower_than_ours(report, "nsjail"), at_least=4),
    Goal("p50, run in an open sandbox / bare", lambda report: report.ratio("run_in_open"), at_most=1.5),
    Goal("throughput, start, run, gone / bubblewrap", lambda report: faster_than(report, "bubblewrap"), at_least=3),
    Goal("throughput, start, run, gone / nsjail", lambda report: faster_than(report, "nsjail"), at_least=5),
)


def slower_than_ours(report: Report, peer: str) -> float:
    """Compare medians of a start."""
    return report.ratio(peer) / report.ratio("start_run_gone")


def faster_than(report: Report, peer: str) -> float:
    """Compare starts a second, each at the number at once that suits it best."""
    return report.samples["start_run_gone"].best_throughput() / report.samples[peer].best_throughput()


def print_report(console: Console, report: Report) -> None:
    """Print everything that was measured, and what it means for the goals."""
    shown = (latency_table(report), throughput_table(report))
    print_measurement(console, report, GOALS, shown, skipped=report.skipped)


def print_measurement(
    console: Console,
    report: M,
    goals: Iterable[Goal[M]],
    shown: Iterable[RenderableType],
    *,
    skipped: Mapping[str, str] = NOTHING,
) -> None:
    """Print the machine, what is shown of the figures, what could not be measured and why, and each goal."""
    console.print(f"[dim]{report.machine}[/]")
    if report.machine.load_1min > 0.5:
        console.print(f"[yellow]others were using this machine: its load was {report.machine.load_1min:.1f}[/]")
    for each in shown:
        console.print(each)
    for key, reason in skipped.items():
        console.print(f"[yellow]skipped[/]       {key}: {reason}")
    for goal in goals:
        console.print(goal.line(report))


def empty_table(title: str, headings: Iterable[str]) -> Table:
    """Return a table of figures with a name before each row."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def milliseconds(seconds: Sequence[float]) -> list[str]:
    """Return median and tails of times, in milliseconds."""
    return [f"{quantile(seconds, fraction) * 1e3:.2f}" for fraction in (0.5, 0.9, 0.99)]


def latency_table(report: Report) -> Table:
    """Times of one start after the other."""
    table = empty_table("one at a time, in milliseconds", ("p50", "p90", "p99", "x bare", "n"))
    for key, samples in report.samples.items():
        times, number = milliseconds(samples.latency_s), len(samples.latency_s)
        table.add_row(samples.label, *times, f"{report.ratio(key):.2f} x", str(number))
    return table


def throughput_table(report: Report) -> Table:
    """Starts a second with several at once."""
    at_once = sorted(next(iter(report.samples.values())).rates)
    table = empty_table("starts a second, by the number at once", map(str, at_once))
    for samples in report.samples.values():
        table.add_row(samples.label, *(f"{samples.throughput(number):,.0f}" for number in at_once))
    return table
