"""Many sandboxes asked for at once: who waits how long, in which order; and what a reserved core is worth meanwhile.

First one after the other, for the time that an open takes alone; then all at once, each closed after one command. None
is parked. Afterwards a probe sleeps for a millisecond over and over, on a core that is reserved and then on one that
is not, while sandboxes have four times more to run than there are cores.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import trio
from rich.console import Console
from rich.table import Table

import minisandbox
from bench.command import parser_of, run_benchmark
from bench.samples import Machine, look_at_machine
from minisandbox import Supervisor

MOST_TIMES = 5.0
"""What is promised: the 99th percentile is at most so many times the median alone, times its place in the queue."""

BUSY_TIMES = 4
PROBE_S = 0.001

EXAMPLES = """examples:
  bench/burst.py                      1,000 at once, in about half a minute
  bench/burst.py --quick              100 at once
  bench/burst.py --json burst.json    every sample"""


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """One of a burst, in the order in which they asked."""

    open_s: float
    opened_as: int
    """Its place in the order in which they were open, from 0."""


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement."""

    machine: Machine
    max_sandboxes: int
    alone_s: list[float]
    burst: list[Waited]
    failed: list[str]
    seconds: float
    reserved: str
    late_s: dict[str, list[float]]
    """By how much the probe's sleeps were too long, by where it ran."""

    def times(self) -> float:
        """Return the 99th percentile as a multiple of the median alone times its place in the queue."""
        longest = quantile([each.open_s for each in self.burst], 0.99)
        return longest / (quantile(self.alone_s, 0.5) * 0.99 * len(self.burst))


def quantile(samples: Sequence[float], fraction: float) -> float:
    """Return the value that this fraction of the samples does not exceed."""
    return sorted(samples)[min(len(samples) - 1, int(fraction * len(samples)))]


async def measure(count: int, alone: int, max_sandboxes: int, probe_s: float) -> Burst:
    """Measure everything."""
    machine = look_at_machine()
    late_s: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as made:
        state = Path(made)
        async with minisandbox.open_supervisor(
            state_dir=state, max_sandboxes=max_sandboxes, max_parked=0
        ) as supervisor:
            alone_s = [await _open_once(supervisor) for _ in range(alone + 1)][1:]
            begun = time.perf_counter()
            burst, failed = await burst_of(supervisor, count)
            seconds = time.perf_counter() - begun
        async with minisandbox.open_supervisor(state_dir=state, reserve_cpus=1) as supervisor:
            reserved = supervisor.reserved
            cores = sorted(os.sched_getaffinity(0))
            async with busy(supervisor, BUSY_TIMES * len(cores)):
                for name, core in (("reserved", reserved.cores or cores), ("shared", cores[:1])):
                    late_s[name] = await trio.to_thread.run_sync(probe, set(core), probe_s)
    return Burst(
        machine=machine,
        max_sandboxes=max_sandboxes,
        alone_s=alone_s,
        burst=burst,
        failed=failed,
        seconds=seconds,
        reserved=reserved.how,
        late_s=late_s,
    )


async def _open_once(supervisor: Supervisor) -> float:
    begun = time.perf_counter()
    async with supervisor.open_sandbox() as sandbox:
        opened = time.perf_counter()
        await sandbox.run(["true"])
    return opened - begun


async def burst_of(supervisor: Supervisor, count: int) -> tuple[list[Waited], list[str]]:
    """Ask for so many at once; return what became of each, and who failed."""
    asked: list[int] = []  # tasks that are started together do not run in the order in which they were started
    opened: list[int] = []
    waited: dict[int, float] = {}
    failed: list[str] = []

    async def use(number: int) -> None:
        begun = time.perf_counter()
        asked.append(number)
        try:
            async with supervisor.open_sandbox() as sandbox:
                waited[number] = time.perf_counter() - begun
                opened.append(number)
                await sandbox.run(["true"])
        except minisandbox.SandboxError as error:
            failed.append(f"{type(error).__name__}: {error}")

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(use, number)
    places = {number: place for place, number in enumerate(opened)}
    return [Waited(open_s=waited[each], opened_as=places[each]) for each in asked if each in waited], failed


@contextlib.asynccontextmanager
async def busy(supervisor: Supervisor, count: int) -> AsyncIterator[None]:
    """Have so many sandboxes that use all the CPU time they can get, for the block."""
    running: list[int] = []
    all_running = trio.Event()

    def note(_: bytes) -> None:
        running.append(1)
        if len(running) == count:
            all_running.set()

    async def use() -> None:
        async with supervisor.open_sandbox() as sandbox:
            await sandbox.run("echo on; while :; do :; done", on_stdout=note)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(use)
        with trio.fail_after(60):
            await all_running.wait()
        yield
        nursery.cancel_scope.cancel()


def probe(cores: set[int], seconds: float) -> list[float]:
    """Sleep over and over on one of these cores, and return by how much each sleep was too long."""
    os.sched_setaffinity(0, cores)  # of this thread alone (sched_setaffinity(2))
    late_s = []
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        time.sleep(PROBE_S)  # how late it ends is what is measured
        late_s.append(time.perf_counter() - begun - PROBE_S)
    return late_s


def show(console: Console, report: Burst) -> None:
    """Print what came of it."""
    waits_s = [each.open_s for each in report.burst]
    moved = max((abs(each.opened_as - place) for place, each in enumerate(report.burst)), default=0)
    print(f"{report.machine}; at most {report.max_sandboxes} open")
    print(f"alone: p50 {quantile(report.alone_s, 0.5) * 1e3:.2f} ms of {len(report.alone_s)}")
    print(
        f"{len(waits_s)} at once: p50 {quantile(waits_s, 0.5):.2f} s, p99 {quantile(waits_s, 0.99):.2f} s, all in"
        f" {report.seconds:.2f} s; {len(report.failed)} failed; out of order by {moved} places at most"
    )
    print(f"p99 / (p50 alone x its place in the queue): {report.times():.2f}, promised {MOST_TIMES:g} at most")
    print(f"a probe beside {BUSY_TIMES} x the work that the cores can do; kept free by: {report.reserved}")
    table = Table(box=None)
    for name in ("core", "p50", "p99", "longest", "samples"):
        table.add_column(name, justify="left" if name == "core" else "right")
    for name, late_s in report.late_s.items():
        shown = (quantile(late_s, 0.5), quantile(late_s, 0.99), max(late_s))
        table.add_row(name, *(f"{each * 1e3:.2f} ms" for each in shown), str(len(late_s)))
    console.print(table)
    for text in report.failed[:5]:
        print(f"failed: {text}")


def draw(report: Burst, file: Path) -> None:
    """Draw the waits over the place in the queue, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = range(1, len(report.burst) + 1)
    axes.plot(places, [each.open_s for each in report.burst], ".", markersize=2, label="waited")
    alone = quantile(report.alone_s, 0.5)
    axes.plot(places, [alone * place for place in places], label="one after the other")
    axes.set_xlabel("place in the order in which they asked")
    axes.set_ylabel("seconds until open")
    axes.set_title(f"{len(report.burst):,} sandboxes asked for at once", loc="left", fontsize=10.5)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file)


def main(arguments: Sequence[str]) -> int:
    """Measure and report."""
    options = parser_of(__doc__, EXAMPLES, "100 at once, and a probe of a second").parse_args(arguments)
    effort = (100, 20, 32, 1.0) if options.quick else (1000, 100, 256, 5.0)
    return run_benchmark(options, lambda: measure(*effort), show, draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
