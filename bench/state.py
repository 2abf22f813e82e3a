"""How fast sandboxes are forked, restored and sealed, beside an empty start, and how that grows with what they hold.

All subjects take turns in one process, in a new random order each time, so that noise of the machine meets them alike.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

import minisandbox
from bench.command import parser_of, run_benchmark, with_bar
from bench.samples import Timed, look_at_machine
from bench.state_curves import by_depth, by_layers, by_siblings, by_size, done, roomy, write
from bench.state_report import EMPTY, EMPTY_AFTER, StateReport, print_state
from bench.state_warm import PAUSE_S, Ahead, Warm, by_forks, open_warm

MIB, GIB = 1 << 20, 1 << 30

EXAMPLES = """examples:
  bench/state.py                                    everything, in about four minutes; it needs 9 GiB of memory
  bench/state.py --quick                            a first impression, in about ten seconds
  bench/state.py --json state.json --plot state.png"""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    held_bytes: int
    rounds: int
    """Of everything: a large state is written for each."""
    turns: int
    """Of what needs no large state to be written, in each round."""
    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    layers: tuple[int, ...]
    siblings: tuple[int, ...]
    forks: tuple[int, ...]
    chains: int
    """So often is each size written, and each chain made."""
    repeats: int
    """At each place of the other curves."""


FULL = Effort(
    held_bytes=GIB,
    rounds=20,
    turns=10,
    sizes=(MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB, 4 * GIB),
    depths=(1, 2, 4, 8, 16, 32, 64),
    layers=(1, 2, 4, 6, 8, 12, 16, 24),
    siblings=(1, 10, 100, 1000),
    forks=(1, 8, 64),
    chains=5,
    repeats=3,
)
QUICK = Effort(
    held_bytes=16 * MIB,
    rounds=3,
    turns=5,
    sizes=(MIB, 16 * MIB),
    depths=(1, 4),
    layers=(1, 4),
    siblings=(1, 4),
    forks=(1, 4),
    chains=1,
    repeats=1,
)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write what was asked for."""
    options = parse(arguments)
    measure = partial(measure_all, QUICK if options.quick else FULL, options.state_dir, options.rootfs)
    return run_benchmark(options, measure, print_state, draw_lazily)


def draw_lazily(report: StateReport, file: Path) -> None:
    """Draw the picture."""
    from bench.state_plot import draw_state  # matplotlib takes a second to import

    draw_state(report, file)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, EXAMPLES, "measure little, of little state")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where minisandbox keeps its rootfs")
    parser.add_argument("--rootfs", default="host", metavar="NAME", help="has the Python, and numpy (%(default)s)")
    return parser.parse_args(arguments)


async def measure_all(effort: Effort, state_dir: Path | None, rootfs: str) -> StateReport:
    """Measure everything. Nothing is started ahead, as what is compared is the start itself; Pythons both ways."""
    machine = look_at_machine()
    skipped: dict[str, str] = {}
    async with (
        minisandbox.open_supervisor(state_dir=state_dir, max_parked=0) as supervisor,
        minisandbox.open_supervisor(state_dir=state_dir) as by_default,
    ):
        async with (
            open_warm(Warm, supervisor, rootfs, skipped) as warm,
            open_warm(Ahead, by_default, rootfs, skipped) as ahead,
        ):
            subjects = await measure_subjects(supervisor, effort, (warm, ahead))
            forks = await by_forks(warm, effort.forks, effort.repeats)
        sizes = await by_size(supervisor, effort.sizes, effort.chains)
        depths = await by_depth(supervisor, effort.depths, effort.chains)
        layers = await by_layers(supervisor, effort.layers, effort.repeats)
        siblings = await by_siblings(supervisor, effort.siblings, effort.repeats)
    return StateReport(
        machine=machine,
        held_bytes=effort.held_bytes,
        subjects=subjects,
        by_size=sizes,
        by_depth=depths,
        by_layers=layers,
        by_siblings=siblings,
        by_forks=forks,
        skipped=skipped,
    )


