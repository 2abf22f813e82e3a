"""The picture of a measurement of many sandboxes: memory, time and rate over the number that live."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.density_report import KIB, LABELS, DensityReport
from bench.plot import COLOURS, INK, tidy
from bench.state_plot import PALETTE

PARTS = (*PALETTE, "#CC79A7", "#999999", "#F0E442")
SUBJECTS = {**COLOURS, "run_in_live": COLOURS["run_in_open"]}


def draw_density(report: DensityReport, file: Path) -> None:
    """Write the picture as a PNG."""
    figure = Figure(figsize=(13, 4.6), dpi=140, facecolor="white")
    FigureCanvasAgg(figure)
    memory, latency, rate = figure.subplots(1, 3)
    draw_memory(memory, report)
    draw_lines(
        latency,
        {key: [level.quantile(key, 0.5) * 1e3 for level in report.levels] for key in report.top.latency_s},
        report,
        "Start, run `true`, gone: p50 in ms",
    )
    draw_lines(
        rate,
        {
            key: [level.rates[key].starts / level.rates[key].seconds for level in report.levels]
            for key in report.top.rates
        },
        report,
        "Starts a second, 8 at once",
    )
    source = (
        f"{report.machine}, load {report.machine.load_1min:.1f}; bench/density.py, {report.machine.measured_at[:10]}"
    )
    figure.text(0.012, 0.02, source, fontsize=8, color="#666666")
    figure.subplots_adjust(left=0.05, right=0.985, top=0.92, bottom=0.17, wspace=0.18)
    figure.savefig(file)


def draw_memory(axes: Axes, report: DensityReport) -> None:
    """Draw what each sandbox takes, part upon part."""
    parts = sorted(report.top.memory.parts, key=lambda name: -report.top.memory.parts[name])
    parts = [name for name in parts if report.top.each(name) >= 1]
    places = range(len(report.levels))
    bottoms = [0.0 for _ in report.levels]
    for number, name in enumerate(parts):
        heights = [max(0.0, level.each(name)) for level in report.levels]
        axes.bar(places, heights, 0.62, bottoms, color=PARTS[number % len(PARTS)], label=name)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, level in zip(places, report.levels, strict=True):
        text = f"{level.memory.total / level.live / KIB:,.0f}"
        axes.text(place, bottoms[place], text, ha="center", va="bottom", fontsize=9, color=INK)
    axes.set_ylim(0, 1.5 * max(bottoms))
    axes.axhline(700, color="#888888", linewidth=1, linestyle="--")
    tidy(axes, "y")
    axes.set_xticks(list(places), [f"{level.live:,}" for level in report.levels])
    axes.set_xlabel("live sandboxes", fontsize=9, color=INK)
    axes.set_title("Memory of each sandbox in KiB", fontsize=10.5, loc="left", color=INK)
    axes.legend(fontsize=8, frameon=False, loc="upper right")


def draw_lines(axes: Axes, curves: dict[str, list[float]], report: DensityReport, title: str) -> None:
    """Draw a line for each subject over the number live."""
    live = [level.live for level in report.levels]
    for key, values in curves.items():
        dashed = "--" if key == "run_in_live" else "-"
        label = LABELS[key].removeprefix("minisandbox: ")
        axes.plot(live, values, dashed, marker="o", markersize=4, linewidth=1.8, color=SUBJECTS[key], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    tidy(axes, "y")
    axes.set_xticks(live, [f"{number:,}" for number in live])
    axes.set_xlabel("live sandboxes, log scales", fontsize=9, color=INK)
    axes.set_title(title, fontsize=10.5, loc="left", color=INK)
    axes.legend(fontsize=8, frameon=False, loc="best")
