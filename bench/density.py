"""What many live sandboxes cost: memory, rate and time of each step over their number, bubblewrap and nsjail beside.

Each of them was opened through the public API, has run a command, and can run another. At the end all are closed, and
the host is compared with what it was before.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import trio

import minisandbox
from bench.command import parser_of, run_benchmark, with_bar
from bench.density_memory import Counts, Memory, count_everything, look_at_memory
from bench.density_report import DensityReport, Level, print_density
from bench.launch import installed
from bench.samples import look_at_machine
from bench.tools import Rate, StartRunGone, Subject, bare, bubblewrap, build_true, nsjail, run_true
from minisandbox.kernel.capacity import check_capacity, read_capacity
from minisandbox.kernel.cgroup import detect_layout

EXAMPLES = """examples:
  bench/density.py                                 10, 100, 1,000 and 10,000 live, in about ten minutes
  bench/density.py --quick                         5 and 50 live, in about ten seconds
  bench/density.py --levels 10,1000,3000 --json density.json --plot density.png"""

AT_ONCE = 8
SETTLE_S = 60.0
LEVELS_MAX = 25_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: how many live, starts of each subject beside them, and seconds of each rate."""

    levels: tuple[int, ...]
    runs: int
    warm_up: int
    seconds: float


FULL = Effort(levels=(10, 100, 1000, 10_000), runs=300, warm_up=20, seconds=3.0)
QUICK = Effort(levels=(5, 50), runs=20, warm_up=3, seconds=0.2)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write what was asked for."""
    options = parse(arguments)
    effort = QUICK if options.quick else FULL
    effort = Effort(options.levels or effort.levels, options.runs or effort.runs, effort.warm_up, effort.seconds)
    return run_benchmark(options, partial(measure_all, effort, options.state_dir), print_density, draw_lazily)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, EXAMPLES, "measure beside 5 and 50")
    parser.add_argument("--levels", type=levels, metavar="N,...", help="how many live sandboxes to measure beside")
    parser.add_argument("--runs", type=int, metavar="N", help="starts of each subject at each level")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where minisandbox keeps its rootfs")
    return parser.parse_args(arguments)


def levels(text: str) -> tuple[int, ...]:
    """Read numbers of live sandboxes, in any order."""
    numbers = sorted({int(word) for word in text.split(",")})
    if not numbers or numbers[0] < 1 or numbers[-1] > LEVELS_MAX:
        raise argparse.ArgumentTypeError(f"numbers from 1 to {LEVELS_MAX:,}, with commas between them")
    return tuple(numbers)


def draw_lazily(report: DensityReport, file: Path) -> None:
    """Draw the picture."""
    from bench.density_plot import draw_density  # matplotlib takes a second to import

    draw_density(report, file)


async def measure_all(effort: Effort, state_dir: Path | None) -> DensityReport:
    """Open sandboxes up to each level, measure there, and close them all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    machine, capacity = look_at_machine(), read_capacity()
    check_capacity(effort.levels[-1])
    await trio.to_thread.run_sync(int)  # the thread that stays is not of the sandboxes
    groups = own_groups()
    before, memory = count_everything(groups), look_at_memory()
    try:
        with tempfile.TemporaryDirectory(prefix="minisandbox-bench-") as directory:
            crowd = Crowd(build_true(Path(directory)), memory)
            async with crowd.open(state_dir, effort.levels[-1]):
                measured = [await crowd.measure(effort, live) for live in effort.levels]
                close_from = time.monotonic()
                await crowd.close_all()
            close_s = time.monotonic() - close_from
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    after, settle_s = await settled(groups, before, effort.levels[-1])
    return DensityReport(
        machine=machine,
        levels=measured,
        opened_s=crowd.opened_s,
        close_s=close_s,
        settle_s=settle_s,
        before=before,
        after=after,
        capacity=list(capacity),
        skipped=crowd.skipped,
    )


def own_groups() -> list[Path]:
    """Return our own control groups, below which those of the supervisor will be."""
    layout = detect_layout()
    return [*([layout.unified] if layout.unified else []), *layout.v1.values()]


async def settled(groups: Sequence[Path], before: Counts, most: int) -> tuple[Counts, float]:
    """Return what there is once the kernel has taken everything apart, and how long that took.

    A hundredth of what there was may be others': they start and end things on this host too.
    """
    others = most // 100
    begin = time.monotonic()
    while True:
        now = count_everything(groups)
        seconds = time.monotonic() - begin
        more = (
            now.processes - before.processes,
            now.cgroups - before.cgroups,
            now.network_namespaces - before.network_namespaces,
        )
        if max(more) <= others or seconds > SETTLE_S:
            return now, seconds
        await trio.sleep(0.25)


