"""The kind *performance*: a function that must give a reference's answers, within a multiple of its CPU time.

The clock is the kernel's count of the control group of a process, from its start to its end, read from outside. So
import, threads, children and whatever is done between two calls or after the last answer count as any other work, and
no clock that a submission could patch or fake plays a part. Nothing can be remembered or prepared: each round has
inputs of its own, made from the judge's key, in sandboxes of their own, and every answer is compared by the driver.

A round is three runs on the same inputs, one after the other: of the submission, of the reference, and of a module that
does nothing, whose time is taken off. Which goes first changes from round to round.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import INNER_ROOT, Assignment, TaskFile
from minisandbox.judge.bench import Bench
from minisandbox.judge.calling import Called, call_all, request_of, tuple_of
from minisandbox.judge.driver_program import FAILED, NONE, NOT_PLAIN, RIGHT
from minisandbox.judge.evidence import Code, Evidence, evidence
from minisandbox.judge.frames import RETURNED, encode
from minisandbox.judge.integrity import Cap
from minisandbox.judge.spec import Cell, CellRecord, CellUsage, Integrity, Manifest, Outcome, Plan, TestRecord
from minisandbox.judge.timing import PerformanceWork, Round, is_excessive, outcomes_of

CEILING = Integrity.L4

MAIN_CELL = "rounds"
_INPUTS, _NOTHING = "inputs", "nothing"
_NOTHING_SOURCE = b"def nothing(*args, **kwargs):\n    return None\n"
_SEED_BYTES = 6


def plan(assignment: Assignment, manifest: Manifest, seed: bytes) -> Plan:
    """Return one cell for all rounds, whose tests are the bounds."""
    work = _work(assignment)
    return Plan(cells=(Cell(name=MAIN_CELL, tests=tuple(bound.id for bound in work.bounds)),))


def caps(assignment: Assignment) -> tuple[Cap, ...]:
    """Return none: what is expected is in no cell of a submission."""
    return ()


@dataclass(slots=True)
class _Measured:
    """What is known so far."""

    rounds: list[Round] = field(default_factory=list)
    failed: Outcome | None = None
    """How the submission failed; then nothing more is measured."""
    notes: list[str] = field(default_factory=list)
    evidence: tuple[Evidence, ...] = ()
    memory_peak_bytes: int = 0

    @property
    def ratios(self) -> list[float]:
        return [each.ratio for each in self.rounds]


async def run_cell(cell: Cell, bench: Bench) -> CellRecord:
    """Run rounds until they tell, or there were enough of them."""
    work = _work(bench.assignment)
    measured = _Measured()
    outcomes = None
    while outcomes is None and measured.failed is None and len(measured.rounds) < work.most_rounds:
        await _run_round(len(measured.rounds), cell, bench, measured)
        if len(measured.rounds) >= work.rounds:
            outcomes = outcomes_of(work, measured.ratios)
    usage = _usage(cell, work, measured)
    if measured.failed is not None:
        tests = tuple(TestRecord(id=test, outcome=measured.failed) for test in cell.tests)
        return CellRecord(cell=cell.name, tests=tests, evidence=measured.evidence, usage=usage)
    if outcomes is None:
        why = f"too near to a bound to tell after {len(measured.rounds)} rounds: {_shown(measured.ratios)}"
        return CellRecord(cell=cell.name, failure=why, usage=usage)
    fast = (evidence(Code.E18_EXCESS_SPEED, cell=cell.name),) if is_excessive(work, measured.ratios) else ()
    tests = tuple(TestRecord(id=test, outcome=outcomes[test]) for test in cell.tests)
    return CellRecord(cell=cell.name, tests=tests, evidence=fast, usage=usage)


async def _run_round(number: int, cell: Cell, bench: Bench, measured: _Measured) -> None:
    work = _work(bench.assignment)
    arguments = await _make_inputs(number, bench)
    theirs = [request_of(work.module, work.function, each) for each in arguments]
    runs = {
        "reference": (theirs, [_module(work.module, work.reference)]),
        _NOTHING: ([request_of(_NOTHING, _NOTHING, each) for each in arguments], [_module(_NOTHING, _NOTHING_SOURCE)]),
        "submission": (theirs, None),
    }
    called: dict[str, Called] = {}
    names = list(runs)
    for name in (*names[number % len(names) :], *names[: number % len(names)]):
        requests, files = runs[name]
        called[name] = await _run(requests, files, bench)
        if files is not None:
            _insist(name, called[name], requests)
    expected = [reply.removeprefix(RETURNED) for reply in called["reference"].replies]
    await _compare(called["submission"], expected, cell, bench, measured)
    if number and called["submission"].ended is Outcome.AC and measured.failed in (Outcome.WA, Outcome.RTE):
        measured.evidence = (*measured.evidence, evidence(Code.E20_SEED_DEPENDENT, cell=cell.name))
    if measured.failed is None:
        times = {name: _cpu_time_s(each) for name, each in called.items()}
        measured.rounds.append(
            Round(submission_s=times["submission"], reference_s=times["reference"], nothing_s=times[_NOTHING])
        )
        if not measured.rounds[-1].tells:
            raise UsageError(f"the reference takes {times['reference']:.3f} s of CPU time, too little to compare with")


async def _make_inputs(number: int, bench: Bench) -> list[bytes]:
    """Return the arguments of the calls of a round, encoded. Nobody without the judge's key can know them."""
    work = _work(bench.assignment)
    seed = seed_of(number, bench.seed)
    requests = [request_of(_INPUTS, "make", encode(((seed, each), {}))) for each in range(work.calls)]
    called = await _run(requests, [_module(_INPUTS, work.inputs)], bench)
    _insist(_INPUTS, called, requests)
    values = [reply.removeprefix(RETURNED) for reply in called.replies]
    if not all(value[:1] in (b"t", b"l") for value in values):
        raise UsageError("make(seed, number) of the task's inputs must return a tuple or a list of arguments")
    return [tuple_of(b"t" + value[1:], encode({})) for value in values]


