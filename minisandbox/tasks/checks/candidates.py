"""Checks that try other submissions: T04 stubs, T05 hacks, T08 mutants, T09 what is as right as the solution."""

from __future__ import annotations

from minisandbox.judge.spec import Outcome
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.case import Case, Report, has_score, is_accepted, outcome_text, report, skipped
from minisandbox.tasks.mutants import mutants_of, variants_of
from minisandbox.tasks.stubs import hacks_of, stubs_of
from minisandbox.tasks.task import Files, Task

KILLED_WELL, KILLED_LEAST = 0.6, 0.3
"""Shares of mutants: with fewer a person should look, with fewer still the tests say too little."""


async def stubs_fail(case: Case) -> Report:
    """T04: a task without partial scores gives nothing, one with them no full score."""
    stubs = stubs_of(case.task, await case.gold_files())
    return await _fail(case, {**stubs, **case.task.rejected}, "there is nothing to make a stub of")


async def hacks_fail(case: Case) -> Report:
    """T05."""
    return await _fail(case, hacks_of(case.task, await case.gold_files()), "there are no hacks for this kind")


async def _fail(case: Case, named: dict[str, Files], otherwise: str) -> Report:
    if not named:
        return skipped(otherwise)
    verdicts = await case.workshop.try_files(named)
    partial = case.task.assignment.scoring.value == "fraction"
    bad = [
        f"what {name}: {outcome_text(verdict)}"
        for name, verdict in verdicts.items()
        if is_accepted(verdict) or (has_score(verdict) and not partial) or verdict.decision.verdict is Outcome.IE
    ]
    return report(bad, [f"{len(named)} tried: {', '.join(named)}"])


async def mutants_fail(case: Case) -> Report:
    """T08."""
    mutants = mutants_of(await case.gold_files(), case.task.files)
    if not mutants:
        return skipped("the solution is in no language of which there are mutants")
    verdicts = await case.workshop.try_files(mutants)
    alive = [name for name, verdict in verdicts.items() if is_accepted(verdict)]
    share = 1 - len(alive) / len(verdicts)
    texts = [f"{len(verdicts) - len(alive)} of {len(verdicts)} fail", *(f"passes: {name}" for name in alive)]
    if share >= KILLED_WELL:
        return report([], texts)
    return report(texts, otherwise=Status.WARNED if share >= KILLED_LEAST else Status.FAILED)


def others_of(task: Task, solution: Files) -> dict[str, Files]:
    """Return submissions that are as right as the solution."""
    return {**task.accepted, **variants_of(solution)}


async def others_pass(case: Case) -> Report:
    """T09: those of the task, and the solution written otherwise."""
    others = others_of(case.task, await case.gold_files())
    if not others:
        return skipped("there is no other submission in accepted/, and none could be made of the solution")
    verdicts = await case.workshop.try_files(others)
    bad = [f"{name}: {outcome_text(verdict)}" for name, verdict in verdicts.items() if not is_accepted(verdict)]
    return report(bad, [f"{len(others)} pass: {', '.join(others)}"])
