"""What a verdict costs, beside the bare run of the same tests and beside a sandbox that only runs the program.

All subjects take turns in one process, in a new random order each time, so that noise of the machine meets them alike.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import msgspec
import trio

import minisandbox
from bench.command import parser_of, run_benchmark
from bench.samples import Machine, look_at_machine
from minisandbox.judge.assignment import Assignment, FunctionWork, StdioWork, TestCase, Work, call
from minisandbox.judge.bench import open_bench
from minisandbox.judge.kind import kind_of
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_directory
from minisandbox.judge.spec import Manifest
from minisandbox.judge.store import Store
from minisandbox.judge.warm import open_warm

AT_ONCE = (1, 2, 4)
CALLS = 10
STDIO = StdioWork(language="python", source="main.py", cases=(TestCase(id="1", input=b"3", answer=b"6"),))
FUNCTION = FunctionWork(
    module="m", calls=tuple(call(str(number), "f", number, expected=2 * number) for number in range(CALLS))
)
FILES = {"main.py": "print(2 * int(input()))\n", "m.py": "def f(x):\n    return 2 * x\n"}
BARE_TEST = f"import m\nassert all(m.f(number) == 2 * number for number in range({CALLS}))"

RATIOS = (
    ("function verdict / bare test", "function_verdict", "bare_test", 2.0),
    ("stdio verdict / start, run, gone", "stdio_verdict", "start_run_gone", 1.5),
)
"""What is compared, and the most that it should be; the first with warm templates."""

EXAMPLES = """examples:
  bench/judge.py                                      everything, in about a minute
  bench/judge.py --quick --json judge.json --plot judge.png"""

Step = Callable[[], Awaitable[object]]


class JudgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement."""

    machine: Machine
    seconds: dict[str, list[float]]
    """Of each subject, every sample."""
    verdicts_per_s: dict[int, float]
    """Of the stdio task, by the number at once."""

    def p50(self, subject: str) -> float:
        """Return the median of a subject in seconds."""
        return median(self.seconds[subject])

    def lines(self) -> list[str]:
        """Return what a person reads."""
        lines = [str(self.machine), f"load {self.machine.load_1min:g}"]
        for name, samples in self.seconds.items():
            late = sorted(samples)[max(0, int(0.99 * len(samples)) - 1)]
            lines.append(f"{name:<18} p50 {1e3 * self.p50(name):8.2f} ms   p99 {1e3 * late:8.2f} ms   n {len(samples)}")
        for text, above, below, most in RATIOS:
            lines.append(f"{self.p50(above) / self.p50(below):6.2f} x  {text} (at most {most:g} x)")
        lines += [f"{rate:8.1f} verdicts/s, {number} at once" for number, rate in self.verdicts_per_s.items()]
        whole = self.p50("ingest") + self.p50("stdio_verdict")
        for stage, seconds in (
            ("ingest", self.p50("ingest")),
            ("cell", self.p50("stdio_cell")),
            ("plan, decide, record", self.p50("stdio_verdict") - self.p50("stdio_cell")),
        ):
            lines.append(f"{100 * seconds / whole:6.1f} %  {stage}, of a stdio verdict with its ingest")
        return lines


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write what was asked for."""
    options = parse(arguments)
    runs = options.runs or (10 if options.quick else 200)
    return run_benchmark(options, partial(measure, runs, 0.5 if options.quick else 5.0), show, draw)


def show(report: JudgeReport) -> None:
    """Print what a person reads."""
    print("\n".join(report.lines()))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, EXAMPLES, "measure a twentieth")
    parser.add_argument("--runs", type=int, metavar="N", help="samples of each subject")
    return parser.parse_args(arguments)


async def measure(runs: int, seconds: float) -> JudgeReport:
    """Measure every subject."""
    machine = look_at_machine()
    with tempfile.TemporaryDirectory(prefix="minisandbox-bench-") as name:
        place = Path(name)
        (place / "submission").mkdir()
        for file, text in FILES.items():
            (place / "submission" / file).write_text(text)
        async with minisandbox.open_supervisor(state_dir=place / "state") as supervisor, open_warm(supervisor) as warm:
            judge = Judge(supervisor=supervisor, store=Store.open(place / "judge"), warm=warm)
            steps = await subjects(judge, place / "submission")
            samples: dict[str, list[float]] = {key: [] for key in steps}
            for turn in range(runs + 2):
                for key in random.sample(list(steps), len(steps)):
                    begun = time.perf_counter()
                    await steps[key]()
                    if turn >= 2:  # the first ones build what the others use
                        samples[key].append(time.perf_counter() - begun)
            rates = {number: await rate(steps["stdio_verdict"], number, seconds) for number in AT_ONCE}
    return JudgeReport(machine=machine, seconds=samples, verdicts_per_s=rates)


async def subjects(judge: Judge, submission: Path) -> dict[str, Step]:
    """Return what is measured, by name."""
    supervisor = judge.supervisor

    def feed(work: Work) -> tuple[Assignment, Step]:
        task = Assignment(name="bench", work=work)
        return task, lambda: judge.take_in(task.declared, feed_directory(submission, task.declared))

    stdio, take_in = feed(STDIO)
    function, _ = feed(FUNCTION)
    manifest = await take_in()
    assert isinstance(manifest, Manifest)
    (cell,) = kind_of(stdio).plan(stdio, manifest, b"").cells

    async def bare_test() -> None:
        await trio.run_process(["/usr/bin/python3", "-s", "-B", "-c", BARE_TEST], cwd=submission)

    async def start_run_gone() -> None:
        async with supervisor.open_sandbox(policy="strict") as sandbox:
            await sandbox.write_file("/main.py", FILES["main.py"].encode())
            await sandbox.run(["python3", "-s", "-B", "/main.py"], stdin=b"3")

    async def stdio_cell() -> None:
        async with open_bench(supervisor, judge.store, stdio, manifest, b"", judge.warm) as bench:
            await kind_of(stdio).run_cell(cell, bench)

    return {
        "bare_test": bare_test,
        "function_verdict": lambda: judge.judge(function, manifest),
        "start_run_gone": start_run_gone,
        "stdio_verdict": lambda: judge.judge(stdio, manifest),
        "stdio_cell": stdio_cell,
        "ingest": take_in,
    }


async def rate(step: Step, at_once: int, seconds: float) -> float:
    """Return how many were done in a second, so many at once."""
    done = 0
    begun = trio.current_time()

    async def work() -> None:
        nonlocal done
        while trio.current_time() < begun + seconds:
            await step()
            done += 1

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)
    return done / (trio.current_time() - begun)


def draw(report: JudgeReport, path: Path) -> None:
    """Draw the times of all subjects and the rates."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    left.boxplot([[1e3 * each for each in samples] for samples in report.seconds.values()], orientation="horizontal")
    left.set_yticks(range(1, len(report.seconds) + 1), list(report.seconds))
    left.set_xlabel("ms")
    right.bar([str(number) for number in report.verdicts_per_s], list(report.verdicts_per_s.values()))
    right.set_xlabel("at once")
    right.set_ylabel("verdicts in a second")
    figure.suptitle(str(report.machine), fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