def seed_of(number: int, seed: bytes) -> int:
    """Return the seed of a round, of that of the submission."""
    return int.from_bytes(hmac.digest(seed, f"round {number}".encode(), "sha256")[:_SEED_BYTES], "big")


async def _run(requests: Sequence[bytes], files: Sequence[TaskFile] | None, bench: Bench) -> Called:
    """Make calls of the submission, or of files of the task, in a sandbox of their own."""
    budget = bench.assignment.budget
    async with bench.open_calls(budget, manifest=bench.manifest if files is None else None) as sandbox:
        if files is not None:
            await bench.lay_down(sandbox, files, INNER_ROOT)
        return await call_all(sandbox, requests, budget.idle_s)


async def _compare(called: Called, expected: list[bytes], cell: Cell, bench: Bench, measured: _Measured) -> None:
    """Take note of what is wrong with the answers of a submission, if anything is."""
    work = _work(bench.assignment)
    wanted: list[tuple[bytes, str | None]] = [(value, None) for value in expected]
    marks = await bench.driver.replies(work.tolerance, wanted, called.replies)
    grades = {grade for grade, _, _ in marks}
    measured.memory_peak_bytes = max(measured.memory_peak_bytes, called.result.usage.memory_peak_bytes or 0)
    measured.notes += [note for _, _, note in marks if note][:3]
    if NOT_PLAIN in grades:
        measured.evidence = (evidence(Code.E14_NOT_PLAIN_DATA, cell=cell.name),)
    if called.ended is not Outcome.AC:
        measured.failed = called.ended
    elif grades & {FAILED, NONE}:
        measured.failed = Outcome.RTE
    elif grades != {RIGHT}:
        measured.failed = Outcome.WA


def _insist(name: str, called: Called, requests: Sequence[bytes]) -> None:
    """Raise UsageError unless a module of the task's own answered everything: whatever failed is not a submission."""
    if called.ended is not Outcome.AC or len(called.replies) != len(requests):
        raise UsageError(f"the task's own {name} did not answer its calls: {called.ended.value}")
    if not all(reply.startswith(RETURNED) for reply in called.replies):
        raise UsageError(f"the task's own {name} raised an exception, or returned what is no plain data")


def _cpu_time_s(called: Called) -> float:
    seconds = called.result.usage.cpu_time_s
    if seconds is None:
        raise UsageError("CPU time is not counted on this host, and nothing else decides")
    return seconds


def _module(name: str, source: bytes) -> TaskFile:
    return TaskFile(path=f"{name.replace('.', '/')}.py", content=source)


def _usage(cell: Cell, work: PerformanceWork, measured: _Measured) -> CellUsage:
    notes = [f"ratios: {_shown(measured.ratios)}"] if measured.rounds else []
    return CellUsage(
        name=cell.name,
        cpu_time_s=max((each.submission_s for each in measured.rounds), default=None),
        memory_peak_bytes=measured.memory_peak_bytes,
        marginal=len(measured.rounds) > work.rounds,
        notes=tuple([*notes, *measured.notes][:10]),
    )


def _shown(ratios: Sequence[float]) -> str:
    return " ".join(f"{ratio:.3f}" for ratio in sorted(ratios))


def _work(assignment: Assignment) -> PerformanceWork:
    assert isinstance(assignment.work, PerformanceWork)
    return assignment.work
