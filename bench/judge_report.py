"""What comes of a measurement of verdicts: values, goals, tables and the picture. It only prints and draws."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console

from bench.report import Goal, empty_table
from bench.samples import Machine
from bench.state_report import Timed
from bench.tools import Rate


class JudgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement."""

    format: int = 1
    machine: Machine
    subjects: dict[str, Timed]
    rates: dict[str, dict[int, list[Rate]]]
    """Verdicts of a kind, by the number at once, one for each round."""

    def p50(self, key: str) -> float:
        """Return a median in seconds."""
        return self.subjects[key].quantile(0.5)

    def ratio(self, key: str, base: str) -> float:
        """Return a median as a multiple of another."""
        return self.p50(key) / self.p50(base)

    def rate(self, kind: str, at_once: int) -> float:
        """Return verdicts in a second over all rounds."""
        rates = self.rates[kind][at_once]
        return sum(rate.starts for rate in rates) / sum(rate.seconds for rate in rates)

    def stages(self, kind: str) -> dict[str, float]:
        """Return the seconds of each stage of a verdict with its ingest, at the median."""
        return {
            "ingest": self.p50("ingest"),
            "cell": self.p50(f"{kind}_cell"),
            "plan, decide, record": max(0.0, self.p50(f"{kind}_verdict") - self.p50(f"{kind}_cell")),
        }

    def shares(self, kind: str) -> dict[str, float]:
        """Return the share of each stage, as a percentage."""
        stages = self.stages(kind)
        return {name: 100 * seconds / sum(stages.values()) for name, seconds in stages.items()}


KINDS = ("function", "stdio")
JUDGE_GOALS: tuple[Goal[JudgeReport], ...] = (
    Goal("p50, function verdict / bare test", lambda report: report.ratio("function_verdict", "bare_test"), at_most=2),
    Goal(
        "p50, stdio verdict / start, run, gone",
        lambda report: report.ratio("stdio_verdict", "start_run_gone"),
        at_most=1.5,
    ),
)


def print_judge(console: Console, report: JudgeReport) -> None:
    """Print everything that was measured, and what it means for the goals."""
    console.print(f"[dim]{report.machine}[/]")
    if report.machine.load_1min > 0.5:
        console.print(f"[yellow]others were using this machine: its load was {report.machine.load_1min:.1f}[/]")
    times = empty_table("in milliseconds", ("p50", "p90", "p99", "n"))
    for timed in report.subjects.values():
        quantiles = [f"{timed.quantile(fraction) * 1e3:.2f}" for fraction in (0.5, 0.9, 0.99)]
        times.add_row(timed.label, *quantiles, str(len(timed.seconds)))
    places = sorted(next(iter(report.rates.values())))
    rates = empty_table("verdicts in a second, by the number at once", map(str, places))
    for kind in report.rates:
        rates.add_row(kind, *(f"{report.rate(kind, place):,.0f}" for place in places))
    shares = empty_table("share of each stage, in %", report.shares(KINDS[0]))
    for kind in KINDS:
        shares.add_row(kind, *(f"{share:.0f}" for share in report.shares(kind).values()))
    console.print(times, rates, shares)
    for goal in JUDGE_GOALS:
        console.print(goal.line(report))


def draw_judge(report: JudgeReport, file: Path) -> None:
    """Write the picture as a PNG: times, stages and rates."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    from bench.plot import INK, tidy

    figure = Figure(figsize=(12, 4.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3, gridspec_kw={"width_ratios": [1.3, 1, 1]})
    for row, timed in enumerate(report.subjects.values()):
        median, tail = timed.quantile(0.5) * 1e3, timed.quantile(0.9) * 1e3
        left.barh(row, median, height=0.56, color="#0072B2")
        left.plot([median, tail], [row, row], color=INK, linewidth=1.2, marker="|")
    left.set_yticks(range(len(report.subjects)), [timed.label for timed in report.subjects.values()])
    left.invert_yaxis()
    left.set_title("p50 (bar) and p90, in ms", fontsize=10.5, loc="left", color=INK)
    tidy(left, "x")
    for row, kind in enumerate(KINDS):
        begin = 0.0
        for colour, (name, share) in zip(("#E69F00", "#56B4E9", "#009E73"), report.shares(kind).items(), strict=True):
            middle.barh(row, share, left=begin, height=0.5, color=colour, label=None if row else name)
            begin += share
    middle.set_yticks(range(len(KINDS)), KINDS)
    middle.set_ylim(-0.8, len(KINDS) + 0.2)
    middle.legend(fontsize=8, frameon=False, loc="upper left", ncols=3)
    middle.set_title("Share of each stage, in %", fontsize=10.5, loc="left", color=INK)
    tidy(middle, "x")
    for colour, kind in zip(("#0072B2", "#D55E00"), report.rates, strict=False):
        places = sorted(report.rates[kind])
        values = [report.rate(kind, place) for place in places]
        right.plot(places, values, marker="o", markersize=5, linewidth=2, color=colour, label=kind)
    right.set_xscale("log")
    right.set_xticks(places, [str(place) for place in places])
    right.xaxis.set_minor_locator(NullLocator())
    right.set_ylim(0, right.get_ylim()[1] * 1.15)
    right.legend(fontsize=8, frameon=False, loc="upper left")
    right.set_title("Verdicts in a second, by the number at once", fontsize=10.5, loc="left", color=INK)
    tidy(right, "y")
    source = f"{report.machine}, load {report.machine.load_1min:.1f}; bench/judge.py, {report.machine.measured_at[:10]}"
    figure.text(0.012, 0.03, source, fontsize=8, color="#666666")
    figure.subplots_adjust(left=0.15, right=0.98, top=0.9, bottom=0.16, wspace=0.24)
    figure.savefig(file)
