"""`task check`: every check in turn, and the certificate. What a check asks is in `minisandbox.tasks.checks`."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from minisandbox.errors import SandboxError
from minisandbox.images.rootfs import build_rootfs
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.store import Store
from minisandbox.judge.warm import open_warm
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.tasks.certificate import Certificate, Finding, Status, certificate_of
from minisandbox.tasks.checks import candidates, generated, history, leaks, outputs, runs, statements, variations
from minisandbox.tasks.checks.case import Case, Report
from minisandbox.tasks.task import Task
from minisandbox.tasks.workshop import SolveFailedError, Workshop

RUNS = 10


@dataclass(frozen=True, slots=True)
class Check:
    """A rule, and what looks whether it holds."""

    id: str
    rule: str
    look: Callable[[Case], Awaitable[Report]]


CHECKS = (
    Check("T01", "the solution passes every time", runs.solution_passes),
    Check("T02", "doing nothing fails every time, and not by our fault", runs.nothing_fails),
    Check("T03", "each test fails before the solution and passes after it", runs.tests_turn),
    Check("T04", "stubs that solve nothing have no score", candidates.stubs_fail),
    Check("T05", "known hacks have no score", candidates.hacks_fail),
    Check("T06", "the ids of the tests are whole, and each is there once", statements.ids_are_whole),
    Check("T07", "with other answers the solution fails each test", variations.answers_matter),
    Check("T08", "mutants of the solution fail", candidates.mutants_fail),
    Check("T09", "other right submissions pass", candidates.others_pass),
    Check("T10", "the tests name nothing that the instruction does not", statements.nothing_unnamed),
    Check("T11", "the solution passes whatever the machine is like", variations.surroundings),
    Check("T12", "each test alone says the same", variations.tests_stand_alone),
    Check("T13", "the solution needs at most half of its CPU time and a third of its memory", runs.budget_is_ample),
    Check("T14", "neither solution nor answers lie where it is worked on", leaks.nothing_leaks),
    Check("T15", "a repository has one commit, no remote and no hook", history.history_is_bare),
    Check("T16", "the instruction holds no line of the solution", statements.nothing_told),
    Check("T17", "judging needs no network and installs nothing", statements.nothing_fetched),
    Check("T18", "only what is the answer is taken for it", outputs.checker_is_sharp),
    Check("T19", "there are tests, with answers that differ", outputs.answers_differ),
    Check("T20", "judging again decides the same", runs.decisions_repeat),
    Check("T21", "the root file system and the tests have digests that stay", runs.digests_stay),
    Check("T22", "who solves it cannot read the tests", leaks.tests_are_hidden),
    Check("T23", "verdicts reach the integrity that is claimed", runs.integrity_reached),
    Check("T25", "generated tests tell wrong from right", generated.generated_tests_tell),
)
"""In the order in which they are made. T24, on policies that are weak, needs what no task brings."""


async def check_task(
    task: Task,
    supervisor: Supervisor,
    *,
    runs: int = RUNS,
    origin: Path | None = None,
    tell: Callable[[Finding], object] = lambda finding: None,
) -> Certificate:
    """Make every check, and return the certificate, which says whether the task is certified.

    `runs` is how often the solution is judged, `origin` the directory of the task, `tell` sees each finding at once.
    Raises SandboxError when we failed so that nothing can be said.
    """
    rootfs = await trio.to_thread.run_sync(build_rootfs, supervisor.state, task.assignment.environment.rootfs)
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="minisandbox-check-") as folder:
        async with open_warm(supervisor) as warm:
            judge = Judge(supervisor=supervisor, store=Store.open(Path(folder, "judge")), warm=warm)
            case = Case(workshop=Workshop(judge, task, runs), origin=origin)
            for check in CHECKS:
                finding = await _make(check, case)
                findings.append(finding)
                tell(finding)
    return certificate_of(
        task=task.digest, rootfs=rootfs.digest, runs=runs, integrity=case.integrity, findings=findings
    )


async def _make(check: Check, case: Case) -> Finding:
    """Make one check. What it cannot find out because the task's own parts fail is a failure of the task."""
    try:
        report = await check.look(case)
    except* (SolveFailedError, SandboxError) as group:
        report = Report(Status.FAILED, tuple(str(error)[:500] for error in group.exceptions))
    return Finding(id=check.id, rule=check.rule, status=report.status, evidence=report.evidence)
