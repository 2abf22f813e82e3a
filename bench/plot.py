"""The picture of a measurement: times as multiples of a bare process, and starts a second over the number at once."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.samples import BASE, Report

COLOURS = {  # Okabe and Ito's palette, told apart with any colour vision
    "bare": "#555555",
    "start_run_gone": "#0072B2",
    "started_ahead": "#0072B2",
    "nsjail_engine": "#009E73",
    "run_in_open": "#56B4E9",
    "bubblewrap": "#E69F00",
    "nsjail": "#D55E00",
}
INK, FAINT = "#222222", "#dddddd"


def draw(report: Report, file: Path) -> None:
    """Write the picture as a PNG."""
    figure = Figure(figsize=(12, 4.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    ratios, rates = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.2, 1]})
    draw_ratios(ratios, report)
    draw_rates(rates, report)
    count = min(len(samples.latency_s) for samples in report.samples.values())
    source = f"{report.machine}. {count:,} starts each, interleaved; bench/launch.py, {report.machine.measured_at[:10]}"
    figure.text(0.012, 0.03, source, fontsize=8, color="#666666")
    figure.subplots_adjust(left=0.16, right=0.83, top=0.9, bottom=0.2, wspace=0.2)
    figure.savefig(file)


def draw_ratios(axes: Axes, report: Report) -> None:
    """Draw a bar from bare's median to the subject's, with a whisker to its 90th percentile."""
    keys = list(report.samples)
    widest = max(report.ratio(key, 0.9) for key in keys)
    for row, key in enumerate(keys):
        median, tail = report.ratio(key), report.ratio(key, 0.9)
        axes.barh(row, median - 1, left=1, height=0.56, color=COLOURS[key])
        axes.plot([median, tail], [row, row], color=INK, linewidth=1.2)
        axes.plot([tail], [row], marker="|", markersize=9, color=INK)
        text = f"{median:.1f} x   {report.samples[key].latency(0.5) * 1e3:.2f} ms"
        axes.text(max(tail, 1) * 1.08, row, text, va="center", fontsize=9, color=INK)
    axes.set_title(
        "Start, run `true`, gone: time as a multiple of a bare process", fontsize=10.5, loc="left", color=INK
    )
    axes.set_xscale("log")
    axes.set_xlim(1, widest * 4.5)
    axes.set_xticks([tick for tick in (1, 2, 3, 5, 10, 20, 50, 100) if tick <= widest * 1.3])
    axes.set_xlabel("p50 (bar) and p90 (whisker), log scale", fontsize=9, color=INK)
    axes.set_yticks(range(len(keys)), [report.samples[key].label.replace(": ", ":\n") for key in keys])
    axes.invert_yaxis()
    axes.axvline(1, color=COLOURS[BASE], linewidth=1)
    tidy(axes, "x")


def draw_rates(axes: Axes, report: Report) -> None:
    """Draw a line for each subject, named at its end."""
    ends = {}
    for key, samples in report.samples.items():
        at_once = sorted(samples.rates)
        values = [samples.throughput(number) for number in at_once]
        axes.plot(at_once, values, marker="o", markersize=5, linewidth=2, color=COLOURS[key])
        ends[key] = values[-1]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)
    for key, place in apart(ends, (top / bottom) ** 0.055).items():
        name = report.samples[key].label.removeprefix("minisandbox: ").partition(":")[0]  # there is room for so much
        text = f"{ends[key]:,.0f}  {name}"
        axes.text(at_once[-1] * 1.15, place, text, va="center", fontsize=9, color=COLOURS[key])
    axes.set_title("Starts a second", fontsize=10.5, loc="left", color=INK)
    axes.set_xticks(at_once)
    axes.set_xlabel("number at once, log scales", fontsize=9, color=INK)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    tidy(axes, "y")


def apart(places: dict[str, float], factor: float) -> dict[str, float]:
    """Move labels on a log axis up until each is at least `factor` above the one below."""
    moved: dict[str, float] = {}
    lowest = 0.0
    for key in sorted(places, key=lambda key: places[key]):
        moved[key] = max(places[key], lowest)
        lowest = moved[key] * factor
    return moved


def tidy(axes: Axes, grid: str) -> None:
    """Show plain numbers, few lines, and the grid of the axis that is read."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    plain = FuncFormatter(lambda value, _: f"{value:,g}")
    axes.xaxis.set_major_formatter(plain)
    if grid == "y":
        axes.yaxis.set_major_formatter(plain)
    axes.grid(axis="x" if grid == "x" else "y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
