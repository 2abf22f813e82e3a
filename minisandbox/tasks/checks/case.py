"""What a check is given, and what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minisandbox.judge.spec import Integrity, Manifest, Outcome
from minisandbox.judge.verdict import Verdict
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.task import Files, Task
from minisandbox.tasks.workshop import Workshop

MOST_EVIDENCE = 20
MOST_LETTERS = 300


@dataclass(frozen=True, slots=True)
class Report:
    """What a check saw."""

    status: Status
    evidence: tuple[str, ...] = ()


@dataclass(slots=True)
class Case:
    """A task that is being checked, with what earlier checks found out."""

    workshop: Workshop
    origin: Path | None = None
    integrity: Integrity = Integrity.L0
    gold_verdicts: list[Verdict] = field(default_factory=list)
    nothing_verdicts: list[Verdict] = field(default_factory=list)
    _gold: Manifest | None = None

    @property
    def task(self) -> Task:
        """The task."""
        return self.workshop.task

    async def gold(self) -> Manifest:
        """Return the submission that solves it, made once."""
        if self._gold is None:
            self._gold = await self.workshop.gold()
        return self._gold

    async def gold_files(self) -> Files:
        """Return what the solution adds or changes."""
        return self.workshop.files(await self.gold())


def report(bad: Iterable[str], seen: Sequence[str] = (), *, otherwise: Status = Status.FAILED) -> Report:
    """Return a report that fails, or only warns, where there is anything bad; `seen` is what there is to say else."""
    found = tuple(text[:MOST_LETTERS] for text in bad)
    if found:
        more = (f"and {len(found) - MOST_EVIDENCE} more",) if len(found) > MOST_EVIDENCE else ()
        return Report(otherwise, found[:MOST_EVIDENCE] + more)
    return Report(Status.PASSED, tuple(seen))


def skipped(why: str) -> Report:
    """Return a report that the check does not apply."""
    return Report(Status.SKIPPED, (why,))


def is_accepted(verdict: Verdict) -> bool:
    """Return whether it passed."""
    return verdict.decision.verdict is Outcome.AC


def has_score(verdict: Verdict) -> bool:
    """Return whether there is anything to gain by it."""
    return (verdict.decision.score or 0.0) > 0.0


def outcomes_of(verdict: Verdict) -> dict[str, Outcome]:
    """Return what came of each test."""
    return {test.id: test.outcome for test in verdict.decision.tests}


def outcome_text(verdict: Verdict) -> str:
    """Say in a few words what came of a submission."""
    decision = verdict.decision
    failures = "; ".join(verdict.observations.failures[:2])
    failed = [f"{test.id} {test.outcome.value}" for test in decision.tests if test.outcome is not Outcome.AC][:5]
    said = f"{decision.verdict.value}, {decision.passed} of {decision.total} tests"
    return said + (f" (not {', '.join(failed)})" if failed else "") + (f": {failures}" if failures else "")
