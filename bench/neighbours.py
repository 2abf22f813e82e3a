"""What a sandbox that uses up all it can get does to well-behaved ones beside it: their latency and their results.

The well-behaved ones stay open, and each in its turn runs a short command whose output is known. For each kind of hog
that is measured in turns without it and with it, in one process, so that noise of the machine meets both alike.
"""

from __future__ import annotations

import contextlib
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
from bench.burst import quantile
from bench.command import parser_of, run_benchmark
from bench.hogs import HOGS, LIMITS, Hog
from bench.samples import Machine, look_at_machine
from minisandbox import Limits, Sandbox, Supervisor
from minisandbox.runtime.background import background

P50_BOUND = 3.0
"""What is promised: beside one hog that may use half a core, the median is at most so many times that without it.

The row of no hog at all says how much of that is noise."""

EXAMPLES = """examples:
  bench/neighbours.py                          200 beside each kind of hog, in about five minutes
  bench/neighbours.py --quick                  20 of them, in about half a minute
  bench/neighbours.py --json neighbours.json   every sample"""

WORK = "i=0; s=0; while [ $i -lt 100 ]; do i=$((i+1)); s=$((s+i)); done; echo $s >/tmp/s; cat /tmp/s"
EXPECTED = b"5050\n"
GOOD = Limits(memory_bytes=64 << 20, processes=32, disk_bytes=16 << 20, wall_time_s=30)


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of hog did: seconds of every command, and results that were not as expected."""

    hog: str
    without_s: list[float]
    beside_s: list[float]
    wrong: list[str]
    hog_runs: int
    """How often it was started: whatever its limit ended was started again."""

    def ratio(self, fraction: float) -> float:
        """Return by how much a quantile is higher beside the hog."""
        return quantile(self.beside_s, fraction) / quantile(self.without_s, fraction)


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement."""

    machine: Machine
    sandboxes: int
    effects: list[Effect]

    def broken(self) -> list[str]:
        """Return the promises that were not kept."""
        wrong = [f"{effect.hog}: {text}" for effect in self.effects for text in effect.wrong]
        slow = [
            f"{effect.hog}: the median is {effect.ratio(0.5):.2f} times that without it"
            for effect in self.effects
            if effect.ratio(0.5) > P50_BOUND
        ]
        return wrong + slow


async def measure(sandboxes: int, rounds: int, hogs: Sequence[Hog] = HOGS) -> Neighbours:
    """Open so many, and look at each kind of hog for so many rounds of all of them."""
    machine = look_at_machine()
    with tempfile.TemporaryDirectory() as made:
        async with minisandbox.open_supervisor(state_dir=Path(made), max_sandboxes=sandboxes + 8) as supervisor:
            async with contextlib.AsyncExitStack() as stack:
                crowd = [
                    await stack.enter_async_context(supervisor.open_sandbox(limits=GOOD)) for _ in range(sandboxes)
                ]
                effects = [await look_at(supervisor, crowd, hog, rounds) for hog in hogs]
    return Neighbours(machine=machine, sandboxes=sandboxes, effects=effects)


async def look_at(supervisor: Supervisor, crowd: Sequence[Sandbox], hog: Hog, rounds: int) -> Effect:
    """Return what a hog does to a crowd."""
    without_s: list[float] = []
    beside_s: list[float] = []
    wrong: list[str] = []
    runs = 0
    for _ in range(rounds):
        await use(crowd, without_s, wrong)
        async with hogging(supervisor, hog) as started:
            await use(crowd, beside_s, wrong)
        runs += started[0]
    return Effect(hog=hog.name, without_s=without_s, beside_s=beside_s, wrong=wrong, hog_runs=runs)


async def use(crowd: Sequence[Sandbox], samples_s: list[float], wrong: list[str]) -> None:
    """Run the command in each of a crowd, one after the other."""
    for sandbox in crowd:
        begun = time.perf_counter()
        try:
            result = await sandbox.run(WORK)
            text = "" if result.ok and result.stdout == EXPECTED else f"{result.exit_reason.value} {result.stdout!r}"
        except minisandbox.SandboxError as error:
            text = f"{type(error).__name__}: {error}"
        samples_s.append(time.perf_counter() - begun)
        if text:
            wrong.append(text)


@contextlib.asynccontextmanager
async def hogging(supervisor: Supervisor, hog: Hog) -> AsyncIterator[list[int]]:
    """Run a hog beside the block, again whenever it ends; yields how often it was started."""
    started = [0]
    running = trio.Event()

    async def run() -> None:
        while True:
            with contextlib.suppress(minisandbox.SandboxError):
                async with supervisor.open_sandbox(limits=LIMITS) as sandbox:
                    started[0] += 1
                    running.set()
                    await sandbox.run(["/usr/bin/python3", "-c", hog.program])

    async with background(run):
        with trio.fail_after(60):
            await running.wait()
        await trio.sleep(0.3)  # until it has what it can get
        yield started


def show(console: Console, report: Neighbours) -> None:
    """Print what came of it."""
    table = Table(
        box=None, title=f"{report.sandboxes} sandboxes beside one hog; {report.machine}", title_justify="left"
    )
    for name in ("hog", "p50 without", "p50 beside", "ratio", "p99 without", "p99 beside", "wrong", "hog's runs"):
        table.add_column(name, justify="left" if name == "hog" else "right")
    for effect in report.effects:
        table.add_row(
            effect.hog,
            *(f"{quantile(effect.without_s, 0.5) * 1e3:.2f} ms", f"{quantile(effect.beside_s, 0.5) * 1e3:.2f} ms"),
            f"{effect.ratio(0.5):.2f}",
            *(f"{quantile(effect.without_s, 0.99) * 1e3:.1f} ms", f"{quantile(effect.beside_s, 0.99) * 1e3:.1f} ms"),
            *(str(len(effect.wrong)), str(effect.hog_runs)),
        )
    console.print(table)
    for text in report.broken():
        print(f"not kept: {text}")


def draw(report: Neighbours, file: Path) -> None:
    """Draw how the latency is spread beside each kind, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    samples = [[1e3 * each for each in effect.beside_s] for effect in report.effects]
    axes.boxplot(samples, orientation="horizontal", whis=(1, 99), showfliers=False)
    axes.set_yticks(range(1, len(samples) + 1), [effect.hog for effect in report.effects])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds for a command of a well-behaved sandbox (whiskers: 1 % and 99 %)")
    axes.set_title(f"{report.sandboxes} sandboxes beside one that takes all it can get", loc="left", fontsize=10.5)
    figure.tight_layout()
    figure.savefig(file)


def main(arguments: Sequence[str]) -> int:
    """Measure and report; 1 when a promise was not kept."""
    options = parser_of(__doc__, EXAMPLES, "20 sandboxes, and one round").parse_args(arguments)
    effort = (20, 1) if options.quick else (200, 2)
    kept: list[bool] = []

    async def measured() -> Neighbours:
        report = await measure(*effort)
        kept.append(not report.broken())
        return report

    return run_benchmark(options, measured, show, draw) or (0 if all(kept) else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
