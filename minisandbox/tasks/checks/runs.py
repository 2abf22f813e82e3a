"""Checks that judge the solution and the empty submission over and over: T01 to T03, T13, T20, T21, T23."""

from __future__ import annotations

from collections import Counter

import msgspec
import trio

from minisandbox.images.rootfs import build_rootfs
from minisandbox.judge.spec import Integrity, Outcome
from minisandbox.judge.verdict import Verdict
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.case import Case, Report, has_score, is_accepted, outcome_text, report
from minisandbox.tasks.stubs import stubs_of
from minisandbox.tasks.task import SOLVE

AGAIN = 3
"""How often a submission is judged to see that the decision repeats."""

CPU_SHARE, MEMORY_SHARE = 0.5, 1 / 3


async def solution_passes(case: Case) -> Report:
    """T01. A solution that a script makes is made anew for each time."""
    if not case.task.solution:
        return Report(Status.FAILED, ("there is no solution, so nobody knows whether the task can be solved",))
    workshop = case.workshop
    anew = SOLVE in case.task.solution
    manifests = [await (workshop.gold() if anew else case.gold()) for _ in range(workshop.runs)]
    case.gold_verdicts = await workshop.try_all([(manifest, None) for manifest in manifests])
    return _every_time(case.gold_verdicts, [not is_accepted(verdict) for verdict in case.gold_verdicts], "passed")


async def nothing_fails(case: Case) -> Report:
    """T02."""
    nothing = case.workshop.manifest({})
    case.nothing_verdicts = await case.workshop.try_all([(nothing, None)] * case.workshop.runs)
    wrong = [
        has_score(verdict) or is_accepted(verdict) or verdict.decision.verdict is Outcome.IE
        for verdict in case.nothing_verdicts
    ]
    return _every_time(case.nothing_verdicts, wrong, "failed")


def _every_time(verdicts: list[Verdict], wrong: list[bool], how: str) -> Report:
    right = len(verdicts) - sum(wrong)
    texts = Counter(outcome_text(verdict) for verdict, bad in zip(verdicts, wrong, strict=True) if bad)
    summary = f"{how} {right} times of {len(verdicts)}"
    return report(
        [summary, *(f"{number} x {text}" for text, number in texts.most_common())] if texts else [], [summary]
    )


async def tests_turn(case: Case) -> Report:
    """T03. A test that passes without a solution says nothing, unless it is one that must stay: then it must pass."""
    stays = set(getattr(case.task.assignment.work, "pass_to_pass", ()))
    bad: list[str] = []
    for verdict in case.nothing_verdicts[:1]:
        passing = [test.id for test in verdict.decision.tests if test.outcome is Outcome.AC and test.id not in stays]
        bad += [f"{name} passes when nothing was done" for name in passing]
        bad += [
            f"{test.id} is {test.outcome.value} when nothing was done, and must stay as it is"
            for test in verdict.decision.tests
            if test.id in stays and test.outcome is not Outcome.AC
        ]
    for verdict in case.gold_verdicts[:1]:
        bad += [f"{test.id} is {test.outcome.value} with the solution" for test in verdict.decision.tests
                if test.outcome is not Outcome.AC]  # fmt: skip
    total = case.gold_verdicts[0].decision.total if case.gold_verdicts else 0
    return report(bad, [f"{total} tests"])


async def budget_is_ample(case: Case) -> Report:
    """T13."""
    budget = case.task.assignment.budget
    cells = [cell for verdict in case.gold_verdicts for cell in verdict.observations.cells if cell.name != "build"]
    cpu = max((cell.cpu_time_s or 0.0 for cell in cells), default=0.0)
    memory = max((cell.memory_peak_bytes or 0 for cell in cells), default=0)
    bad = []
    if cpu > CPU_SHARE * budget.cpu_time_s:
        bad.append(f"{cpu:.3g} s of CPU time, of {budget.cpu_time_s:g} s")
    if memory > MEMORY_SHARE * budget.memory_bytes:
        bad.append(f"{memory >> 20} MiB, of {budget.memory_bytes >> 20} MiB")
    return report(bad, [f"at most {cpu:.3g} s of CPU time and {memory / 2**20:.3g} MiB in {len(cells)} cells"])


async def decisions_repeat(case: Case) -> Report:
    """T20: for the solution, for nothing, and for a wrong submission: the task's own, or a stub."""
    pairs = {"the solution": case.gold_verdicts[:AGAIN], "nothing": case.nothing_verdicts[:AGAIN]}
    wrong = {**case.task.rejected, **stubs_of(case.task, await case.gold_files())}
    for name, files in list(wrong.items())[:1]:
        pairs[name] = await case.workshop.try_all([(case.workshop.manifest(files), None)] * AGAIN)
    bad = []
    for name, verdicts in pairs.items():
        same_artifacts = len({verdict.decision.inputs.artifacts for verdict in verdicts}) == 1
        decisions = {verdict.decision_sha256 for verdict in verdicts}
        if same_artifacts and len(decisions) != 1:
            bad.append(f"{name}: {len(decisions)} decisions in {len(verdicts)} judgements")
    return report(bad, [f"{', '.join(pairs)}: one decision each"])


async def digests_stay(case: Case) -> Report:
    """T21."""
    state, environment = case.workshop.judge.supervisor.state, case.task.assignment.environment
    rootfs = await trio.to_thread.run_sync(build_rootfs, state, environment.rootfs)
    seen = {verdict.decision.inputs.environment for verdict in (*case.gold_verdicts, *case.nothing_verdicts)}
    bad = (
        [] if seen <= {rootfs.digest} else [f"the root file system was {', '.join(sorted(seen))}, now {rootfs.digest}"]
    )
    if environment.digest not in (None, rootfs.digest):
        bad.append(f"the root file system is {rootfs.digest}, not {environment.digest} as the task wants it")
    return report(bad, [f"root file system {rootfs.digest}", f"tests {case.task.assignment.tests_digest}"])


async def integrity_reached(case: Case) -> Report:
    """T23: what a verdict reaches when the task has its certificate."""
    assignment = msgspec.structs.replace(case.task.assignment, certificate="(being made)")
    verdict = await case.workshop.try_one(await case.gold(), assignment)
    case.integrity = reached = verdict.decision.integrity
    claimed: Integrity = case.task.assignment.integrity
    reasons = ", ".join(verdict.decision.integrity_cap_reasons)
    bad = [f"{reached.value}, not {claimed.value}" + (f": {reasons}" if reasons else "")]
    return report(bad if reached.level < claimed.level else [], [f"{reached.value}, {claimed.value} is claimed"])
