"""The hack corpus (tests/hacks): each wins against a judge that makes one mistake, and against ours none does.

And beside them honest work that looks like it, which must not be punished.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.judge.assignment import FunctionWork, PerformanceWork, ScriptWork, StdioWork, SuiteWork
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Integrity
from minisandbox.judge.store import Store
from minisandbox.judge.verdict import PenaltyPolicy, Suspicion, Verdict
from minisandbox.policy import Network, load_policy
from tests.judge.episodes import environment_of, submit
from tests.judge.hack_tasks import BEYOND, BEYOND_IN_A_SUITE, CORPUS, GOLD, TASKS, Hack, at_other_level
from tests.judge.naive import MEMORY, wins
from tests.judge.submissions import DEADLINE_S
from tests.web import serving

HACKS = {name: hack for name, hack in sorted(CORPUS.items()) if hack.row is not None}
HONEST = {name: hack for name, hack in sorted(CORPUS.items()) if hack.row is None}

KIND_CLAIMS = {
    SuiteWork: Integrity.L3,
    FunctionWork: Integrity.L4,
    StdioWork: Integrity.L4,
    ScriptWork: Integrity.L1,
    PerformanceWork: Integrity.L4,
}
TOOLS = {"make": "make", "npm": "npm", "git": "git", "reward": "python3"}
"""What judges run that make such mistakes, where it is not what everything else needs as well."""


def claim_of(hack: Hack) -> Integrity:
    """Return what a verdict on a task is worth that has its certificate."""
    return KIND_CLAIMS[type(TASKS[hack.kind])]


async def judged(hack: Hack, judge: Judge, environment: str, upstream: str = "") -> Verdict:
    """Judge what an episode leaves."""
    assignment, manifest = await submit(hack, judge, environment, upstream)
    return (await judge.judge(assignment, manifest)).verdict


async def publish(stream: trio.SocketStream) -> None:
    """Answer whatever is asked with the solution."""
    while b"\r\n\r\n" not in await stream.receive_some(4096):
        pass
    content = GOLD["pytest"]["mathlib/core.py"].encode()
    await stream.send_all(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    """Where the solution was published, as the host sees it."""
    async with serving(publish) as port:
        yield f"http://127.0.0.1:{port}/core.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", HACKS)
async def test_no_hack_is_rewarded(
    name: str, supervisor: minisandbox.Supervisor, store: Store, with_pytest: str, upstream: str
) -> None:
    """It gets its verdict, and no positive reward at the level that it was judged for."""
    hack = HACKS[name]
    claimed = Integrity.L4 if name in BEYOND else claim_of(hack)
    judge = Judge(supervisor=supervisor, store=store, penalty=PenaltyPolicy(min_integrity=claimed))
    with trio.fail_after(DEADLINE_S):
        verdict = await judged(hack, judge, environment_of(hack, with_pytest), upstream)

    assert hack.verdict == verdict.decision.verdict.value, verdict
    assert not verdict.reward.value, verdict
    assert set(hack.evidence) <= {item.code for item in verdict.decision.evidence}
    assert claim_of(hack) is verdict.decision.integrity


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, hack in HACKS.items() if hack.also])
async def test_the_same_hack_is_not_rewarded_at_another_level(
    name: str, supervisor: minisandbox.Supervisor, store: Store, with_pytest: str, upstream: str
) -> None:
    """In a suite what was calls over data, and the other way round, it gets its verdict for that."""
    hack = at_other_level(HACKS[name])
    claimed = Integrity.L4 if name in BEYOND_IN_A_SUITE else claim_of(hack)
    judge = Judge(supervisor=supervisor, store=store, penalty=PenaltyPolicy(min_integrity=claimed))
    with trio.fail_after(DEADLINE_S):
        verdict = await judged(hack, judge, environment_of(hack, with_pytest), upstream)

    assert hack.verdict == verdict.decision.verdict.value, verdict
    assert not verdict.reward.value, verdict
    assert claim_of(hack) is verdict.decision.integrity


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, hack in HACKS.items() if hack.naive])
async def test_each_hack_is_real(
    name: str, supervisor: minisandbox.Supervisor, with_pytest: str, upstream: str
) -> None:
    """A judge that makes the mistake it lives on rewards it."""
    hack = HACKS[name]
    network = Network.HOST if hack.naive == "network" else Network.NONE
    policy = msgspec.structs.replace(load_policy("default"), network=network)
    with trio.fail_after(DEADLINE_S):
        async with supervisor.open_sandbox(
            rootfs=environment_of(hack, with_pytest), policy=policy, limits=MEMORY
        ) as sandbox:
            tool = TOOLS.get(hack.naive or "", "true")
            if not (await sandbox.run(f"command -v {tool}")).ok:
                pytest.skip(f"this host has no {tool}")
            won = await wins(hack, sandbox, {"UPSTREAM": upstream})

    assert won


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOLD)
async def test_each_task_can_be_solved(kind: str, judge: Judge, with_pytest: str) -> None:
    """So that what hacks get is because of them; and nothing is said against a solution."""
    hack = Hack(title="solves it", kind=kind, verdict="AC", files=GOLD[kind])
    with trio.fail_after(DEADLINE_S):
        verdict = await judged(hack, judge, environment_of(hack, with_pytest))

    assert ("AC", ()) == (verdict.decision.verdict.value, verdict.decision.evidence), verdict.observations


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
async def test_honest_work_is_not_punished(name: str, judge: Judge, with_pytest: str) -> None:
    """Whatever it looks like, it has all of its reward, and nobody need look at it."""
    hack = HONEST[name]
    with trio.fail_after(DEADLINE_S):
        verdict = await judged(hack, judge, environment_of(hack, with_pytest))

    assert (hack.verdict, 1.0) == (verdict.decision.verdict.value, verdict.reward.value), verdict
    assert verdict.decision.suspicious in (Suspicion.NONE, Suspicion.WEAK)
    assert set(hack.evidence) <= {item.code for item in verdict.decision.evidence}
    assert not verdict.reward.quarantine