class Crowd:
    """The live sandboxes, and what is started beside them."""

    def __init__(self, program: Path, memory_before: Memory) -> None:
        self._program, self._before = program, memory_before
        self._bind = minisandbox.Bind(source=program.parent, target="/bench")
        self._stack = AsyncExitStack()
        self._live: list[minisandbox.Sandbox] = []
        self._order = random.Random(0)
        self.opened_s: list[float] = []
        self._peers, self.skipped = installed([bubblewrap, nsjail], program)

    @asynccontextmanager
    async def open(self, state_dir: Path | None, most: int) -> AsyncIterator[None]:
        """Open the supervisor for the block, and close everything."""
        opening = minisandbox.open_supervisor(state_dir=state_dir, max_parked=0, max_sandboxes=most + 2 * AT_ONCE)
        async with opening as self._supervisor, self._stack:
            yield

    async def close_all(self) -> None:
        """Close all, several at once, as their owners would; the end of the block finds them closed."""
        waiting = list(self._live)

        async def close_some() -> None:
            while waiting:
                await self._supervisor.close_sandbox(waiting.pop())

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(close_some)

    async def measure(self, effort: Effort, live: int) -> Level:
        """Let so many live, and measure beside them."""
        for _ in with_bar(range(live - len(self._live)), f"up to {live:,}"):
            begin = time.perf_counter()
            sandbox = await self._stack.enter_async_context(self._open())
            await run_true(sandbox)
            self.opened_s.append(time.perf_counter() - begin)
            self._live.append(sandbox)
        await trio.sleep(2.5)  # what the kernel gives back late, and counts late, is settled then
        launcher = psutil.Process().children()[0]
        inits = [child.pid for child in launcher.children()]
        group = self._supervisor.counter_files().get("memory")
        memory = look_at_memory(inits, launcher.pid, Path(group).parents[1] if group else None).since(self._before)
        return Level(
            live=live,
            memory=memory,
            fds={"supervisor": psutil.Process().num_fds(), "launcher": launcher.num_fds()},
            latency_s=await self._latencies(effort),
            steps_s=await self._steps(effort),
            rates=await self._rates(effort),
        )

    def _open(self, trace: bool = False) -> AbstractAsyncContextManager[minisandbox.Sandbox]:
        return self._supervisor.open_sandbox(binds=(self._bind,), trace=trace)

    async def _latencies(self, effort: Effort) -> dict[str, list[float]]:
        """Start each once, again and again, in a new order each time."""
        actions: dict[str, Callable[[], Awaitable[float]]] = {
            "bare": bare(self._program).once,
            "start_run_gone": StartRunGone(self._open).once,
            "run_in_live": self._run_in_live,
            **{peer.key: peer.once for peer in self._peers},
        }
        seconds: dict[str, list[float]] = {key: [] for key in actions}
        for number in with_bar(range(-effort.warm_up, effort.runs), f"beside {len(self._live):,}"):
            for key in self._order.sample(sorted(actions), len(actions)):
                taken = await actions[key]()
                if number >= 0:
                    seconds[key].append(taken)
                await trio.lowlevel.checkpoint()
        return seconds

    async def _run_in_live(self) -> float:
        """Time one run in a sandbox that has been idle for long."""
        sandbox = self._order.choice(self._live)
        begin = time.perf_counter()
        await run_true(sandbox)
        return time.perf_counter() - begin

    async def _steps(self, effort: Effort) -> dict[str, list[float]]:
        """Time each step of a start, a run and an end, and the CPU time of those who do it."""
        seconds: dict[str, list[float]] = defaultdict(list)
        launcher = psutil.Process().children()[0]
        launcher_s = cpu_time_s(launcher)
        for _ in range(effort.runs):
            begin, used = time.perf_counter(), time.process_time()
            async with self._open(trace=True) as sandbox:
                opened = time.perf_counter()
                await run_true(sandbox)
                ran = time.perf_counter()
            seconds["open"].append(opened - begin)
            seconds["run"].append(ran - opened)
            seconds["close"].append(time.perf_counter() - ran)
            seconds["CPU time of the supervisor"].append(time.process_time() - used)
            seconds["of open: slot"].append(sandbox.timing.slot_s)
            for name, step_s in sandbox.timing.stages.items():
                seconds[f"of open: {name}"].append(step_s)
        seconds["CPU time of the launcher, mean"] = [(cpu_time_s(launcher) - launcher_s) / effort.runs]
        return dict(seconds)

    async def _rates(self, effort: Effort) -> dict[str, Rate]:
        """Start as many as possible for a while, several at once."""
        subjects: list[Subject] = [bare(self._program), StartRunGone(self._open), *self._peers]
        return {each.key: await each.many(AT_ONCE, effort.seconds) for each in subjects}


def cpu_time_s(process: psutil.Process) -> float:
    """Return what a process used itself; the kernel tells it in hundredths of a second."""
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
