"""Makes submissions as agents do: in a sandbox of an episode, which is sealed before anything of it is taken in."""

from __future__ import annotations

from minisandbox.judge.assignment import Assignment, Environment, SuiteWork
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_sandbox, seal
from minisandbox.judge.spec import Manifest
from tests.judge.hack_tasks import TASKS, VISIBLE, Hack
from tests.judge.naive import ROOT, prepare
from tests.judge.submissions import BUDGET


def environment_of(hack: Hack, with_pytest: str) -> str:
    """Return the rootfs of a task's kind."""
    return with_pytest if isinstance(TASKS[hack.kind], SuiteWork) else "host"


async def submit(hack: Hack, judge: Judge, environment: str, upstream: str = "") -> tuple[Assignment, Manifest]:
    """Let a submission be made in a sandbox of its own, seal that, and take in what was declared."""
    work = TASKS[hack.kind]
    assignment = Assignment(
        name="hack", work=work, budget=BUDGET, environment=Environment(rootfs=environment), certificate="test",
        visible=VISIBLE.get(hack.kind, ()),
    )  # fmt: skip
    before = {ROOT: work.base} if hack.commits and isinstance(work, SuiteWork) else {}
    async with judge.supervisor.open_sandbox(rootfs=environment) as episode:
        commits = ({"NEWS": "the only version\n"},) if hack.commits else ()
        await prepare(episode, hack, before, env={"UPSTREAM": upstream}, commits=commits)
        await seal(episode)
        feed = feed_sandbox(episode, assignment.declared)
        return assignment, await judge.take_in(assignment.declared, feed)
