"""What the tests of the loop share: a referee of this process, and runs of a few tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio

import minisandbox
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.store import Store
from minisandbox.rollout.concurrency import Concurrency
from minisandbox.rollout.policy import Player, TrustedPlayer
from minisandbox.rollout.referee import LocalReferee, Referee
from minisandbox.rollout.run import Plan, Run
from minisandbox.rollout.scheduler import Retry
from minisandbox.rollout.spec import Budget, Episode
from minisandbox.tasks.task import Task
from tests.rollout.players import DEADLINE_S, Memory

PlayAll = Callable[..., Awaitable[list[Episode]]]


@pytest.fixture
def referee(supervisor: minisandbox.Supervisor, tmp_path: Path) -> LocalReferee:
    """A judge of this test alone."""
    return LocalReferee(Judge(supervisor=supervisor, store=Store.open(tmp_path / "judge")), 2)


@pytest.fixture
def memory() -> Memory:
    """A recorder that keeps all in memory."""
    return Memory()


@pytest.fixture
def play_all(supervisor: minisandbox.Supervisor, referee: LocalReferee, memory: Memory) -> PlayAll:
    """Plays tasks by policies to the end, and returns the episodes in the order of their keys."""

    async def play(
        tasks: Sequence[Task],
        players: Sequence[Player | TrustedPlayer],
        *,
        budget: Budget | None = None,
        samples: int = 1,
        at_once: int = 4,
        judge: Referee | None = None,
        retry: Retry | None = None,
    ) -> list[Episode]:
        plan = Plan(
            players=players,
            samples=samples,
            budget=budget or Budget(),
            concurrency=Concurrency(least=at_once, most=at_once),
            retry=retry or Retry(backoff_s=0.01),
        )
        with trio.fail_after(DEADLINE_S):
            await Run(plan, supervisor, judge or referee, memory).play(iter(tasks))
        return [memory.episodes[key] for key in sorted(memory.episodes)]

    return play
