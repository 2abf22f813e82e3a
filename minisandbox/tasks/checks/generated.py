"""The check of tests that nobody wrote: T25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minisandbox.judge.spec import Outcome
from minisandbox.judge.verdict import Verdict
from minisandbox.tasks.by_heart import by_heart_of
from minisandbox.tasks.checks.candidates import others_of
from minisandbox.tasks.checks.case import Case, Report, outcomes_of, report, skipped
from minisandbox.tasks.stubs import stubs_of
from minisandbox.tasks.task import Files, Task


async def generated_tests_tell(case: Case) -> Report:
    """T25: who is right passes each of them, and somebody fails each who is wrong and passes what can be seen."""
    task = case.task
    if not task.generated_tests:
        return skipped("no test was generated")
    gold = await case.gold_files()
    right = {"the solution": await case.workshop.try_one(await case.gold())}
    right |= await case.workshop.try_files(others_of(task, gold))
    wrong = await case.workshop.try_files(wrong_of(task, gold))
    bad = [text for test in task.generated_tests for text in _objections(task, test, right, wrong)]
    return report(bad, [f"{', '.join(task.generated_tests)}: {len(right)} right submissions pass, a wrong one fails"])


def wrong_of(task: Task, solution: Files) -> dict[str, Files]:
    """Return submissions of which is known that they are wrong."""
    return {**stubs_of(task, solution), **task.rejected, **by_heart_of(task), "does nothing": {}}


def _objections(task: Task, test: str, right: Mapping[str, Verdict], wrong: Mapping[str, Verdict]) -> list[str]:
    visible = task.assignment.visible
    outcomes = {name: outcomes_of(verdict) for name, verdict in right.items()}
    if any(test not in tests for tests in outcomes.values()):
        return [f"{test}: there is no such test"]
    bad = [
        f"{test}: {tests[test].value} for {name}" for name, tests in outcomes.items() if tests[test] is not Outcome.AC
    ]
    if not any(is_told_by(test, verdict, visible) for verdict in wrong.values()):
        bad.append(
            f"{test}: of {len(wrong)} wrong submissions none passes what can be seen and fails it; "
            "put one that does into rejected/"
        )
    return bad


def is_told_by(test: str, verdict: Verdict, visible: Sequence[str]) -> bool:
    """Return whether a submission passes what can be seen and fails the test, for a reason of its own."""
    outcomes = outcomes_of(verdict)
    passes_visible = all(outcomes.get(name) is Outcome.AC for name in visible)
    return passes_visible and outcomes.get(test, Outcome.IE) not in (Outcome.AC, Outcome.IE)