class Subjects:
    """What is measured one at a time. Each returns the seconds that it took."""

    def __init__(self, supervisor: minisandbox.Supervisor, held_bytes: int) -> None:
        self._supervisor, self._limits, self._held_bytes = supervisor, roomy(held_bytes), held_bytes

    async def empty_start(self) -> float:
        """Open a sandbox."""
        begun = time.perf_counter()
        async with self._supervisor.open_sandbox(limits=self._limits):
            return time.perf_counter() - begun

    async def empty_life(self) -> float:
        """Open a sandbox, and close it."""
        begun = time.perf_counter()
        async with self._supervisor.open_sandbox(limits=self._limits):
            pass
        return time.perf_counter() - begun

    async def restore(self, sandbox: minisandbox.Sandbox, snapshot: minisandbox.Snapshot) -> float:
        """Put a sandbox back in which something was written."""
        await done(sandbox, "echo >/small")
        begun = time.perf_counter()
        await sandbox.restore(snapshot)
        return time.perf_counter() - begun

    async def open_snapshot(self, snapshot: minisandbox.Snapshot) -> float:
        """Open a sandbox upon a snapshot."""
        begun = time.perf_counter()
        async with self._supervisor.open_sandbox(snapshot=snapshot, limits=self._limits):
            return time.perf_counter() - begun

    async def empty_start_after(self) -> float:
        """Open a sandbox when another one has just written all that it holds: caches have forgotten all else."""
        async with self._supervisor.open_sandbox(limits=self._limits) as sandbox:
            await write(sandbox, self._held_bytes)
            return await self.empty_start()

    async def fork(self) -> float:
        """Fork a sandbox that has just written all that it holds."""
        async with self._supervisor.open_sandbox(limits=self._limits) as sandbox:
            await write(sandbox, self._held_bytes)
            begun = time.perf_counter()
            async with sandbox.fork(1):
                return time.perf_counter() - begun


LABELS = {
    EMPTY: "empty start: open a sandbox",
    EMPTY_AFTER: "empty start, when state was just written",
    "empty_life": "empty life: open and close",
    "restore": "restore in place",
    "open_snapshot": "open upon a snapshot",
    "fork": "fork of a sandbox that holds state",
    "snapshot": "snapshot of it, until it returns",
}


async def measure_subjects(
    supervisor: minisandbox.Supervisor, effort: Effort, pythons: Sequence[Warm]
) -> dict[str, Timed]:
    """Let all take turns. The first turns warm caches and pools and do not count."""
    subjects, order = Subjects(supervisor, effort.held_bytes), random.Random(0)
    timed = {key: Timed(label=label, seconds=[]) for key, label in LABELS.items()}
    turns_of_pythons: dict[str, Callable[[], Awaitable[float]]] = {}
    for each in pythons:
        timed |= each.subjects()
        turns_of_pythons |= each.turns()
    for number in with_bar(range(-1, effort.rounds), "one at a time"):
        async with supervisor.open_sandbox(limits=roomy(effort.held_bytes)) as sandbox:
            await write(sandbox, effort.held_bytes)
            begun = time.perf_counter()
            async with await sandbox.snapshot() as snapshot:
                taken = {"snapshot": [time.perf_counter() - begun]}
                after_writing = {EMPTY_AFTER: subjects.empty_start_after, "fork": subjects.fork}
                for key in order.sample(list(after_writing), 2):
                    taken[key] = [await after_writing[key]()]
                turns: dict[str, Callable[[], Awaitable[float]]] = {
                    EMPTY: subjects.empty_start,
                    "empty_life": subjects.empty_life,
                    "restore": partial(subjects.restore, sandbox, snapshot),
                    "open_snapshot": partial(subjects.open_snapshot, snapshot),
                    **turns_of_pythons,
                }
                for _ in range(effort.turns):
                    for key in order.sample(list(turns), len(turns)):
                        await trio.sleep(PAUSE_S)
                        taken.setdefault(key, []).append(await turns[key]())
        if number >= 0:
            for key, seconds in taken.items():
                timed[key].seconds.extend(seconds)
    return timed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
