"""What records come to: nothing passes that was not reported whole, and no failure of ours is a score."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisandbox.judge.decide import Judgement, Scoring, decide, passes_so_far
from minisandbox.judge.evidence import Code, evidence
from minisandbox.judge.integrity import UNCERTIFIED, Cap, integrity_of
from minisandbox.judge.spec import (
    AFTER_PASS,
    Cell,
    CellRecord,
    CellUsage,
    Integrity,
    Manifest,
    Outcome,
    Plan,
    Role,
    TestRecord,
)
from minisandbox.judge.verdict import Decision, Inputs, PenaltyPolicy, Suspicion, decision_sha256, reward_of

INPUTS = Inputs(task="t", tests="t", environment="e", artifacts="a", judge="j")
FULL = Plan(
    cells=(
        Cell(name="build", role=Role.BUILD, tests=("build",)),
        Cell(name="main", tests=("a", "b")),
        Cell(name="more", tests=("c",)),
        Cell(name="mirror", role=Role.MIRROR, tests=("a", "b")),
        Cell(name="canary", role=Role.CANARY, tests=("x",)),
        Cell(name="ablation", role=Role.ABLATION, tests=("a",)),
        Cell(name="infra", role=Role.INFRA_ONLY, tests=("a", "b")),
    )
)
PLANS = st.sets(st.sampled_from(["build", "more", "mirror", "canary", "ablation", "infra"])).map(
    lambda names: Plan(cells=tuple(cell for cell in FULL.cells if cell.name in {*names, "main"}))
)
OUTCOMES = st.sampled_from([Outcome.AC, Outcome.AC, Outcome.AC, Outcome.WA, Outcome.RTE, Outcome.TLE])
IDS = st.sampled_from(["a", "b", "c", "build", "x", "stranger"])
TESTS = st.lists(st.builds(lambda id, outcome: TestRecord(id=id, outcome=outcome), IDS, OUTCOMES), max_size=4)


@st.composite
def any_records(draw: st.DrawFn, plan: Plan) -> list[CellRecord]:
    """Records that mostly fit a plan, and in every way may not."""
    records = []
    for cell in plan.cells:
        right = [TestRecord(id=name, outcome=_honest(cell)) for name in cell.tests]
        for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2]))):
            tests = draw(TESTS) if draw(st.integers(0, 4)) == 0 else right
            records.append(
                CellRecord(
                    cell=draw(st.sampled_from([cell.name] * 12 + ["nowhere"])),
                    tests=tuple(tests),
                    ended=draw(st.sampled_from([True] * 9 + [False])),
                    failure=draw(st.sampled_from([None] * 12 + ["broken"])),
                )
            )
    return records


def _honest(cell: Cell) -> Outcome:
    return Outcome.AC if cell.role in (Role.BUILD, Role.MAIN, Role.ABLATION) else Outcome.WA


CASES = PLANS.flatmap(lambda plan: st.tuples(st.just(plan), any_records(plan)))


def decided(plan: Plan, records: Sequence[CellRecord], scoring: Scoring = Scoring.ALL) -> Decision:
    """Decide with nothing against the submission."""
    return decide(
        Judgement(plan=plan, manifest=Manifest(), inputs=INPUTS, ceiling=Integrity.L4, scoring=scoring), records
    )


def whole(plan: Plan) -> list[CellRecord]:
    """The records of an honest submission that passes."""
    return [
        CellRecord(cell=cell.name, tests=tuple(TestRecord(id=name, outcome=_honest(cell)) for name in cell.tests))
        for cell in plan.cells
    ]


@settings(deadline=None)
@given(CASES, st.sampled_from(Scoring))
def test_a_pass_has_every_expected_test(case: tuple[Plan, list[CellRecord]], scoring: Scoring) -> None:
    """Accepted or a score of 1 means: each cell has one whole record, and every test that counts passed in its own."""
    plan, records = case
    decision = decided(plan, records, scoring)

    if decision.verdict is Outcome.AC or decision.score == 1.0:
        for cell in plan.cells:
            (record,) = [each for each in records if each.cell == cell.name]
            assert record.failure is None
            if cell.role is Role.MAIN:
                assert record.ended
                assert sorted(cell.tests) == sorted(test.id for test in record.tests)
                assert all(test.outcome is Outcome.AC for test in record.tests)
            if cell.role in (Role.MIRROR, Role.CANARY):
                assert not any(test.outcome is Outcome.AC for test in record.tests)
        assert {each.cell for each in records} == {cell.name for cell in plan.cells}


@settings(deadline=None)
@given(PLANS)
def test_an_honest_submission_passes(plan: Plan) -> None:
    """The property above is not kept by refusing everything."""
    decision = decided(plan, whole(plan))

    assert (Outcome.AC, 1.0, Suspicion.NONE) == (decision.verdict, decision.score, decision.suspicious)


@settings(deadline=None)
@given(CASES, st.randoms(use_true_random=False))
def test_order_makes_no_difference(case: tuple[Plan, list[CellRecord]], shuffler: random.Random) -> None:
    """Records in any order come to the same decision, to the byte."""
    plan, records = case
    shuffled = list(records)
    shuffler.shuffle(shuffled)

    assert decision_sha256(decided(plan, records)) == decision_sha256(decided(plan, shuffled))


@settings(deadline=None)
@given(CASES, st.floats(0, 1e6))
def test_times_make_no_difference(case: tuple[Plan, list[CellRecord]], seconds: float) -> None:
    """What was measured is in no decision."""
    plan, records = case
    timed = [
        CellRecord(
            cell=each.cell, tests=each.tests, ended=each.ended, failure=each.failure,
            usage=CellUsage(name=each.cell, wall_time_s=seconds, marginal=seconds > 9),
        )
        for each in records
    ]  # fmt: skip

    assert decision_sha256(decided(plan, records)) == decision_sha256(decided(plan, timed))


@settings(deadline=None)
@given(CASES, st.sampled_from(Scoring))
def test_a_failure_of_ours_is_no_score(case: tuple[Plan, list[CellRecord]], scoring: Scoring) -> None:
    """A cell that counts and has no result, or two, is an IE; an IE has no score, and its reward is masked."""
    plan, records = case
    decision = decided(plan, records, scoring)
    reward = reward_of(decision, PenaltyPolicy())
    lost = [
        cell
        for cell in plan.cells
        if cell.role in (Role.MAIN, Role.BUILD)
        and [None] != [each.failure for each in records if each.cell == cell.name]
    ]

    if any(cell.role is Role.BUILD for cell in lost) or (lost and decision.verdict is not Outcome.CE):
        assert decision.verdict in (Outcome.IE, Outcome.CE)
    assert (decision.verdict is Outcome.IE) == (decision.score is None)
    assert (decision.verdict is Outcome.IE) == reward.mask
    assert reward.mask == (reward.value is None)


@settings(deadline=None)
@given(CASES)
def test_fewer_passes_are_never_worth_more(case: tuple[Plan, list[CellRecord]]) -> None:
    """Turning one passed test of a cell that counts into a failure raises no score."""
    plan, records = case
    before = decided(plan, records, Scoring.FRACTION).score
    for at, record in enumerate(records):
        cell = next((cell for cell in plan.cells if cell.name == record.cell), None)
        if cell is None or cell.role is not Role.MAIN or not record.tests:
            continue
        worse = CellRecord(
            cell=record.cell,
            tests=(TestRecord(id=record.tests[0].id, outcome=Outcome.WA), *record.tests[1:]),
            ended=record.ended,
            failure=record.failure,
        )
        after = decided(plan, [*records[:at], worse, *records[at + 1 :]], Scoring.FRACTION)

        assert after.score is None or before is None or after.score <= before or after.verdict is Outcome.PARTIAL


@settings(deadline=None)
@given(
    st.sampled_from(Integrity),
    st.lists(st.builds(lambda level: Cap(reason=level.value, level=level), st.sampled_from(Integrity))),
)
def test_one_cap_more_never_raises(ceiling: Integrity, caps: list[Cap]) -> None:
    """Caps only lower, and each that does is named."""
    level, reasons = integrity_of(ceiling, caps)
    for at in range(len(caps)):
        fewer, fewer_reasons = integrity_of(ceiling, caps[:at])

        assert level.level <= fewer.level <= ceiling.level
        assert set(fewer_reasons) <= set(reasons)
    assert (level is ceiling) == (not reasons)


def test_doubts_need_a_record_after_a_pass_alone() -> None:
    """A pass without its mirror is an IE; a failure without one is a failure."""
    passing, failing = whole(FULL), whole(FULL)
    failing[1] = CellRecord(
        cell="main", tests=(TestRecord(id="a", outcome=Outcome.WA), TestRecord(id="b", outcome=Outcome.AC))
    )
    early = [record for record in passing if record.cell in ("build", "main", "more")]

    assert passes_so_far(FULL, early)
    assert Outcome.IE is decided(FULL, early).verdict
    assert (
        Outcome.WA is decided(FULL, [record for record in failing if record.cell in ("build", "main", "more")]).verdict
    )


def test_what_passes_a_mirror_is_tampered() -> None:
    """Mirrors, canaries and a pass of the test files alone are proof; a pass that needs them is only suspicious."""
    for cell in FULL.cells:
        if cell.role not in AFTER_PASS:
            continue
        records = [record for record in whole(FULL) if record.cell != cell.name]
        flipped = Outcome.WA if cell.role is Role.ABLATION else Outcome.AC
        records.append(
            CellRecord(cell=cell.name, tests=tuple(TestRecord(id=name, outcome=flipped) for name in cell.tests))
        )
        decision = decided(FULL, records)
        reward = reward_of(decision, PenaltyPolicy(tamper_reward=-0.5))

        if cell.role is Role.ABLATION:
            assert (Outcome.AC, Suspicion.STRONG) == (decision.verdict, decision.suspicious)
        else:
            assert (Outcome.TAMPER, Suspicion.PROVEN, 0.0) == (decision.verdict, decision.suspicious, decision.score)
            assert (-0.5, False, True) == (reward.value, reward.mask, reward.quarantine)


def test_rejected_artifacts_are_worth_nothing() -> None:
    """Whatever the records say."""
    manifest = Manifest(rejected=True, evidence=(evidence(Code.E23_OVER_BOUNDS, paths=("big",)),))
    judgement = Judgement(plan=FULL, manifest=manifest, inputs=INPUTS, ceiling=Integrity.L4)
    decision = decide(judgement, [])

    assert (Outcome.REJ, 0.0) == (decision.verdict, decision.score)


def test_a_failed_build_is_all_that_is_told() -> None:
    """No test was run, and none is missing."""
    decision = decided(FULL, [CellRecord(cell="build", tests=(TestRecord(id="build", outcome=Outcome.CE),))])

    assert (Outcome.CE, 0.0, 0, 3) == (decision.verdict, decision.score, decision.passed, decision.total)


def test_codes_are_all_different() -> None:
    """Two codes of the same weight are two."""
    assert len(Code) == len({code.name for code in Code}) == 25
    assert "E03_MIRROR_PASSED" == Code.E03_MIRROR_PASSED.name


SEEN = Plan(cells=(Cell(name="main", tests=("a", "b", "c")),))
GAPS: dict[str, tuple[tuple[str, ...], tuple[Outcome, ...], tuple[str, ...] | None]] = {
    "what was seen passes alone": (("a", "b"), (Outcome.AC, Outcome.AC, Outcome.WA), ("c",)),
    "it raises where it was not seen": (("a",), (Outcome.AC, Outcome.RTE, Outcome.AC), ("b",)),
    "what was seen fails, too": (("a", "b"), (Outcome.AC, Outcome.WA, Outcome.WA), None),
    "all passes": (("a",), (Outcome.AC, Outcome.AC, Outcome.AC), None),
    "too slow is no other answer": (("a",), (Outcome.AC, Outcome.TLE, Outcome.AC), None),
    "nothing was seen": ((), (Outcome.AC, Outcome.AC, Outcome.WA), None),
    "all was seen": (("a", "b", "c"), (Outcome.AC, Outcome.AC, Outcome.WA), None),
}


@pytest.mark.parametrize("name", GAPS)
def test_a_gap_between_what_was_seen_and_the_rest_is_told(name: str) -> None:
    """Weakly: whoever passes only what it has seen may have written that down. It changes no score and no reward."""
    visible, outcomes, paths = GAPS[name]
    tests = tuple(TestRecord(id=test, outcome=outcome) for test, outcome in zip("abc", outcomes, strict=True))
    judgement = Judgement(
        plan=SEEN,
        manifest=Manifest(),
        inputs=INPUTS,
        ceiling=Integrity.L4,
        scoring=Scoring.FRACTION,
        visible=visible,
    )
    made = decide(judgement, [CellRecord(cell="main", tests=tests)])
    plain = decide(msgspec.structs.replace(judgement, visible=()), [CellRecord(cell="main", tests=tests)])

    assert ([] if paths is None else [paths]) == [each.paths for each in made.evidence]
    assert {item.code for item in made.evidence} <= {Code.E19_HIDDEN_GAP.name}
    assert (plain.verdict, plain.score, reward_of(plain, PenaltyPolicy())) == (
        made.verdict,
        made.score,
        reward_of(made, PenaltyPolicy()),
    )


def doubted(caps: tuple[Cap, ...], mirrored: Outcome) -> Decision:
    """Decide a pass of which a test failed when it was run again."""
    plan = Plan(cells=tuple(cell for cell in FULL.cells if cell.name in ("main", "mirror", "canary")))
    differs = evidence(Code.E22_NOT_DETERMINISTIC, cell="canary", paths=("a",))
    records = [msgspec.structs.replace(each, evidence=(differs,) * (each.cell == "canary")) for each in whole(plan)]
    at = next(number for number, each in enumerate(records) if each.cell == "mirror")
    tests = tuple(TestRecord(id=name, outcome=mirrored) for name in ("a", "b"))
    records[at] = msgspec.structs.replace(records[at], tests=tests)
    return decide(Judgement(plan=plan, manifest=Manifest(), inputs=INPUTS, ceiling=Integrity.L3, caps=caps), records)


def test_equal_runs_that_differ_are_no_score_where_the_task_was_never_checked() -> None:
    """In a task that was, it is only told; and what is proved stays so: nobody gets away by failing now and then."""
    certified, other = doubted((), Outcome.WA), doubted((UNCERTIFIED,), Outcome.WA)

    assert (Outcome.AC, 1.0, Suspicion.NONE) == (certified.verdict, certified.score, certified.suspicious)
    assert ["E22_NOT_DETERMINISTIC"] == [item.code for item in certified.evidence]
    assert (Outcome.IE, None) == (other.verdict, other.score)
    assert reward_of(other, PenaltyPolicy()).mask
    assert Outcome.TAMPER is doubted((UNCERTIFIED,), Outcome.AC).verdict
