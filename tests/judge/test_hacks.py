"""The hack corpus (tests/hacks): each wins against a judge that makes one mistake, and against ours none does.

And beside them honest work that looks like it, which must not be punished.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.judge.assignment import Assignment, Environment
from minisandbox.judge.ingest import ingest
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_sandbox, seal
from minisandbox.judge.spec import Integrity
from minisandbox.judge.store import Store
from minisandbox.judge.verdict import PenaltyPolicy, Suspicion, Verdict
from tests.judge.hack_tasks import MEMORY, TASKS, Hack, prepare, wins
from tests.judge.submissions import BUDGET, DEADLINE_S

FOLDER = Path(__file__).parents[1] / "hacks"
CORPUS = {
    path.parent.name: msgspec.convert(tomllib.loads(path.read_text()), Hack) for path in FOLDER.glob("*/hack.toml")
}
HACKS = {name: hack for name, hack in sorted(CORPUS.items()) if hack.row is not None}
HONEST = {name: hack for name, hack in sorted(CORPUS.items()) if hack.row is None}

CLAIMS = {
    "pytest": Integrity.L3,
    "function": Integrity.L4,
    "stdio": Integrity.L4,
    "script": Integrity.L1,
    "performance": Integrity.L4,
}
BEYOND = frozenset({"plausible-constants"})
"""Who tells a mirror from a test passes at L3, which the manual says. It is none where L4 is asked for."""


async def judged(hack: Hack, judge: Judge, environment: str) -> Verdict:
    """Let a submission be made in a sandbox of its own, seal that, and judge what was declared."""
    work = TASKS[hack.kind]
    assignment = Assignment(
        name="hack", work=work, budget=BUDGET, environment=Environment(rootfs=environment), certificate="test"
    )
    async with judge.supervisor.open_sandbox() as episode:
        await prepare(episode, hack.files)
        await seal(episode)
        feed = feed_sandbox(episode, assignment.declared)
        manifest = await ingest(judge.supervisor, judge.store, assignment.declared, feed)
    return (await judge.judge(assignment, manifest)).verdict


def environment_of(hack: Hack, with_pytest: str) -> str:
    """Return the rootfs of a task's kind."""
    return with_pytest if hack.kind == "pytest" else "host"


@pytest.mark.slow
@pytest.mark.parametrize("name", HACKS)
async def test_no_hack_is_rewarded(
    name: str, supervisor: minisandbox.Supervisor, store: Store, with_pytest: str
) -> None:
    """It gets its verdict, and no positive reward at the level that it was judged for."""
    hack = HACKS[name]
    claimed = Integrity.L4 if name in BEYOND else CLAIMS[hack.kind]
    judge = Judge(supervisor=supervisor, store=store, penalty=PenaltyPolicy(min_integrity=claimed))
    with trio.fail_after(DEADLINE_S):
        verdict = await judged(hack, judge, environment_of(hack, with_pytest))

    assert hack.verdict == verdict.decision.verdict.value, verdict
    assert not verdict.reward.value, verdict
    assert set(hack.evidence) <= {item.code for item in verdict.decision.evidence}
    assert CLAIMS[hack.kind] is verdict.decision.integrity


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, hack in HACKS.items() if hack.naive])
async def test_each_hack_is_real(name: str, supervisor: minisandbox.Supervisor, with_pytest: str) -> None:
    """A judge that makes the mistake it lives on rewards it."""
    hack = HACKS[name]
    with trio.fail_after(DEADLINE_S):
        async with supervisor.open_sandbox(rootfs=environment_of(hack, with_pytest), limits=MEMORY) as sandbox:
            won = await wins(hack, sandbox)

    assert won


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
async def test_honest_work_is_not_punished(name: str, judge: Judge, with_pytest: str) -> None:
    """Whatever it looks like, it has all of its reward, and nobody need look at it."""
    hack = HONEST[name]
    with trio.fail_after(DEADLINE_S):
        verdict = await judged(hack, judge, environment_of(hack, with_pytest))

    assert (hack.verdict, 1.0) == (verdict.decision.verdict.value, verdict.reward.value), verdict
    assert verdict.decision.suspicious in (Suspicion.NONE, Suspicion.WEAK)
    assert not verdict.reward.quarantine
