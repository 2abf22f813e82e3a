"""How fast a sandbox starts, beside a bare process, bubblewrap and nsjail with their nearest equal isolation.

All subjects take turns in one process, in a new random order each time, so that noise of the machine meets them alike.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

import minisandbox
from bench.command import parser_of, run_benchmark, with_bar
from bench.report import print_report
from bench.samples import Report, Samples, look_at_machine
from bench.tools import (
    Rate,
    RunInOpen,
    Spawned,
    StartedAhead,
    StartedByNsjail,
    StartRunGone,
    Subject,
    bare,
    bubblewrap,
    build_true,
    nsjail,
)

AT_ONCE = (1, 2, 8, 32)

EXAMPLES = """examples:
  bench/launch.py                                     everything, in about two minutes
  bench/launch.py --quick                             a first impression, in about ten seconds
  bench/launch.py --json launch.json --plot launch.png"""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: starts of each subject one at a time, and stretches of time with several at once."""

    runs: int
    warm_up: int
    rounds: int
    seconds: float


FULL = Effort(runs=1000, warm_up=50, rounds=4, seconds=1.0)
QUICK = Effort(runs=100, warm_up=10, rounds=1, seconds=0.3)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write what was asked for."""
    options = parse(arguments)
    effort = QUICK if options.quick else FULL
    if options.runs:
        effort = Effort(options.runs, effort.warm_up, effort.rounds, effort.seconds)
    return run_benchmark(options, partial(measure_all, effort, options.state_dir), print_report, draw_lazily)


def draw_lazily(report: Report, file: Path) -> None:
    """Draw the picture."""
    from bench.plot import draw  # matplotlib takes a second to import

    draw(report, file)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, EXAMPLES, "measure a tenth")
    parser.add_argument("--runs", type=int, metavar="N", help="starts of each subject, one at a time")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where minisandbox keeps its rootfs")
    options = parser.parse_args(arguments)
    if options.runs is not None and options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


async def measure_all(effort: Effort, state_dir: Path | None) -> Report:
    """Measure every subject that this host has."""
    facts = look_at_machine()
    with tempfile.TemporaryDirectory(prefix="minisandbox-bench-") as directory:
        program = build_true(Path(directory))
        peers, skipped = installed([bubblewrap, nsjail], program)
        if nsjail.__name__ in skipped:
            skipped[StartedByNsjail.key] = skipped[nsjail.__name__]
        async with own_subjects(program, state_dir, StartedByNsjail.key not in skipped) as own:
            subjects: list[Subject] = [bare(program), *own, *peers]
            latencies = await measure_latency(subjects, effort)
            rates = await measure_throughput(subjects, effort)
    samples = {
        subject.key: Samples(
            label=subject.label,
            command=shortened(subject.command),
            latency_s=latencies[subject.key],
            rates=rates[subject.key],
        )
        for subject in subjects
    }
    return Report(machine=facts, samples=samples, skipped=skipped)


def shortened(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without where this checkout and the temporary directory happen to be."""
    places = {str(Path(__file__).resolve().parents[1]): "$CHECKOUT", tempfile.gettempdir(): "$TMPDIR"}
    words = []
    for word in command:
        for place, name in places.items():
            word = word.replace(place, name)
        words.append(word)
    return tuple(words)


def installed(makers: Sequence[Callable[[Path], Spawned]], program: Path) -> tuple[list[Spawned], dict[str, str]]:
    """Return the peers that this host has, and why the others are missing."""
    peers, skipped = [], {}
    for make in makers:
        try:
            peers.append(make(program))
        except FileNotFoundError as error:
            skipped[make.__name__] = str(error)
    return peers, skipped


@asynccontextmanager
async def own_subjects(program: Path, state_dir: Path | None, with_nsjail: bool) -> AsyncIterator[list[Subject]]:
    """Open a supervisor that starts nothing ahead, one that does, and a sandbox that stays open.

    `with_nsjail`: whether the program of that engine is here.
    """
    bind = minisandbox.Bind(source=program.parent, target="/bench")
    async with (
        minisandbox.open_supervisor(state_dir=state_dir, max_parked=0) as plain,
        minisandbox.open_supervisor(state_dir=state_dir) as ahead,
    ):

        def open_plain() -> AbstractAsyncContextManager[minisandbox.Sandbox]:
            return plain.open_sandbox(binds=(bind,))

        def open_ahead() -> AbstractAsyncContextManager[minisandbox.Sandbox]:
            return ahead.open_sandbox(binds=(bind,))

        def open_by_nsjail() -> AbstractAsyncContextManager[minisandbox.Sandbox]:
            return plain.open_sandbox(binds=(bind,), engine="nsjail")

        async with open_plain() as sandbox:
            subjects: list[Subject] = [
                StartRunGone(open_plain),
                StartedAhead(open_ahead, ahead),
                RunInOpen(open_plain, sandbox),
            ]
            if with_nsjail:
                subjects.append(StartedByNsjail(open_by_nsjail))
            yield subjects


async def measure_latency(subjects: Sequence[Subject], effort: Effort) -> dict[str, list[float]]:
    """Start each once, again and again; the first starts warm caches and pools and do not count."""
    order = random.Random(0)
    seconds: dict[str, list[float]] = {subject.key: [] for subject in subjects}
    for number in with_bar(range(-effort.warm_up, effort.runs), "one at a time"):
        for subject in order.sample(subjects, len(subjects)):
            taken = await subject.once()
            if number >= 0:
                seconds[subject.key].append(taken)
            await trio.lowlevel.checkpoint()
    return seconds


async def measure_throughput(subjects: Sequence[Subject], effort: Effort) -> dict[str, dict[int, list[Rate]]]:
    """Start as many as possible for a while, with several numbers at once, in several rounds."""
    order = random.Random(0)
    rates: dict[str, dict[int, list[Rate]]] = {subject.key: {number: [] for number in AT_ONCE} for subject in subjects}
    turns = [at_once for _ in range(effort.rounds) for at_once in AT_ONCE]
    for at_once in with_bar(turns, "several at once"):
        for subject in order.sample(subjects, len(subjects)):
            rates[subject.key][at_once].append(await subject.many(at_once, effort.seconds))
    return rates


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
