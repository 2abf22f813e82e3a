"""The kind *function*: a module is imported in a cell, and its functions are called from here, over frames of data.

Expected values are compared by the driver, type by type, and are never in the cell: no object of the submission, no
frame of its interpreter and no patch of it can reach the comparison. All calls of a task go to one process, one after
the other; what it did not answer failed.
"""

from __future__ import annotations

from minisandbox.judge.assignment import Assignment, FunctionWork
from minisandbox.judge.bench import Bench
from minisandbox.judge.calling import call_all, request_of
from minisandbox.judge.driver_program import FAILED, NOT_PLAIN, RIGHT, WRONG
from minisandbox.judge.evidence import Code, evidence
from minisandbox.judge.integrity import Cap
from minisandbox.judge.spec import Cell, CellRecord, Integrity, Manifest, Outcome, Plan, TestRecord

CEILING = Integrity.L4

MAIN_CELL = "calls"
OUTCOMES = {RIGHT: Outcome.AC, WRONG: Outcome.WA, FAILED: Outcome.RTE, NOT_PLAIN: Outcome.WA}


def plan(assignment: Assignment, manifest: Manifest, seed: bytes) -> Plan:
    """Return one cell for all calls."""
    return Plan(cells=(Cell(name=MAIN_CELL, tests=tuple(call.id for call in _work(assignment).calls)),))


def caps(assignment: Assignment) -> tuple[Cap, ...]:
    """Return none: what is expected is in no cell."""
    return ()


async def run_cell(cell: Cell, bench: Bench) -> CellRecord:
    """Import the module, call its functions in order until it ends, and have the replies compared."""
    work = _work(bench.assignment)
    requests = [request_of(work.module, call.function, call.arguments) for call in work.calls]
    async with bench.open_calls(bench.assignment.budget, manifest=bench.manifest) as sandbox:
        called = await call_all(sandbox, requests, bench.assignment.budget.idle_s)
    wanted = [(call.expected, call.raises) for call in work.calls]
    marks = await bench.driver.replies(work.tolerance, wanted, called.replies)
    failed = called.ended if called.ended is not Outcome.AC else Outcome.RTE
    pairs = list(zip(work.calls, marks, strict=True))
    odd = tuple(call.id for call, (grade, _, _) in pairs if grade == NOT_PLAIN)
    notes = [f"{call.id}: {note}" for call, (_, _, note) in pairs if note][:10]
    return CellRecord(
        cell=cell.name,
        tests=tuple(TestRecord(id=call.id, outcome=OUTCOMES.get(grade, failed)) for call, (grade, _, _) in pairs),
        evidence=(evidence(Code.E14_NOT_PLAIN_DATA, cell=cell.name, paths=odd),) if odd else (),
        usage=bench.usage(cell.name, called.result, *notes),
    )


def _work(assignment: Assignment) -> FunctionWork:
    assert isinstance(assignment.work, FunctionWork)
    return assignment.work
