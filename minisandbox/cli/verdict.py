"""A verdict as lines for a person, with colours where they mean something. It prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minisandbox.judge.evidence import Severity
from minisandbox.judge.spec import Outcome
from minisandbox.judge.verdict import Verdict

if TYPE_CHECKING:
    from rich.text import Text

MEANINGS = {
    Outcome.IE: "internal error: nothing is decided, and nothing must be learned from this",
    Outcome.REJ: "rejected: the artifacts cannot be judged",
    Outcome.TAMPER: "tampered: it is proved that the pass was forged",
    Outcome.CE: "it does not compile",
    Outcome.TLE: "over its budget of CPU time",
    Outcome.ILE: "it waited and did nothing",
    Outcome.MLE: "over its budget of memory",
    Outcome.OLE: "over its budget of output",
    Outcome.RTE: "it failed at run time",
    Outcome.WA: "wrong answer",
    Outcome.PARTIAL: "some tests passed",
    Outcome.AC: "accepted",
}
TESTS_SHOWN = 20
_COLOURS = {Severity.INFO: "dim", Severity.WEAK: "yellow", Severity.STRONG: "red", Severity.PROVEN: "bold red"}


def explain(verdict: Verdict) -> Iterator[Text]:
    """Yield the lines."""
    from rich.text import Text

    decision, reward = verdict.decision, verdict.reward
    colour = {Outcome.AC: "bold green", Outcome.IE: "bold magenta"}.get(decision.verdict, "bold red")
    yield Text.assemble("verdict     ", (decision.verdict.value, colour), f"  {MEANINGS[decision.verdict]}")
    score = "none" if decision.score is None else f"{decision.score:g}"
    yield Text(f"score       {score}  ({decision.passed} of {decision.total} tests passed)")
    value = "masked" if reward.value is None else f"{reward.value:g}"
    look = ", quarantined: a person should look at it" if reward.quarantine else ""
    yield Text(f"reward      {value}  (policy {reward.policy}{look})")
    reasons = "; ".join(decision.integrity_cap_reasons)
    yield Text(f"integrity   {decision.integrity.value}{f'  (capped: {reasons})' if reasons else ''}")
    yield from _tests(verdict)
    for item in decision.evidence:
        where = f" in {item.cell}" if item.cell else ""
        paths = f": {', '.join(item.paths)}" if item.paths else ""
        yield Text.assemble(
            "evidence    ", (f"{item.severity.value:<7}", _COLOURS[item.severity]), f" {item.code}{where}{paths}"
        )
    for failure in verdict.observations.failures:
        yield Text(f"failure     {failure}")
    yield Text(f"decision    {verdict.decision_sha256}")


def _tests(verdict: Verdict) -> Iterator[Text]:
    from rich.text import Text

    notes = {usage.name: usage.notes for usage in verdict.observations.cells}
    failed = [test for test in verdict.decision.tests if test.outcome is not Outcome.AC]
    for test in failed[:TESTS_SHOWN]:
        yield Text.assemble("test        ", (f"{test.outcome.value:<7}", "red"), f" {test.id}")
    if len(failed) > TESTS_SHOWN:
        yield Text(f"            and {len(failed) - TESTS_SHOWN} more that did not pass")
    for name, said in notes.items():
        for note in said if failed else ():
            yield Text(f"note        {name}: {note}", style="dim")
