"""How many episodes of three turns and a verdict the loop plays a second, and what it adds to the work in sandboxes.

The loop, the same sandbox work by hand, and plain subprocesses take turns in one process, in a new random order each
time. Last, very many episodes are played at once whose policy sleeps, and memory is looked at.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import trio

import minisandbox
from bench.command import parser_of, run_benchmark, with_bar
from bench.rollouts_report import HAND, LABELS, LOOP, PLAIN, MemorySample, RolloutReport, Slow, print_rollouts
from bench.rollouts_subjects import TURNS, Crowd, Stage, rate_of_plain
from bench.samples import Timed, look_at_machine
from bench.tools import BenchError, Rate

EXAMPLES = """examples:
  bench/rollouts.py                                    everything, in about ten minutes; it needs 8 GiB of memory
  bench/rollouts.py --quick                            a first impression, in less than a minute
  bench/rollouts.py --json rollouts.json --plot rollouts.png"""

LOOK_S = 0.5
SPARE = 64
"""Sandboxes for verdicts, beside those of the episodes."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    turns: int
    """In a row, in each round."""
    turn_rounds: int
    at_once: tuple[int, ...]
    episodes: int
    """At each number at once and in each round, or twice that number where it is more."""
    rounds: int
    slow: int
    think_s: float


FULL = Effort(
    turns=50,
    turn_rounds=20,
    at_once=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    episodes=64,
    rounds=3,
    slow=2000,
    think_s=15.0,
)
QUICK = Effort(turns=10, turn_rounds=2, at_once=(1, 4), episodes=4, rounds=1, slow=20, think_s=1.0)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write what was asked for."""
    parser = parser_of(__doc__, EXAMPLES, "measure little")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where minisandbox keeps its rootfs")
    options = parser.parse_args(arguments)
    measure = partial(measure_all, QUICK if options.quick else FULL, options.state_dir)
    return run_benchmark(options, measure, print_rollouts, draw_lazily)


def draw_lazily(report: RolloutReport, file: Path) -> None:
    """Draw the picture."""
    from bench.rollouts_plot import draw_rollouts  # matplotlib takes a second to import

    draw_rollouts(report, file)


async def measure_all(effort: Effort, state_dir: Path | None) -> RolloutReport:
    """Measure everything."""
    machine = look_at_machine()
    order = random.Random(0)
    processors = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="bench-rollouts-") as folder:
        most = max(effort.at_once) + SPARE
        async with minisandbox.open_supervisor(state_dir=state_dir, max_sandboxes=most) as supervisor:
            stage = Stage(supervisor, Path(folder, "rates"), processors)
            turns = await measure_turns(stage, effort, order)
            rates = await measure_rates(stage, effort, order)
        async with minisandbox.open_supervisor(state_dir=state_dir, max_sandboxes=effort.slow + SPARE) as supervisor:
            slow = await measure_slow(Stage(supervisor, Path(folder, "slow"), processors), effort)
    return RolloutReport(machine=machine, turns=turns, rates=rates, slow=slow)


async def measure_turns(stage: Stage, effort: Effort, order: random.Random) -> dict[str, Timed]:
    """Let both ways take turns, many in a row. The first round warms caches, and does not count."""
    ways = {LOOP: stage.turns_of_loop, HAND: stage.turns_by_hand}
    timed = {key: Timed(label=LABELS[key], seconds=[]) for key in ways}
    for number in with_bar(range(-1, effort.turn_rounds), "turns"):
        for key in order.sample(list(ways), len(ways)):
            seconds = await ways[key](effort.turns)
            if number >= 0:
                timed[key].seconds.extend(seconds)
    return timed


async def measure_rates(stage: Stage, effort: Effort, order: random.Random) -> dict[str, dict[int, list[Rate]]]:
    """Let all ways take turns at all numbers at once."""
    ways = {LOOP: stage.rate_of_loop, HAND: stage.rate_by_hand, PLAIN: rate_of_plain}
    rates: dict[str, dict[int, list[Rate]]] = {key: {at_once: [] for at_once in effort.at_once} for key in ways}
    for _ in with_bar(range(effort.rounds), "episodes"):
        places = [(key, at_once) for key in ways for at_once in effort.at_once]
        for key, at_once in order.sample(places, len(places)):
            rates[key][at_once].append(await ways[key](max(effort.episodes, 2 * at_once), at_once))
    return rates


async def measure_slow(stage: Stage, effort: Effort) -> Slow:
    """Play many at once; none acts before all of them are there, and then each sleeps before every action."""
    crowd = Crowd(effort.slow, effort.think_s)
    memory: list[MemorySample] = []
    begun = time.perf_counter()

    async def look() -> None:
        process = psutil.Process()
        while True:
            sample = MemorySample(
                seconds=time.perf_counter() - begun,
                playing=crowd.playing,
                own_bytes=process.memory_full_info().uss,
                charged_bytes=stage.supervisor.memory_bytes(),
            )
            memory.append(sample)
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        played = await stage.play(TURNS, effort.slow, effort.slow, crowd)
        nursery.cancel_scope.cancel()
    if len(played) != effort.slow:
        raise BenchError(f"{len(played)} of {effort.slow} slow episodes came to their end")
    rewarded = sum(episode.reward == 1.0 for episode in played)
    return Slow(episodes=effort.slow, rewarded=rewarded, seconds=time.perf_counter() - begun, memory=memory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
