"""What the tests of the loop share: policies of a few lines, tasks, and a judge that is not asked."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from minisandbox.judge.assignment import Assignment, FileCheck, StateWork
from minisandbox.rollout.builtin import Script
from minisandbox.rollout.policy import Player, Policy, Told
from minisandbox.rollout.recorder import RunInfo
from minisandbox.rollout.spec import Action, Episode, EpisodeKey, Observation, Step, Turn
from minisandbox.tasks.task import File, Task
from tests.tasks.samples import BUDGET

DEADLINE_S = 120.0
JUDGING = pytest.mark.enforces("control-groups", "memory-limit", "processes-limit", "cpus-limit", "single-id")
"""What verdicts need of a host: where it is not there, each is one of our failures, and no reward can be looked at."""

Act = Callable[[Observation], Awaitable[Any]]


def script_player(name: str, actions: Callable[[Told], Iterable[Action]]) -> Player:
    """Return a policy that plays these actions in every episode, and then submits."""

    @contextlib.asynccontextmanager
    async def open_policy(told: Told) -> AsyncIterator[Policy]:
        yield Script(actions(told))

    return Player(name, open_policy)


@dataclass
class Acting:
    """A policy that is a function."""

    function: Act

    async def act(self, observation: Observation) -> Step:
        """Ask it, whatever it answers."""
        answer: Step = await self.function(observation)
        return answer


def acting_player(name: str, function: Act) -> Player:
    """Return a policy that is an async function of the observation."""

    @contextlib.asynccontextmanager
    async def open_policy(told: Told) -> AsyncIterator[Policy]:
        yield Acting(function)

    return Player(name, open_policy)


def file_task(name: str = "greet", **files: str) -> Task:
    """Return a task of one file: hello.txt must say hello. It is judged fast."""
    check = FileCheck(id="says-hello", path="hello.txt", answer=b"hello\n")
    return Task(
        name=name,
        instruction="Write hello.txt that says hello.",
        assignment=Assignment(name=name, work=StateWork(checks=(check,)), budget=BUDGET),
        files={path: File(content=text.encode()) for path, text in files.items()},
        solution={"hello.txt": File(content=b"hello\n")},
    )


@dataclass
class Memory:
    """A recorder that keeps all in memory, and refuses what a store refuses."""

    run: RunInfo | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    turns: list[tuple[EpisodeKey, Turn]] = field(default_factory=list)
    events: list[tuple[str, EpisodeKey | None, dict[str, Any]]] = field(default_factory=list)
    episodes: dict[EpisodeKey, Episode] = field(default_factory=dict)

    async def begin(self, run: RunInfo) -> frozenset[EpisodeKey]:
        """See `Recorder.begin`."""
        self.run = run
        return frozenset(self.episodes)

    async def task(self, task: Task) -> None:
        """See `Recorder.task`."""
        self.tasks[task.name] = task

    async def turn(self, key: EpisodeKey, turn: Turn) -> None:
        """See `Recorder.turn`."""
        self.turns.append((key, turn))

    async def event(self, name: str, key: EpisodeKey | None, data: dict[str, Any]) -> None:
        """See `Recorder.event`."""
        self.events.append((name, key, data))

    async def finish(self, episode: Episode) -> None:
        """See `Recorder.finish`."""
        assert episode.key not in self.episodes
        assert episode.key.task in self.tasks
        self.episodes[episode.key] = episode
