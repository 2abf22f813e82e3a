"""Scenes: turns within a budget, and branches that know nothing of each other."""

from __future__ import annotations

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.errors import UsageError
from minisandbox.rollout.builtin import NOOP, ORACLE
from minisandbox.rollout.episode import play_turns, take_in
from minisandbox.rollout.referee import LocalReferee
from minisandbox.rollout.scene import open_scene
from minisandbox.rollout.spec import Budget, End, Read, Run, Step, Submit, Write
from minisandbox.spec import ExitReason
from minisandbox.tasks.task import Agent
from tests.rollout.players import DEADLINE_S, file_task


async def test_an_observation_says_what_came_before(supervisor: minisandbox.Supervisor) -> None:
    """The instruction at every turn, the outcome of the last one, and what is left."""
    budget = Budget(turns=3, tokens=100)
    async with open_scene(supervisor, file_task(note="n"), budget=budget, episode="e") as scene:
        first = scene.observation
        await scene.act(Step(action=Read(path="note"), tokens=40), think_s=0.5)
        second = scene.observation

    assert (0, None, 3, 100) == (first.turn, first.outcome, first.left.turns, first.left.tokens)
    assert ("e", "/submission", "Write hello.txt that says hello.") == (
        second.episode,
        second.directory,
        second.instruction,
    )
    assert second.outcome is not None
    assert (1, b"n", 2, 60) == (second.turn, second.outcome.stdout, second.left.turns, second.left.tokens)


@pytest.mark.parametrize(
    ("budget", "end"),
    [
        (Budget(turns=2), End.TURNS),
        (Budget(tokens=15), End.TOKENS),
        (Budget(wall_time_s=0.4), End.WALL_TIME),
    ],
)
async def test_a_budget_that_ran_out_ends_it(supervisor: minisandbox.Supervisor, budget: Budget, end: End) -> None:
    """It is named, and no more turns can be played."""
    async with open_scene(supervisor, file_task(), budget=budget) as scene:
        with trio.fail_after(DEADLINE_S):
            while scene.end is None:
                await scene.act(Step(action=Run(command="sleep 0.3"), tokens=10))
        with pytest.raises(UsageError, match="over"):
            await scene.act(Step(action=Submit()))

    assert end is scene.end
    assert f"budget.{end.value}" == scene.trajectory(end).limits_hit[-1]


async def test_a_command_does_not_outlast_the_episode(supervisor: minisandbox.Supervisor) -> None:
    """It is killed when the time of the episode is up, and the turn is kept."""
    task = msgspec.structs.replace(file_task(), agent=Agent(timeout_s=0.5))
    async with open_scene(supervisor, task, budget=Budget(wall_time_s=None)) as scene:
        with trio.fail_after(DEADLINE_S):
            outcome = await scene.run("sleep 1000")

    assert (ExitReason.WALL_TIME, End.WALL_TIME) == (outcome.exit_reason, scene.end)
    assert ("wall_time", "budget.wall_time") == scene.trajectory(End.WALL_TIME).limits_hit


@pytest.mark.requires_root
async def test_branches_go_on_from_the_middle(supervisor: minisandbox.Supervisor) -> None:
    """They have the files and the turns so far, and nothing that one does can be seen by another or by the first."""
    async with open_scene(supervisor, file_task(), budget=Budget(turns=4), episode="trunk") as trunk:
        await trunk.act(Step(action=Write(path="shared", content=b"s")))
        async with trunk.branch(["left", "right"]) as (left, right):
            await left.run("echo left > own")
            await right.run("echo right > own")
            seen = [(await scene.run("cat shared own")).stdout for scene in (left, right)]
            trunk_sees = (await trunk.run("ls")).stdout
            trajectories = [scene.trajectory(End.TURNS) for scene in (left, right)]

    assert [b"sleft\n", b"sright\n"] == seen
    assert b"shared\n" == trunk_sees
    assert [("trunk", 1)] * 2 == [each.branched_from for each in trajectories]
    assert [3, 3] == [len(each.turns) for each in trajectories]
    assert trajectories[0].turns[0] == trajectories[1].turns[0] == trunk.turns[0]
    assert ("left", 1) == (left.observation.episode, left.observation.left.turns)


@pytest.mark.requires_root
async def test_a_branch_is_played_and_judged(supervisor: minisandbox.Supervisor, referee: LocalReferee) -> None:
    """One by the policy that solves it and one by another, after a turn by hand that both have as their history."""
    async with open_scene(supervisor, file_task(), budget=Budget(turns=4)) as scene:
        await scene.run("true")
        async with scene.branch(["solved", "left"]) as (solved, left):
            ends = [await play_turns(solved, ORACLE), await play_turns(left, NOOP)]
            rulings = [await (await take_in(branch, referee)).decide() for branch in (solved, left)]

    assert [(End.SUBMITTED, "")] * 2 == ends
    assert [1.0, 0.0] == [ruling.verdict.reward.value for ruling in rulings]
    assert [3, 2] == [len(branch.turns) for branch in (solved, left)]
