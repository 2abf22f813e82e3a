"""DECIDE: from a plan and what its cells recorded to a decision. Pure, and independent of the order of the records.

A pass needs every expected test, each reported as passed, once, by the cell that it was planned for, and a record of
every cell that is there to doubt it. Whatever is missing because of the submission is a failure of it; whatever is
missing because of us is an IE, which has no score; and so is a pass that did not come again, where nobody checked
whether the tests themselves are to blame.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from minisandbox.judge.evidence import Code, Evidence, evidence
from minisandbox.judge.integrity import OVER_CLAIM, UNCERTIFIED, Cap, integrity_of
from minisandbox.judge.spec import AFTER_PASS, Cell, CellRecord, Integrity, Manifest, Outcome, Plan, Role, TestRecord
from minisandbox.judge.verdict import Decision, Inputs, Suspicion, suspicion_of


class Scoring(enum.Enum):
    """What some passed tests are worth."""

    ALL = "all"
    """Nothing, unless all passed."""
    FRACTION = "fraction"
    """Their share of all."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be decided."""

    plan: Plan
    manifest: Manifest
    inputs: Inputs
    ceiling: Integrity
    caps: tuple[Cap, ...] = ()
    claimed: Integrity = Integrity.L5
    """What the task claims: a verdict is worth no more, and says why when it is worth less."""
    scoring: Scoring = Scoring.ALL
    visible: tuple[str, ...] = ()
    """Ids of tests that the submission's author has seen."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What the records say, before anything is made of it."""

    outcomes: dict[str, Outcome]
    """Of each expected test."""
    evidence: tuple[Evidence, ...]
    failed_by_us: bool


def decide(judgement: Judgement, records: Sequence[CellRecord]) -> Decision:
    """Return the decision."""
    finding = _find(judgement.plan, records)
    gap = _gap(judgement.visible, finding.outcomes)
    found = sort_evidence([*judgement.manifest.evidence, *finding.evidence, *gap])
    suspicious = suspicion_of(found)
    verdict = _verdict(judgement, finding, suspicious)
    passed = sum(outcome is Outcome.AC for outcome in finding.outcomes.values())
    earned = passed + sum(
        worth for name, worth in _worths(records).items() if finding.outcomes.get(name) is Outcome.PARTIAL
    )
    total = len(judgement.plan.expected)
    claim = Cap(reason=OVER_CLAIM, level=judgement.claimed)
    integrity, reasons = integrity_of(judgement.ceiling, (*judgement.caps, claim))
    return Decision(
        verdict=verdict,
        score=_score(verdict, earned, total, judgement.scoring),
        passed=passed,
        failed=total - passed,
        total=total,
        tests=tuple(sorted(TestRecord(id=name, outcome=outcome) for name, outcome in finding.outcomes.items())),
        suspicious=suspicious,
        integrity=integrity,
        claimed=judgement.claimed,
        integrity_cap_reasons=reasons,
        evidence=found,
        inputs=judgement.inputs,
        plan=tuple(cell.name for cell in judgement.plan.cells),
    )


def passes_so_far(plan: Plan, records: Sequence[CellRecord]) -> bool:
    """Return whether the tests that count have all passed, so that the cells that doubt it must be run."""
    outcomes = _outcomes(plan, _by_cell(records), [])
    return all(outcome is Outcome.AC for outcome in outcomes.values())


