"""The kind *stdio*: a program reads an input and writes an answer; each input in a sandbox of its own.

Inputs go in by the standard input, and what comes out is compared by the driver: expected answers are in no sandbox
that runs the submission. A language that is compiled is so in a cell before, whose product is taken out as bytes.
"""

from __future__ import annotations

from minisandbox.errors import CommandNotExecutableError, CommandNotFoundError, FileTransferError, UsageError
from minisandbox.judge.assignment import INNER_ROOT, Assignment, External, Interactive, StdioWork, TestCase
from minisandbox.judge.bench import Bench, outcome_of
from minisandbox.judge.external import check, interact
from minisandbox.judge.idle import guarding
from minisandbox.judge.integrity import Cap
from minisandbox.judge.languages import BUILT, LANGUAGES, PROGRAM
from minisandbox.judge.layout import overlaid
from minisandbox.judge.spec import Budget, Cell, CellRecord, Integrity, Manifest, Outcome, Plan, Role, TestRecord
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import Result

CEILING = Integrity.L4

BUILD_CELL = "build"
BUILD_BUDGET = Budget(cpu_time_s=60.0, memory_bytes=2 << 30, processes=128, disk_bytes=512 << 20)
BUILT_MAX_BYTES = 64 << 20


def plan(assignment: Assignment, manifest: Manifest, seed: bytes) -> Plan:
    """Return a cell for each input, and before them one that compiles."""
    work = _work(assignment)
    if work.language not in LANGUAGES:
        raise UsageError(f"there is no language {work.language!r}; there are {', '.join(LANGUAGES)}")
    cells = [Cell(name=f"case:{case.id}", tests=(case.id,)) for case in work.cases]
    if LANGUAGES[work.language].build:
        cells.insert(0, Cell(name=BUILD_CELL, role=Role.BUILD, tests=(BUILD_CELL,)))
    return Plan(cells=tuple(cells))


def caps(assignment: Assignment) -> tuple[Cap, ...]:
    """Return none: what is expected is in no cell."""
    return ()


async def run_cell(cell: Cell, bench: Bench) -> CellRecord:
    """Compile the submission, or run it on one input."""
    if cell.role is Role.BUILD:
        return await _build(cell, bench)
    (test,) = cell.tests
    case = next(case for case in _work(bench.assignment).cases if case.id == test)
    return await _run_case(cell, case, bench)


async def _build(cell: Cell, bench: Bench) -> CellRecord:
    work = _work(bench.assignment)
    command = LANGUAGES[work.language].build_command(work.source)
    async with bench.open_cell(BUILD_BUDGET, manifest=bench.manifest) as sandbox:
        result = await sandbox.run(command, cwd=INNER_ROOT)
        try:
            product = await sandbox.read_file(BUILT, max_bytes=BUILT_MAX_BYTES) if result.ok else b""
        except FileTransferError:  # a compiler that was led to make something else
            product = b""
    usage = bench.usage(cell.name, result, result.stderr[:4096].decode(errors="replace"))
    bench.products[BUILD_CELL] = product
    outcome = Outcome.AC if product else Outcome.CE
    return CellRecord(cell=cell.name, tests=(TestRecord(id=cell.name, outcome=outcome),), usage=usage)


async def _run_case(cell: Cell, case: TestCase, bench: Bench) -> CellRecord:
    work = _work(bench.assignment)
    manifest = overlaid(bench.manifest, case.files, bench.store)
    async with bench.open_cell(bench.assignment.budget, manifest=manifest) as sandbox:
        if BUILD_CELL in bench.products:
            await sandbox.write_file(PROGRAM, bench.products[BUILD_CELL], mode=0o755)
        command = LANGUAGES[work.language].run_command(work.source)
        try:
            outcome, result = await _run(case, sandbox, command, bench)
        except* (CommandNotFoundError, CommandNotExecutableError):
            if command[0] != PROGRAM:  # the rootfs lacks the language
                raise
            outcome, result = Outcome.RTE, None
    if outcome is Outcome.AC and result is not None:
        outcome = await _check(case, result.stdout, bench)
    return CellRecord(
        cell=cell.name,
        tests=(TestRecord(id=case.id, outcome=outcome),),
        usage=bench.usage(cell.name, result, result.stderr[:200].decode(errors="replace")) if result else None,
    )


async def _run(case: TestCase, sandbox: Sandbox, command: list[str], bench: Bench) -> tuple[Outcome, Result]:
    """Run the submission; AC when it ended well, and an interactor, if there is one, was content."""
    work = _work(bench.assignment)
    if isinstance(work.checker, Interactive):
        return await interact(work, case, sandbox, command, bench)
    async with guarding(sandbox, bench.assignment.budget.idle_s) as guard:
        result = await sandbox.run(command, stdin=case.input, cwd=INNER_ROOT)
    return outcome_of(result, guard), result


async def _check(case: TestCase, output: bytes, bench: Bench) -> Outcome:
    checker = _work(bench.assignment).checker
    if isinstance(checker, Interactive):
        return Outcome.AC
    if isinstance(checker, External):
        return await check(checker.program, case, output, bench)
    return Outcome.AC if await bench.driver.accepts(checker, output, case.answer) else Outcome.WA


def _work(assignment: Assignment) -> StdioWork:
    assert isinstance(assignment.work, StdioWork)
    return assignment.work
