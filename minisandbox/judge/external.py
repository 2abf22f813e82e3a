"""Programs of the task's own: checkers, which read an output, and interactors, which talk with a submission.

Each runs in sandboxes of its own, since what it reads is a stranger's: one that an output breaks is no way out. Between
an interactor and a submission are two pipes and this process, which passes bytes on, so many and no more, unread.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import INNER_ROOT, Interactive, Program, StdioWork, TestCase
from minisandbox.judge.bench import Bench, outcome_of
from minisandbox.judge.idle import guarding
from minisandbox.judge.languages import BUILT, LANGUAGES, PROGRAM
from minisandbox.judge.spec import Budget, Outcome
from minisandbox.runtime.process import Process
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import ExitReason, Result

BUDGET = Budget(cpu_time_s=60.0, memory_bytes=1 << 30, disk_bytes=512 << 20)
BUILT_MAX_BYTES = 64 << 20
SOURCE = "/task/program"
INPUT, OUTPUT, ANSWER, FEEDBACK = "/task/input", "/task/output", "/task/answer", "/tmp/feedback"

ANSWERS = {
    "testlib": {0: Outcome.AC, 1: Outcome.WA, 2: Outcome.WA},
    "kattis": {42: Outcome.AC, 43: Outcome.WA},
}
"""What an exit code says, by convention; every other one is a failure of the program, and so of ours."""

_CHUNK_BYTES = 1 << 16
_OVER = frozenset({Outcome.TLE, Outcome.ILE, Outcome.MLE, Outcome.OLE})


async def check(program: Program, case: TestCase, output: bytes, bench: Bench) -> Outcome:
    """Return what a checker says of an output. Raises UsageError when it says nothing.

    An output that breaks it each time is wrong where the answer does not: else to break it would be a way to no score.
    """
    result = await _run_checker(program, case, output, bench)
    if not _says(program, result):
        again = await _run_checker(program, case, output, bench)
        control = await _run_checker(program, case, case.answer, bench)
        if not _says(program, again) and _says(program, control):
            return Outcome.WA
        result = again
    return _answer(program, result)


async def _run_checker(program: Program, case: TestCase, output: bytes, bench: Bench) -> Result:
    async with _open(program, case, bench) as sandbox:
        command = _command(program)
        if program.convention == "kattis":
            return await sandbox.run([*command, INPUT, ANSWER, FEEDBACK], stdin=output, cwd="/tmp")
        await sandbox.write_file(OUTPUT, output)
        return await sandbox.run([*command, INPUT, OUTPUT, ANSWER], cwd="/tmp")


@contextlib.asynccontextmanager
async def _open(program: Program, case: TestCase, bench: Bench) -> AsyncIterator[Sandbox]:
    """Open a cell with a program of the task and its files."""
    if program.language not in LANGUAGES or program.convention not in ANSWERS:
        raise UsageError(f"there is no language {program.language!r} or no convention {program.convention!r}")
    built = await _build(program, bench) if LANGUAGES[program.language].build else b""
    async with bench.open_cell(BUDGET) as sandbox:
        await sandbox.run(["mkdir", "/task"], user="root")
        await sandbox.run(["mkdir", FEEDBACK])
        await sandbox.write_file(INPUT, case.input)
        await sandbox.write_file(ANSWER, case.answer)
        if built:
            await sandbox.write_file(PROGRAM, built, mode=0o755)
        else:
            await sandbox.write_file(SOURCE, program.source)
        yield sandbox


async def _build(program: Program, bench: Bench) -> bytes:
    """Return a program of the task, compiled; once for all tests."""
    if "task" not in bench.products:
        source = f"{SOURCE}.{'cc' if program.language == 'cpp' else program.language}"
        async with bench.open_cell(BUDGET) as sandbox:
            await sandbox.run(["mkdir", "/task"], user="root")
            await sandbox.write_file(source, program.source)
            result = await sandbox.run(LANGUAGES[program.language].build_command(source), cwd="/tmp")
            if not result.ok:
                raise UsageError(f"the task's own program does not compile: {result.stderr[:500]!r}")
            bench.products["task"] = await sandbox.read_file(BUILT, max_bytes=BUILT_MAX_BYTES)
    return bench.products["task"]


def _command(program: Program) -> list[str]:
    return LANGUAGES[program.language].run_command(SOURCE)


def _says(program: Program, result: Result) -> bool:
    """Return whether a program of the task ended with an answer by its convention."""
    return result.exit_reason is ExitReason.EXITED and result.exit_code in ANSWERS[program.convention]


def _answer(program: Program, result: Result) -> Outcome:
    codes = ANSWERS[program.convention]
    if not _says(program, result) or result.exit_code is None:
        raise UsageError(
            f"the task's own program ended with {result.exit_reason.value}, exit code {result.exit_code}, which is no "
            f"answer by the convention {program.convention}"
        )
    return codes[result.exit_code]


async def interact(
    work: StdioWork, case: TestCase, sandbox: Sandbox, command: list[str], bench: Bench
) -> tuple[Outcome, Result]:
    """Let a submission talk with the task's interactor, and return what that says, and how the submission ended.

    A submission beyond its budget is that first, then whatever the interactor says of it, then how it ended. It is
    never ended because the interactor was: what it would have come to must not depend on who was faster. One that
    breaks the interactor of a certified task, which has talked with the solution often enough, is wrong.
    """
    assert isinstance(work.checker, Interactive)
    program = work.checker.program
    budget = bench.assignment.budget
    async with _open(program, case, bench) as other:
        files = [INPUT, ANSWER, FEEDBACK] if program.convention == "kattis" else [INPUT, OUTPUT, ANSWER]
        async with (
            guarding(sandbox, budget.idle_s) as guard,
            await other.start([*_command(program), *files], cwd="/tmp") as theirs,
            await sandbox.start(command, cwd=INNER_ROOT) as ours,
            trio.open_nursery() as nursery,
        ):
            for process in (ours, theirs):
                nursery.start_soon(_discard, process)
            nursery.start_soon(_relay, theirs, ours, BUDGET.output_bytes)
            over = trio.Event()
            nursery.start_soon(_relay, ours, theirs, budget.output_bytes, over)
            said, ended = await theirs.wait(), await ours.wait()
            nursery.cancel_scope.cancel()
    outcome = Outcome.OLE if over.is_set() else outcome_of(ended, guard)
    if outcome in _OVER:
        return outcome, ended
    broken = bench.assignment.certificate is not None and not _says(program, said)
    verdict = Outcome.WA if broken else _answer(program, said)
    return (verdict if verdict is not Outcome.AC else outcome), ended


async def _relay(source: Process, target: Process, most_bytes: int, over: trio.Event | None = None) -> None:
    """Pass bytes on until the source ends, or there are too many; the target sees the end."""
    while chunk := await source.stdout.receive_some(_CHUNK_BYTES):
        most_bytes -= len(chunk)
        if most_bytes < 0:
            if over is not None:
                over.set()
            await source.kill()
            break
        # of one that is gone nothing is kept, or the other would wait for a reader
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await target.stdin.send_all(chunk)
    await target.stdin.aclose()


async def _discard(process: Process) -> None:
    while await process.stderr.receive_some(_CHUNK_BYTES):
        pass
