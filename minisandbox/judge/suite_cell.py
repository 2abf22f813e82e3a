"""One run of a repository's tests in a cell: what is laid down, in which order, and how records come back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import msgspec
import trio

from minisandbox.judge import frames
from minisandbox.judge.assignment import SuiteWork, TaskFile
from minisandbox.judge.bench import Bench, outcome_of
from minisandbox.judge.evidence import Code, Evidence, evidence
from minisandbox.judge.frames import FrameError, Value, decode, encode, frame
from minisandbox.judge.idle import guarding
from minisandbox.judge.inbox import Inbox
from minisandbox.judge.spec import Cell, CellRecord, Manifest, Outcome, Role, TestRecord
from minisandbox.runtime.process import Process
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import Result

PLACE = "/judge"
SETTINGS = b"[pytest]\n"
"""All that pytest reads of settings."""

ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
_SOURCES = {"frames.py": Path(frames.__file__), "runner.py": Path(__file__).with_name("suite_runner.py")}
_CHUNK_BYTES = 1 << 16
_SAID_BYTES = 200
_OUTCOMES = {"passed": Outcome.AC, "failed": Outcome.WA, "error": Outcome.RTE}


class SuiteRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is run."""

    tests: tuple[str, ...]
    """In this order, as far as their files go."""
    whole: tuple[str, ...] = ()
    """Files of which all tests are run, whatever their ids are."""
    files: tuple[TaskFile, ...]
    """All that is in the test roots."""
    base: tuple[TaskFile, ...]
    manifest: Manifest
    key: bytes
    """Begins each record."""


class Told(msgspec.Struct, kw_only=True):
    """What the runner said."""

    tests: list[TestRecord] = []
    ended: bool = False
    forged: bool = False
    """Whether something was said that the runner never says."""
    said: bytes = b""
    """The end of the standard error, for people."""


async def run_suite(cell: Cell, run: SuiteRun, work: SuiteWork, bench: Bench) -> CellRecord:
    """Lay everything down, the tests last, and run them."""
    budget = bench.assignment.budget
    told = Told()
    async with bench.open_cell(budget) as sandbox:
        await _lay_down(sandbox, run, work, bench)
        async with (
            guarding(sandbox, budget.idle_s) as guard,
            await sandbox.start([work.python, "-s", "-B", f"{PLACE}/runner.py"], cwd=work.root, env=ENV) as process,
        ):
            result = await _serve(run, work, process, told)
    ended = outcome_of(result, guard)
    return CellRecord(
        cell=cell.name,
        tests=tuple(_complete(cell, told, ended)),
        ended=told.ended or ended is not Outcome.AC,  # one that left early and well is no failure like others
        evidence=tuple(_suspicions(cell, told)),
        usage=bench.usage(cell.name, result, told.said.decode(errors="replace")),
    )


async def _lay_down(sandbox: Sandbox, run: SuiteRun, work: SuiteWork, bench: Bench) -> None:
    await bench.lay_submission(sandbox, run.manifest, work.root, work.test_roots)
    await bench.lay_down(sandbox, run.base, work.root)
    await bench.lay_down(sandbox, run.files, work.root)
    own = [TaskFile(path=name, content=path.read_bytes()) for name, path in _SOURCES.items()]
    await bench.lay_down(sandbox, [*own, TaskFile(path="judge.ini", content=SETTINGS)], PLACE)


async def _serve(run: SuiteRun, work: SuiteWork, process: Process, told: Told) -> Result:
    """Say what is to be run, read records until they end, and return how the process did."""
    request = {
        "key": run.key,
        "root": work.root,
        "paths": list(work.paths),
        "tests": list(run.tests),
        "files": list(dict.fromkeys([*(test.partition("::")[0] for test in run.tests), *run.whole])),
        "whole": list(run.whole),
        "conftest": work.conftest,
        "plugins": list(work.plugins),
    }
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_end, process, told)
        try:
            await process.stdin.send_all(frame(request))
            await process.stdin.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):  # it is gone already
            pass
        try:
            await _listen(run, process, told)
        except EOFError:
            pass
        except FrameError:
            told.forged = True
        if told.forged:  # one that only closed its pipe may still be at work, within its budget
            await process.kill()
        result = await process.wait()
        nursery.cancel_scope.cancel()
    return result


async def _listen(run: SuiteRun, process: Process, told: Told) -> None:
    """Take records until the end that is said, or that of the pipe. Raises FrameError for what is none.

    All that a runner can say of a submission is known before, to the byte, so that nothing need be decoded.
    """
    inbox = Inbox(process)
    known = {
        encode(test) + encode(word): TestRecord(id=test, outcome=outcome)
        for test in run.tests
        for word, outcome in _OUTCOMES.items()
    }
    for count in itertools.count():
        said = await inbox.next_frame()
        if said == encode([run.key, count, "end"]):
            told.ended = True
            return
        head = encode([run.key, count, "test", None, None])[:-2]
        record = known.get(said[len(head) :]) if said.startswith(head) else None
        if run.whole and record is None:  # a survey of the task's own files, whose tests nobody knows yet
            record = _surveyed(decode(said), [run.key, count, "test"])
        if record is None:
            raise FrameError("a record that is none")
        told.tests.append(record)


def _surveyed(message: Value, head: list[Value]) -> TestRecord | None:
    match message:
        case [*begun, str(test), str(outcome)] if begun == head and outcome in _OUTCOMES:
            return TestRecord(id=test, outcome=_OUTCOMES[outcome])
    return None


async def _keep_end(process: Process, told: Told) -> None:
    """Read what is said for people, and keep the end of it."""
    while chunk := await process.stderr.receive_some(_CHUNK_BYTES):
        told.said = (told.said + chunk)[-_SAID_BYTES:]


def _complete(cell: Cell, told: Told, ended: Outcome) -> Iterable[TestRecord]:
    """Return what was reported, and for tests that were not, how the run ended. A forged report has no passes."""
    if told.forged:
        return [TestRecord(id=test, outcome=Outcome.RTE) for test in cell.tests]
    reported = [test for test in told.tests if cell.role is not Role.CANARY or test.id in cell.tests]
    outcome = Outcome.RTE if ended is Outcome.AC else ended
    missing = set(cell.tests) - {test.id for test in reported}
    if outcome in (Outcome.TLE, Outcome.ILE, Outcome.MLE, Outcome.OLE) and missing:
        return [TestRecord(id=test, outcome=outcome) for test in cell.tests]
    return [*reported, *(TestRecord(id=test, outcome=outcome) for test in sorted(missing))]


def _suspicions(cell: Cell, told: Told) -> Iterable[Evidence]:
    if told.forged:
        yield evidence(Code.E12_FORGED_MARKERS, cell=cell.name)
    elif cell.role is Role.CANARY:  # it is run after a pass, so that all tests but its own have passed before
        failed = (test.id for test in told.tests if test.id not in cell.tests and test.outcome is not Outcome.AC)
        if differing := tuple(failed):
            yield evidence(Code.E22_NOT_DETERMINISTIC, cell=cell.name, paths=differing)
