"""The kind *function*: a module is imported in a cell, and its functions are called from here, over frames of data.

Expected values are compared out here, type by type, and are never in the cell: no object of the submission, no frame of
its interpreter and no patch of it can reach the comparison. All calls of a task go to one process, one after the other;
what it did not answer failed.
"""

from __future__ import annotations

import math
from pathlib import Path

import trio

from minisandbox.judge import frames
from minisandbox.judge.assignment import INNER_ROOT, Assignment, Call, FunctionWork
from minisandbox.judge.bench import Bench, outcome_of
from minisandbox.judge.evidence import Code, Evidence, evidence, printable
from minisandbox.judge.frames import FRAME_MAX_BYTES, FrameError, Value, decode, frame
from minisandbox.judge.idle import guarding
from minisandbox.judge.inbox import Inbox
from minisandbox.judge.integrity import Cap
from minisandbox.judge.spec import Cell, CellRecord, Integrity, Manifest, Outcome, Plan, TestRecord
from minisandbox.runtime.process import Process
from minisandbox.spec import Result

CEILING = Integrity.L4

MAIN_CELL = "calls"
SHIM = "/shim.py"
_SOURCES = {"frames.py": Path(frames.__file__), "shim.py": Path(__file__).parents[1] / "shim.py"}


def plan(assignment: Assignment, manifest: Manifest, seed: bytes) -> Plan:
    """Return one cell for all calls."""
    return Plan(cells=(Cell(name=MAIN_CELL, tests=tuple(call.id for call in _work(assignment).calls)),))


def caps(assignment: Assignment) -> tuple[Cap, ...]:
    """Return none: what is expected is in no cell."""
    return ()


async def run_cell(cell: Cell, bench: Bench) -> CellRecord:
    """Import the module, and call its functions in order, until it ends."""
    work = _work(bench.assignment)
    replies: dict[str, Reply] = {}
    async with bench.open_cell(bench.assignment.budget, manifest=bench.manifest) as sandbox:
        for name, path in _SOURCES.items():
            await sandbox.write_file(f"/{name}", path.read_bytes())
        async with (
            guarding(sandbox, bench.assignment.budget.idle_s) as guard,
            await sandbox.start(["python3", "-s", "-B", SHIM], cwd=INNER_ROOT) as process,
        ):
            result = await _serve(work, process, replies)
    ended = outcome_of(result, guard)
    return CellRecord(
        cell=cell.name,
        tests=tuple(_test(call, replies.get(call.id), ended, work.tolerance) for call in work.calls),
        evidence=tuple(_suspicions(replies, cell.name)),
        usage=bench.usage(cell.name, result, *_notes(replies)),
    )


class Reply:
    """What a call came to: a value, an exception's names, or neither."""

    def __init__(self, message: Value) -> None:
        self.value: Value = None
        self.raised: tuple[str, ...] | None = None
        self.note = ""
        self.is_plain = True
        match message:
            case ["returned", value]:
                self.value = value
                self.returned = True
            case ["raised", [*names], str(note)] if names and all(type(name) is str for name in names):
                self.raised, self.note, self.returned = tuple(names), note, False
            case ["not plain", str(note)]:
                self.is_plain, self.note, self.returned = False, note, False
            case _:
                raise FrameError("a reply that is none")


async def _serve(work: FunctionWork, process: Process, replies: dict[str, Reply]) -> Result:
    """Make the calls, and return how the process ended; one that did not answer them all is not waited for."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_discard, process)
        await _call_all(work, process, replies)
        await process.stdin.aclose()
        if len(replies) < len(work.calls):
            await process.kill()
        result = await process.wait()
        nursery.cancel_scope.cancel()
    return result


async def _call_all(work: FunctionWork, process: Process, replies: dict[str, Reply]) -> None:
    """Make the calls. Returns early when the process ends, or says what is no reply."""
    inbox = Inbox(process)
    for call in work.calls:
        request = frame((work.module, INNER_ROOT, call.function, decode(call.arguments)))
        try:
            await process.stdin.send_all(request)
            reply = Reply(await inbox.next())
        except (EOFError, FrameError, trio.BrokenResourceError):
            return
        if not inbox.is_empty:  # more than one reply for a call: it answers what it was not asked
            return
        replies[call.id] = reply


async def _discard(process: Process) -> None:
    """Read what the submission says for people, so that it is not held up."""
    while await process.stderr.receive_some(FRAME_MAX_BYTES):
        pass


def _test(call: Call, reply: Reply | None, ended: Outcome, tolerance: float | None) -> TestRecord:
    if reply is None:
        return TestRecord(id=call.id, outcome=ended if ended is not Outcome.AC else Outcome.RTE)
    if call.raises is not None:
        right = reply.raised is not None and call.raises in reply.raised
        return TestRecord(id=call.id, outcome=Outcome.AC if right else Outcome.WA)
    if not reply.returned:
        return TestRecord(id=call.id, outcome=Outcome.RTE if reply.is_plain else Outcome.WA)
    right = is_same(reply.value, decode(call.expected), tolerance)
    return TestRecord(id=call.id, outcome=Outcome.AC if right else Outcome.WA)


def is_same(got: Value, want: Value, tolerance: float | None) -> bool:
    """Return whether two plain values are equal and of the same types all the way down; floats within a tolerance."""
    if type(got) is not type(want):
        return False
    if isinstance(want, float):
        if tolerance is not None and math.isfinite(want) and math.isfinite(got):
            return math.isclose(got, want, rel_tol=tolerance, abs_tol=tolerance)
        return bool(got == want) or (math.isnan(got) and math.isnan(want))
    if isinstance(want, list | tuple):
        return len(got) == len(want) and all(is_same(a, b, tolerance) for a, b in zip(got, want, strict=True))
    if isinstance(want, dict):
        mine = {(type(key), key): value for key, value in got.items()}
        right = {(type(key), key): value for key, value in want.items()}
        return mine.keys() == right.keys() and all(is_same(mine[key], right[key], tolerance) for key in right)
    if isinstance(want, set):
        return {(type(item), item) for item in got} == {(type(item), item) for item in want}
    return bool(got == want)


def _suspicions(replies: dict[str, Reply], cell: str) -> list[Evidence]:
    odd = tuple(name for name, reply in replies.items() if not reply.is_plain)
    return [evidence(Code.E14_NOT_PLAIN_DATA, cell=cell, paths=odd)] if odd else []


def _notes(replies: dict[str, Reply]) -> list[str]:
    return [f"{name}: {printable(reply.note)}" for name, reply in replies.items() if reply.note][:10]


def _work(assignment: Assignment) -> FunctionWork:
    assert isinstance(assignment.work, FunctionWork)
    return assignment.work