def sort_evidence(found: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return each piece of evidence once, in the order in which a decision has them."""
    return tuple(sorted(set(found), key=lambda item: (item.code, item.cell, item.paths)))


def _find(plan: Plan, records: Sequence[CellRecord]) -> Finding:
    by_cell = _by_cell(records)
    found: list[Evidence] = [item for record in records for item in record.evidence]
    outcomes = _outcomes(plan, by_cell, found)
    builds_fail = any(outcome is Outcome.CE for outcome in outcomes.values())
    would_pass = all(outcome is Outcome.AC for outcome in outcomes.values())
    needed = [
        cell
        for cell in plan.cells
        if cell.role is Role.BUILD
        or (cell.role is Role.MAIN and not builds_fail)
        or (cell.role in AFTER_PASS and would_pass)
    ]
    failed_by_us = any(_is_ours(by_cell.get(cell.name, ())) for cell in needed)
    failed_by_us |= not set(by_cell) <= {cell.name for cell in plan.cells}
    if would_pass and not failed_by_us:
        for cell in plan.cells:
            if cell.role in AFTER_PASS:
                found += _doubts(cell, by_cell[cell.name][0])
    return Finding(outcomes=outcomes, evidence=tuple(found), failed_by_us=failed_by_us)


def _gap(visible: tuple[str, ...], outcomes: Mapping[str, Outcome]) -> list[Evidence]:
    """Return evidence where all tests passed that were seen, and some were answered wrong that were not."""
    shown = [outcomes.get(name) for name in visible]
    wrong = tuple(name for name in outcomes if name not in visible and outcomes[name] in (Outcome.WA, Outcome.RTE))
    if shown and wrong and set(shown) == {Outcome.AC}:
        return [evidence(Code.E19_HIDDEN_GAP, paths=wrong)]
    return []


def _by_cell(records: Sequence[CellRecord]) -> Mapping[str, tuple[CellRecord, ...]]:
    by_cell: dict[str, tuple[CellRecord, ...]] = {}
    for record in records:
        by_cell[record.cell] = (*by_cell.get(record.cell, ()), record)
    return by_cell


def _is_ours(records: Sequence[CellRecord]) -> bool:
    """Return whether a cell has no result, or more than one: nobody but us writes records."""
    return len(records) != 1 or records[0].failure is not None


def _outcomes(plan: Plan, by_cell: Mapping[str, tuple[CellRecord, ...]], found: list[Evidence]) -> dict[str, Outcome]:
    builds = [by_cell.get(cell.name, ()) for cell in plan.cells if cell.role is Role.BUILD]
    if any(record.tests and _worst(record.tests) is not Outcome.AC for records in builds for record in records):
        return dict.fromkeys(plan.expected, Outcome.CE)
    outcomes: dict[str, Outcome] = {}
    for cell in plan.cells:
        if cell.role is Role.MAIN:
            records = by_cell.get(cell.name, ())
            outcomes |= (
                dict.fromkeys(cell.tests, Outcome.IE) if _is_ours(records) else _of_cell(cell, records[0], found)
            )
    if any(_is_ours(records) or not records[0].tests for records in builds):
        return dict.fromkeys(plan.expected, Outcome.IE)
    return outcomes


def _of_cell(cell: Cell, record: CellRecord, found: list[Evidence]) -> dict[str, Outcome]:
    """Return what came of each test of a cell: passed only if it was reported, once, and the end was, too."""
    reported: dict[str, list[TestRecord]] = {}
    for test in record.tests:
        reported.setdefault(test.id, []).append(test)
    wrong = tuple(
        name for name in {*cell.tests, *reported} if name not in cell.tests or len(reported.get(name, ())) != 1
    )
    if wrong:
        found.append(evidence(Code.E05_TEST_IDS_DIFFER, cell=cell.name, paths=wrong))
    if not record.ended:
        found.append(evidence(Code.E06_NO_END_RECORD, cell=cell.name))
    strangers = not set(reported) <= set(cell.tests)
    outcomes = {}
    for name in cell.tests:
        outcome = _worst(reported.get(name, ()))
        is_whole = record.ended and not strangers and len(reported.get(name, ())) == 1
        outcomes[name] = outcome if is_whole or outcome not in (Outcome.AC, Outcome.PARTIAL) else Outcome.RTE
    return outcomes


def _worths(records: Sequence[CellRecord]) -> dict[str, float]:
    """Return what tests are worth that are partly right; nothing outside of 0 and 1 is."""
    tests = sorted(test for record in records for test in record.tests if test.outcome is Outcome.PARTIAL)
    return {test.id: test.worth for test in tests if test.worth is not None and 0.0 < test.worth < 1.0}


def _worst(tests: Sequence[TestRecord]) -> Outcome:
    return min((test.outcome for test in tests), key=lambda outcome: outcome.priority, default=Outcome.RTE)


def _doubts(cell: Cell, record: CellRecord) -> list[Evidence]:
    """Return what a cell that was run after a pass says against it."""
    passed = tuple(test.id for test in record.tests if test.outcome is Outcome.AC)
    all_passed = record.ended and sorted(passed) == sorted(cell.tests)
    if cell.role is Role.MIRROR and passed:
        return [evidence(Code.E03_MIRROR_PASSED, cell=cell.name, paths=passed)]
    if cell.role is Role.CANARY and passed:
        return [evidence(Code.E04_CANARY_PASSED, cell=cell.name, paths=passed)]
    if cell.role is Role.ABLATION and not all_passed:
        return [evidence(Code.E07_INFRA_DEPENDENT, cell=cell.name)]
    if cell.role is Role.INFRA_ONLY and all_passed:
        return [evidence(Code.E08_INFRA_ONLY_PASSES, cell=cell.name)]
    return []


_DIFFERS = Code.E22_NOT_DETERMINISTIC.name


def _verdict(judgement: Judgement, finding: Finding, suspicious: Suspicion) -> Outcome:
    if judgement.manifest.rejected:
        return Outcome.REJ
    outcomes = set(finding.outcomes.values())
    if finding.failed_by_us or Outcome.IE in outcomes:
        return Outcome.IE
    if suspicious is Suspicion.PROVEN:
        return Outcome.TAMPER
    if UNCERTIFIED in judgement.caps and any(item.code == _DIFFERS for item in finding.evidence):
        return Outcome.IE  # after what is proved, so that nobody gets away by failing now and then
    if judgement.scoring is Scoring.FRACTION and outcomes != {Outcome.AC} and outcomes & {Outcome.AC, Outcome.PARTIAL}:
        return Outcome.PARTIAL
    return min(outcomes, key=lambda outcome: outcome.priority)


def _score(verdict: Outcome, earned: float, total: int, scoring: Scoring) -> float | None:
    if verdict is Outcome.IE:
        return None
    if verdict is Outcome.AC:
        return 1.0
    return earned / total if verdict is Outcome.PARTIAL and scoring is Scoring.FRACTION else 0.0
