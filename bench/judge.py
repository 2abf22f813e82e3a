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

import trio

import minisandbox
from bench.command import parser_of, run_benchmark, with_bar
from bench.judge_report import KINDS, JudgeReport, print_judge
from bench.samples import Timed, look_at_machine
from bench.tools import Rate
from minisandbox.judge.assignment import Assignment, FunctionWork, StdioWork, TestCase, Work, call
from minisandbox.judge.bench import open_bench
from minisandbox.judge.kind import kind_of
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_directory
from minisandbox.judge.spec import Manifest
from minisandbox.judge.store import Store
from minisandbox.judge.warm import open_warm

AT_ONCE = (1, 2, 4, 8)
ROUNDS = 4
CALLS = 10
STDIO = StdioWork(language="python", source="main.py", cases=(TestCase(id="1", input=b"3", answer=b"6"),))
FUNCTION = FunctionWork(
    module="m", calls=tuple(call(str(number), "f", number, expected=2 * number) for number in range(CALLS))
)
WRONG = FunctionWork(module="m", calls=(call("1", "f", 1, expected=7),))
FILES = {"main.py": "print(2 * int(input()))\n", "m.py": "def f(x):\n    return 2 * x\n"}
BARE_TEST = f"import m\nassert all(m.f(number) == 2 * number for number in range({CALLS}))"

LABELS = {
    "bare_test": "bare test",
    "function_verdict": "function verdict",
    "function_cell": "its cell alone",
    "wrong_verdict": "function verdict, wrong",
    "start_run_gone": "start, run, gone",
    "stdio_verdict": "stdio verdict",
    "stdio_cell": "its cell alone",
    "ingest": "ingest",
}

EXAMPLES = """examples:
  bench/judge.py                                      everything, in about two minutes
  bench/judge.py --quick                              a first impression, in about ten seconds
  bench/judge.py --json judge.json --plot judge.png"""

Step = Callable[[], Awaitable[object]]


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write what was asked for."""
    options = parse(arguments)
    runs = options.runs or (10 if options.quick else 300)
    seconds = 0.1 if options.quick else 1.5
    return run_benchmark(options, partial(measure, runs, seconds), print_judge, draw)


def draw(report: JudgeReport, file: Path) -> None:
    """Draw the picture; what draws is only imported when there is one to be drawn."""
    from bench.judge_plot import draw_judge

    draw_judge(report, file)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__, EXAMPLES, "measure a thirtieth")
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
            samples: dict[str, list[float]] = {key: [] for key in LABELS}
            for turn in with_bar(range(runs + 2), "one at a time"):
                for key in random.sample(list(steps), len(steps)):
                    begun = time.perf_counter()
                    await steps[key]()
                    if turn >= 2:  # the first ones build what the others use
                        samples[key].append(time.perf_counter() - begun)
            rates = await all_rates(steps, seconds)
    timed = {key: Timed(label=label, seconds=samples[key]) for key, label in LABELS.items()}
    return JudgeReport(machine=machine, subjects=timed, rates=rates)


async def all_rates(steps: dict[str, Step], seconds: float) -> dict[str, dict[int, list[Rate]]]:
    """Return the rates of each kind at each number at once, in rounds in random order."""
    rates: dict[str, dict[int, list[Rate]]] = {kind: {number: [] for number in AT_ONCE} for kind in KINDS}
    places = [(kind, number) for kind in KINDS for number in AT_ONCE]
    for _ in with_bar(range(ROUNDS), "several at once"):
        for kind, number in random.sample(places, len(places)):
            rates[kind][number].append(await rate(steps[f"{kind}_verdict"], number, seconds))
    return rates


async def subjects(judge: Judge, submission: Path) -> dict[str, Step]:
    """Return what is measured, by name."""
    supervisor = judge.supervisor

    def task(work: Work) -> Assignment:
        return Assignment(name="bench", work=work)

    stdio, function, wrong = task(STDIO), task(FUNCTION), task(WRONG)

    async def take_in() -> Manifest:
        return await judge.take_in(stdio.declared, feed_directory(submission, stdio.declared))

    manifest = await take_in()

    async def bare_test() -> None:
        await trio.run_process(["/usr/bin/python3", "-s", "-B", "-c", BARE_TEST], cwd=submission)

    async def start_run_gone() -> None:
        async with supervisor.open_sandbox(policy="strict") as sandbox:
            await sandbox.write_file("/main.py", FILES["main.py"].encode())
            await sandbox.run(["python3", "-s", "-B", "/main.py"], stdin=b"3")

    async def run_cell(work: Assignment) -> None:
        async with open_bench(supervisor, judge.store, work, manifest, b"", judge.warm) as bench:
            (cell,) = kind_of(work).plan(work, manifest, b"").cells
            await kind_of(work).run_cell(cell, bench)

    return {
        "bare_test": bare_test,
        "function_verdict": partial(judge.judge, function, manifest),
        "function_cell": partial(run_cell, function),
        "wrong_verdict": partial(judge.judge, wrong, manifest),
        "start_run_gone": start_run_gone,
        "stdio_verdict": partial(judge.judge, stdio, manifest),
        "stdio_cell": partial(run_cell, stdio),
        "ingest": take_in,
    }


async def rate(step: Step, at_once: int, seconds: float) -> Rate:
    """Return how many were done, so many at once, in about so many seconds."""
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
    return Rate(starts=done, seconds=trio.current_time() - begun)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
