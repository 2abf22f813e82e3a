"""A run as a person sees it: a view that is drawn anew while it goes on, and what came of it at the end."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
import trio

from minisandbox.cli.output import console_of, print_json
from minisandbox.rollout.tally import PolicySummary, Tally

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from minisandbox.rollout.run import Run

DRAW_S = 0.25
SAY_S = 10.0
"""How often a line is said where there is no terminal."""

MOST_LEFT_OUT = 5


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run, the episodes aside that were finished before it was begun again (`before`)."""

    directory: str
    before: int
    episodes: int
    turns: int
    retries: int
    seconds: float
    policies: dict[str, PolicySummary]
    malformed: list[str]
    left_out: list[str]
    signal: int | None
    """Which signal ended it."""


@contextlib.asynccontextmanager
async def drawing(run: Run, tally: Tally, *, quiet: bool) -> AsyncIterator[None]:
    """Show on stderr how far a run is, during the block."""
    async with trio.open_nursery() as nursery:
        if not quiet:
            nursery.start_soon(_draw if sys.stderr.isatty() else _say, run, tally)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()


async def _draw(run: Run, tally: Tally) -> None:
    from rich.live import Live

    began = time.monotonic()
    with Live(console=console_of("stderr"), auto_refresh=False, transient=True) as live:
        while True:
            live.update(_view(run, tally, time.monotonic() - began), refresh=True)
            await trio.sleep(DRAW_S)


async def _say(run: Run, tally: Tally) -> None:
    began = time.monotonic()
    while True:
        await trio.sleep(SAY_S)
        print(_line(run, tally, time.monotonic() - began), file=sys.stderr, flush=True)


def _view(run: Run, tally: Tally, seconds: float) -> Group:
    from rich.console import Group

    return Group(_line(run, tally, seconds), policies_table(tally.summaries()))


def _line(run: Run, tally: Tally, seconds: float) -> str:
    state = run.scheduler.state
    rate = tally.episodes / seconds if seconds else 0.0
    parts = [
        f"{tally.episodes} episodes in {seconds:.0f} s ({rate:.1f} a second)",
        f"{state.running} run, up to {state.target}",
        f"{run.scheduler.waiting} wait",
    ]
    if run.before:
        parts.append(f"{run.before} were finished before")
    if state.retried:
        parts.append(f"{state.retried} tried again")
    if state.draining:
        parts.append("ending: Ctrl-C again cancels what runs")
    return ", ".join(parts)


def policies_table(policies: dict[str, PolicySummary]) -> Table:
    """Return what came of each policy."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    table.add_column("policy")
    for heading in ("episodes", "mean reward", "no reward at all"):
        table.add_column(heading, justify="right")
    table.add_column("verdicts")
    table.add_column("ended by")
    for name, summary in policies.items():
        mean = "-" if summary.mean_reward is None else f"{summary.mean_reward:.3f}"
        table.add_row(
            name, str(summary.episodes), mean, str(summary.masked), _counts(summary.verdicts), _counts(summary.ends)
        )
    return table


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def show_summary(summary: Summary, *, as_json: bool) -> None:
    """Print what came of a run."""
    if as_json:
        print_json(summary)
        return
    console = console_of("stdout")
    console.print(policies_table(summary.policies))
    for name, items in (("malformed", summary.malformed), ("left out", summary.left_out)):
        for item in items[:MOST_LEFT_OUT]:
            console.print(f"{name}: {item}")
        if len(items) > MOST_LEFT_OUT:
            console.print(f"{name}: {len(items) - MOST_LEFT_OUT} more")
    rate = summary.episodes / summary.seconds if summary.seconds else 0.0
    before = f", {summary.before} were finished before" if summary.before else ""
    console.print(
        f"{summary.episodes} episodes with {summary.turns} turns in {summary.seconds:.1f} s "
        f"({rate:.1f} a second), {summary.retries} tried again{before}"
    )
    if summary.signal is not None:
        console.print(f"ended by {signal.Signals(summary.signal).name}; the same command goes on with it")
    console.print(f"records: {summary.directory}; see: minisandbox report {summary.directory}")
