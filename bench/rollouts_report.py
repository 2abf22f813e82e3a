"""What comes of a measurement of the loop: values, goals and tables. It only prints."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table

from bench.report import Goal, empty_table, milliseconds, print_measurement
from bench.samples import Machine, Timed
from bench.tools import Rate, per_second

LOOP, HAND, PLAIN = "loop", "hand", "plain"
LABELS = {
    LOOP: "the loop: policy, scheduler, records",
    HAND: "the same sandbox work by hand",
    PLAIN: "plain subprocesses, no isolation",
}


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """What was used at a moment."""

    seconds: float
    """Since the first episode was begun."""
    playing: int
    """Episodes whose policy is there."""
    own_bytes: int
    """Private memory of the process that runs the loop."""
    charged_bytes: int | None
    """Of all sandboxes and the launcher."""


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """Many episodes at once whose policy sleeps."""

    episodes: int
    rewarded: int
    """How many ended with the reward that they had to."""
    seconds: float
    memory: list[MemorySample]

    def while_all_play(self) -> list[MemorySample]:
        """Return the samples in which every episode played. Raises KeyError when there is none."""
        found = [sample for sample in self.memory if sample.playing == self.episodes]
        if not found:
            raise KeyError("slow")
        return found


class RolloutReport(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement. A rate is of episodes."""

    format: int = 1
    machine: Machine
    turns: dict[str, Timed]
    rates: dict[str, dict[int, list[Rate]]]
    slow: Slow

    def throughput(self, key: str, at_once: int) -> float:
        """Return the episodes a second over all rounds."""
        return per_second(self.rates[key][at_once])

    def turn_ratio(self) -> float:
        """Return a median turn of the loop as a multiple of one by hand."""
        return self.turns[LOOP].quantile(0.5) / self.turns[HAND].quantile(0.5)

    def growth(self) -> float:
        """Return the memory of the loop at the end of all playing as a multiple of that at its beginning."""
        samples = self.slow.while_all_play()
        return samples[-1].own_bytes / samples[0].own_bytes


ROLLOUT_GOALS: tuple[Goal[RolloutReport], ...] = (
    Goal("p50, a turn in the loop / by hand", RolloutReport.turn_ratio, at_most=1.25),
    Goal("memory of the loop while all slow episodes play, last / first", RolloutReport.growth, at_most=1.25),
)


def print_rollouts(console: Console, report: RolloutReport) -> None:
    """Print everything that was measured, and what it means for the goals."""
    shown = (turns_table(report), rates_table(report), slow_text(report))
    print_measurement(console, report, ROLLOUT_GOALS, shown)


def turns_table(report: RolloutReport) -> Table:
    """Times of one turn after the other."""
    table = empty_table("a turn that runs `true`, in milliseconds", ("p50", "p90", "p99", "n"))
    for key, timed in report.turns.items():
        table.add_row(LABELS[key], *milliseconds(timed.seconds), str(len(timed.seconds)))
    return table


def rates_table(report: RolloutReport) -> Table:
    """Episodes a second with several at once."""
    table = empty_table("episodes a second, by the number at once", map(str, places_of(report)))
    for key in report.rates:
        table.add_row(LABELS[key], *(f"{report.throughput(key, at_once):,.1f}" for at_once in places_of(report)))
    return table


def places_of(report: RolloutReport) -> list[int]:
    """Return the numbers at once that were measured."""
    return sorted(report.rates[LOOP])


def slow_text(report: RolloutReport) -> str:
    """Say what many slow episodes needed."""
    slow = report.slow
    text = f"{slow.rewarded:,} of {slow.episodes:,} slow episodes at once were rewarded, in {slow.seconds:.0f} s"
    samples = [sample for sample in slow.memory if sample.playing == slow.episodes]
    if not samples:
        return f"{text}; never did all of them play"
    first, last = samples[0], samples[-1]
    own = f"{first.own_bytes >> 20:,} MiB at first and {last.own_bytes >> 20:,} MiB at last"
    charged = max((sample.charged_bytes or 0 for sample in samples), default=0)
    return (
        f"{text}; all of them played for {last.seconds - first.seconds:.0f} s, in which the loop had {own} "
        f"and the sandboxes at most {charged >> 20:,} MiB"
    )
