"""Checks that vary the task or the machine under the solution: T07, T11, T12."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import msgspec
import trio

from minisandbox.judge.assignment import Assignment, FunctionWork, Interactive, StdioWork, SuiteWork
from minisandbox.judge.frames import encode
from minisandbox.judge.kinds.suite import without_mirror
from minisandbox.judge.spec import Outcome
from minisandbox.judge.verdict import Verdict
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.case import Case, Report, is_accepted, outcome_text, outcomes_of, report, skipped

SENTINEL = "no such answer 7c1f"
ALONE_TRIED = 20
SURROUNDINGS: dict[str, dict[str, str]] = {
    "another hash seed": {"PYTHONHASHSEED": "1"},
    "any hash seed": {"PYTHONHASHSEED": "random"},
    "a time zone east": {"TZ": "Pacific/Kiritimati"},
    "a time zone with half hours": {"TZ": "Asia/Kathmandu"},
    "the locale C": {"LC_ALL": "C", "LANG": "C"},
    "a Turkish locale": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    "another home": {"HOME": "/tmp", "USER": "somebody", "LOGNAME": "somebody"},
    "a terminal": {"TERM": "xterm", "COLUMNS": "40", "LINES": "10"},
    "four threads": {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4"},
}
HOG = "while :; do :; done"


async def answers_matter(case: Case) -> Report:
    """T07: a test that the solution still passes when its answer is another asserts nothing.

    Of a suite each test is judged by its mirrors anyway; one that has none asserts nothing that is sure to be reached.
    """
    if isinstance(case.task.assignment.work, SuiteWork):
        without = without_mirror(case.task.assignment.work)
        bad = [f"{name} asserts nothing that is sure to be reached" for name in without]
        return report(bad, ["each test has a mirror"], otherwise=Status.WARNED)
    changed = _with_other_answers(case.task.assignment)
    if changed is None:
        return skipped("this kind has no answers that could be changed from here")
    verdict = await case.workshop.try_one(await case.gold(), changed)
    passing = [test.id for test in verdict.decision.tests if test.outcome is Outcome.AC]
    return report([f"{name} passes with another answer" for name in passing], [f"{verdict.decision.total} tests"])


def _with_other_answers(assignment: Assignment) -> Assignment | None:
    work = assignment.work
    if isinstance(work, FunctionWork):
        calls = tuple(
            msgspec.structs.replace(call, expected=encode(SENTINEL), raises=call.raises and f"No{call.raises}")
            for call in work.calls
        )
        return msgspec.structs.replace(assignment, work=msgspec.structs.replace(work, calls=calls))
    if isinstance(work, StdioWork) and not isinstance(work.checker, Interactive):
        # to a checker of the task's own another answer may be no answer at all: then it says nothing, which is no pass
        cases = tuple(msgspec.structs.replace(test, answer=b"%s\n" % SENTINEL.encode()) for test in work.cases)
        return msgspec.structs.replace(assignment, work=msgspec.structs.replace(work, cases=cases))
    return None


async def surroundings(case: Case) -> Report:
    """T11: variables that programs depend on, the tests in reverse, and processors that are busy."""
    gold = await case.gold()
    varied = {name: case.workshop.varied(variables) for name, variables in SURROUNDINGS.items()}
    if (backwards := _reversed(case.task.assignment)) is not None:
        varied["the tests in reverse"] = backwards
    verdicts = dict(zip(varied, await case.workshop.try_all([(gold, each) for each in varied.values()]), strict=True))
    async with _busy(case):
        verdicts["busy processors"] = await case.workshop.try_one(gold)
    bad = [f"{name}: {outcome_text(verdict)}" for name, verdict in verdicts.items() if not is_accepted(verdict)]
    return report(bad, [", ".join(verdicts)])


def _reversed(assignment: Assignment) -> Assignment | None:
    work = assignment.work
    if isinstance(work, FunctionWork):
        return msgspec.structs.replace(assignment, work=msgspec.structs.replace(work, calls=work.calls[::-1]))
    if isinstance(work, StdioWork):
        return msgspec.structs.replace(assignment, work=msgspec.structs.replace(work, cases=work.cases[::-1]))
    return None


@contextlib.asynccontextmanager
async def _busy(case: Case) -> AsyncIterator[None]:
    """Keep every processor busy for the block, from a sandbox."""
    async with case.workshop.open_environment() as sandbox, trio.open_nursery() as nursery:
        for _ in range(os.cpu_count() or 1):
            nursery.start_soon(sandbox.run, ["/bin/sh", "-c", HOG])
        yield
        nursery.cancel_scope.cancel()


async def tests_stand_alone(case: Case) -> Report:
    """T12: a test that needs those before it fails for who is right, when they are run otherwise."""
    work = case.task.assignment.work
    if isinstance(work, StdioWork):
        return skipped("each test has a sandbox of its own")
    if not isinstance(work, FunctionWork):
        return skipped("tests of this kind are not run one by one")
    gold = await case.gold()
    tried = work.calls[:ALONE_TRIED]
    single = [
        msgspec.structs.replace(case.task.assignment, work=msgspec.structs.replace(work, calls=(call,)))
        for call in tried
    ]
    verdicts: list[Verdict] = await case.workshop.try_all([(gold, assignment) for assignment in single])
    together = outcomes_of(case.gold_verdicts[0]) if case.gold_verdicts else {}
    bad = [
        f"{call.id}: {alone.decision.tests[0].outcome.value} alone, {together[call.id].value} with the others"
        for call, alone in zip(tried, verdicts, strict=True)
        if call.id in together and alone.decision.tests[0].outcome is not together[call.id]
    ]
    return report(bad, [f"{len(tried)} of {len(work.calls)} tried"], otherwise=Status.WARNED)
