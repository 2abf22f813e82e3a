"""The picture of a measurement of verdicts: times, stages, and verdicts in a second."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bench.judge_report import KINDS, JudgeReport
from bench.plot import INK, tidy

PALETTE = ("#0072B2", "#D55E00")
STAGES = ("#E69F00", "#56B4E9", "#009E73")


def draw_judge(report: JudgeReport, file: Path) -> None:
    """Write the picture as a PNG."""
    figure = Figure(figsize=(12, 4.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    times, stages, rates = figure.subplots(1, 3, gridspec_kw={"width_ratios": [1.3, 1.1, 1]})
    draw_times(times, report)
    draw_stages(stages, report)
    draw_rates(rates, report)
    source = f"{report.machine}, load {report.machine.load_1min:.1f}; bench/judge.py, {report.machine.measured_at[:10]}"
    figure.text(0.012, 0.03, source, fontsize=8, color="#666666")
    figure.subplots_adjust(left=0.15, right=0.98, top=0.9, bottom=0.16, wspace=0.24)
    figure.savefig(file)


def draw_times(axes: Axes, report: JudgeReport) -> None:
    """Draw a bar to the median of each subject, with a whisker to its 90th percentile."""
    for row, timed in enumerate(report.subjects.values()):
        median, tail = timed.quantile(0.5) * 1e3, timed.quantile(0.9) * 1e3
        axes.barh(row, median, height=0.56, color=PALETTE[0])
        axes.plot([median, tail], [row, row], color=INK, linewidth=1.2, marker="|")
    axes.set_yticks(range(len(report.subjects)), [timed.label for timed in report.subjects.values()])
    axes.invert_yaxis()
    axes.set_title("p50 (bar) and p90, in ms", fontsize=10.5, loc="left", color=INK)
    tidy(axes, "x")


def draw_stages(axes: Axes, report: JudgeReport) -> None:
    """Draw a bar of the stages of each kind."""
    for row, kind in enumerate(KINDS):
        begin = 0.0
        for colour, (name, share) in zip(STAGES, report.shares(kind).items(), strict=True):
            axes.barh(row, share, left=begin, height=0.5, color=colour, label=None if row else name)
            begin += share
    axes.set_yticks(range(len(KINDS)), KINDS)
    axes.set_ylim(-0.6, len(KINDS) + 0.1)
    axes.legend(fontsize=8, frameon=False, loc="upper left", ncols=3, columnspacing=1.0, handlelength=1.0)
    axes.set_title("Share of each stage, in %", fontsize=10.5, loc="left", color=INK)
    tidy(axes, "x")


def draw_rates(axes: Axes, report: JudgeReport) -> None:
    """Draw a line for each kind."""
    for colour, (kind, rates) in zip(PALETTE, report.rates.items(), strict=True):
        places = sorted(rates)
        values = [report.rate(kind, place) for place in places]
        axes.plot(places, values, marker="o", markersize=5, linewidth=2, color=colour, label=kind)
        axes.set_xscale("log")
        axes.set_xticks(places, [str(place) for place in places])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    axes.set_title("Verdicts/s, by the number at once", fontsize=10.5, loc="left", color=INK)
    tidy(axes, "y")
