"""The picture of a measurement of the loop: episodes a second over the number at once, and memory over time."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.plot import INK, tidy
from bench.rollouts_report import HAND, LABELS, LOOP, PLAIN, RolloutReport, places_of

COLOURS = {LOOP: "#0072B2", HAND: "#56B4E9", PLAIN: "#555555"}


def draw_rollouts(report: RolloutReport, file: Path) -> None:
    """Write the picture as a PNG."""
    figure = Figure(figsize=(12, 4.4), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    rates, memory = figure.subplots(1, 2)
    draw_rates(rates, report)
    draw_memory(memory, report)
    machine = report.machine
    source = f"{machine}, load {machine.load_1min:.1f}; bench/rollouts.py, {machine.measured_at[:10]}"
    figure.text(0.012, 0.03, source, fontsize=8, color="#666666")
    figure.subplots_adjust(left=0.06, right=0.98, top=0.9, bottom=0.2, wspace=0.15)
    figure.savefig(file)


def draw_rates(axes: Axes, report: RolloutReport) -> None:
    """Draw a line for each way."""
    places = places_of(report)
    for key in report.rates:
        values = [report.throughput(key, at_once) for at_once in places]
        axes.plot(places, values, marker="o", markersize=5, linewidth=2, color=COLOURS[key], label=LABELS[key])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(places)
    axes.set_xlabel("number at once, log scales", fontsize=9, color=INK)
    axes.set_title("Episodes a second: three turns and a verdict", fontsize=10.5, loc="left", color=INK)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    tidy(axes, "y")
    axes.legend(fontsize=8, frameon=False)


def draw_memory(axes: Axes, report: RolloutReport) -> None:
    """Draw what the loop holds, and how many episodes play, over time."""
    samples = report.slow.memory
    seconds = [sample.seconds for sample in samples]
    axes.plot(seconds, [sample.own_bytes / 2**20 for sample in samples], color=COLOURS[LOOP], label="memory, MiB")
    axes.plot(
        seconds,
        [sample.playing for sample in samples],
        color=COLOURS[PLAIN],
        linestyle="--",
        label="episodes that play",
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds", fontsize=9, color=INK)
    title = f"{report.slow.episodes:,} episodes at once whose policy sleeps: memory of the loop"
    axes.set_title(title, fontsize=10.5, loc="left", color=INK)
    tidy(axes, "y")
    axes.legend(fontsize=8, frameon=False)
