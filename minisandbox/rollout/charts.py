"""Charts as rectangles, lines and words with places, which a template draws. Pure: no I/O, and no colours.

What a rectangle means is its `kind`, which the style sheet gives a colour, in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minisandbox.rollout.statistics import Bin, PolicyStatistics


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle; `title` is shown when one points at it."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """Words at a place."""

    x: float
    y: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str = "grid"


@dataclass(frozen=True, slots=True)
class Chart:
    """All of a chart. `label` says in words what it shows."""

    width: float
    height: float
    label: str
    rects: tuple[Rect, ...] = ()
    words: tuple[Word, ...] = ()
    lines: tuple[Line, ...] = ()


def histogram(counts: Mapping[str, int], kind: str, label: str) -> Chart:
    """Return bars with their counts above and their names below."""
    width, height, top, bottom = 340.0, 150.0, 20.0, 22.0
    step, most = width / max(1, len(counts)), max([*counts.values(), 1])
    rects, words = [], []
    for at, (name, number) in enumerate(counts.items()):
        tall = (height - top - bottom) * number / most
        x, y = at * step, height - bottom - tall
        if number:
            tall = max(tall, 1.5)
            y = height - bottom - tall
            rects.append(Rect(x + step * 0.14, y, step * 0.72, tall, kind, f"{name}: {number:,}"))
            words.append(Word(x + step / 2, y - 5, f"{number:,}"))
        words.append(Word(x + step / 2, height - 6, name))
    floor = Line(0, height - bottom, width, height - bottom, "axis")
    return Chart(width, height, label, tuple(rects), tuple(words), (floor,))


def stacked(parts: Mapping[str, float], total: float, label: str, unit: str = "", prefix: str = "k-") -> Chart:
    """Return one bar of parts side by side; all of them together are as wide as their share of `total`."""
    width, height, x, rects = 600.0, 18.0, 0.0, []
    for name, value in parts.items():
        wide = width * value / total if total else 0.0
        if wide > 0:
            shown = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
            gap = 1.0 if wide > 3 else 0.0
            rects.append(Rect(x, 0, max(wide - gap, 0.5), height, f"{prefix}{name}", f"{name}: {shown}{unit}"))
        x += wide
    return Chart(width, height, label, tuple(rects))


def interval(policy: PolicyStatistics, low: float) -> Chart:
    """Return a mean of rewards with its 95 % interval, on a scale from `low` to 1."""
    width, height = 180.0, 22.0
    middle = height / 2

    def place(value: float) -> float:
        return 6 + (width - 12) * (min(max(value, low), 1.0) - low) / (1.0 - low)

    lines = [Line(place(low), middle, place(1), middle), Line(place(0), 4, place(0), height - 4)]
    if policy.mean_reward is None:
        return Chart(width, height, "no rewards", lines=tuple(lines))
    error = policy.reward_ci95 or 0.0
    lines.append(Line(place(policy.mean_reward - error), middle, place(policy.mean_reward + error), middle, "whisker"))
    x, title = place(policy.mean_reward), f"{policy.mean_reward:.3f} ± {error:.3f}"
    return Chart(width, height, title, (Rect(x - 4, middle - 4, 8, 8, "dot", title),), lines=tuple(lines))


def columns(bins: Sequence[Bin], bin_s: float) -> Chart:
    """Return episodes over time: a column a bin, those without a reward on top."""
    width, height, left, right, top, bottom = 1040.0, 210.0, 44.0, 8.0, 12.0, 26.0
    plot, tall = width - left - right, height - top - bottom
    most = nice_ceiling(max((each.rewarded + each.masked for each in bins), default=1))
    step = plot / max(1, len(bins))
    rects = []
    for at, each in enumerate(bins):
        y = height - bottom
        for kind, number in (("rewarded", each.rewarded), ("masked", each.masked)):
            part = tall * number / most
            y -= part
            if number:
                title = f"from {duration(each.start_s)}: {number:,} {kind}"
                gap = min(2.0, step * 0.15)
                rects.append(Rect(left + at * step + gap / 2, y, step - gap, part, f"t-{kind}", title))
    lines, words = [], []
    parts = next(parts for parts in (4, 5, 2, 1) if most % parts == 0)
    for part in range(parts + 1):
        y = height - bottom - tall * part / parts
        lines.append(Line(left, y, width - right, y, "grid" if part else "axis"))
        words.append(Word(left - 8, y + 4, f"{most * part // parts:,}", "end"))
    every = max(1, math.ceil(len(bins) / 10))
    for at in range(0, len(bins) + 1, every):
        words.append(Word(left + at * step, height - 8, duration(at * bin_s)))
    label = f"episodes finished in each {duration(bin_s)}"
    return Chart(width, height, label, tuple(rects), tuple(words), tuple(lines))


def nice_ceiling(value: float) -> int:
    """Return the least number of 1, 2, 4, 5 or 8 and zeros that is no less."""
    scale = int(10 ** max(0, math.floor(math.log10(max(value, 1)))))
    return next(factor * scale for factor in (1, 2, 4, 5, 8, 10) if factor * scale >= value)


def duration(seconds: float) -> str:
    """Return a time in the units that say most of it, as "1 h 5 min" or "2.5 s"."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms" if seconds > 0 else "0 s"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, rest = divmod(minutes, 60)
    return f"{hours} h" + (f" {rest} min" if rest else "")
