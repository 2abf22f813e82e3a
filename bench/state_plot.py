"""The picture of a measurement of snapshots and templates: four sets of curves, over what they grow with."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bench.plot import FAINT, INK, tidy
from bench.state_report import EMPTY, Curve, StateReport, size_text

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9")


def draw_state(report: StateReport, file: Path) -> None:
    """Write the picture as a PNG."""
    figure = Figure(figsize=(12, 8), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    (size, depth), (layers, siblings) = figure.subplots(2, 2)
    draw_curves(size, report.by_size, "What the sandbox holds: time in ms", "linear")
    ticks = sorted(next(iter(report.by_size.values())).seconds)
    size.set_xticks(ticks, [size_text(tick) for tick in ticks])
    draw_curves(depth, report.by_depth, "Snapshots upon each other: time in ms", "linear")
    draw_curves(layers, report.by_layers, "Layers that were not made fewer: ms for 1,000 calls")
    at_once = report.by_siblings | {f"warm_{key}": curve for key, curve in report.by_forks.items()}
    draw_curves(siblings, at_once, "Siblings, or forks of a template, at once: time in ms")
    empty = report.subjects[EMPTY].quantile(0.5) * 1e3
    for axes in (size, depth, siblings):
        axes.axhline(empty, color=FAINT, linewidth=1.2, linestyle="--", zorder=0)
        axes.text(axes.get_xlim()[1], empty, "empty start", fontsize=8, color="#888888", va="bottom", ha="right")
    source = f"{report.machine}, load {report.machine.load_1min:.1f}; bench/state.py, {report.machine.measured_at[:10]}"
    figure.text(0.012, 0.012, source, fontsize=8, color="#666666")
    figure.subplots_adjust(left=0.06, right=0.98, top=0.95, bottom=0.09, wspace=0.15, hspace=0.28)
    figure.savefig(file)


def draw_curves(axes: Axes, curves: dict[str, Curve], title: str, scale: str = "log") -> None:
    """Draw the medians of each."""
    places: set[int] = set()
    for colour, curve in zip(PALETTE, curves.values(), strict=False):
        medians = curve.medians()
        places |= medians.keys()
        milliseconds = [seconds * 1e3 for seconds in medians.values()]
        axes.plot(list(medians), milliseconds, marker="o", markersize=4, linewidth=1.8, color=colour, label=curve.label)
    axes.set_xscale("log")
    axes.set_yscale(scale)
    if scale == "linear":
        axes.set_ylim(0, axes.get_ylim()[1] * 1.35)
    tidy(axes, "y")
    axes.set_xticks(sorted(places), [f"{place:,}" for place in sorted(places)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(title, fontsize=10.5, loc="left", color=INK)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
