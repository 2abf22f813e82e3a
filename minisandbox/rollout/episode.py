"""One try at an episode: open, play, seal, take in, judge. What fails of ours is raised, and nothing is scored."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from minisandbox.errors import DeadlineError
from minisandbox.judge.seal import seal
from minisandbox.judge.spec import Outcome as Verdict
from minisandbox.rollout.policy import Player, PolicyFaultError, Told, TrustedPlayer, opened
from minisandbox.rollout.recorder import Recorder
from minisandbox.rollout.referee import Referee, Ruling, Submission
from minisandbox.rollout.scene import Scene
from minisandbox.rollout.seat import seated
from minisandbox.rollout.spec import Attempt, Budget, End, Episode, EpisodeKey, Trajectory, Turn
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.tasks.task import Task

T = TypeVar("T")

OpenSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An episode that is to be played."""

    key: EpisodeKey
    task: Task
    player: Player | TrustedPlayer
    open: OpenSandbox
    """Opens a sandbox in which the task lies as at the beginning."""
    used: Callable[[], Awaitable[None]]
    """Says that the episode needs no more of them."""
    seed: int
    group: str
    task_digest: str
    queued_at: float
    """By trio's clock."""
    priority: int = 0
    """The lower comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Court:
    """What all episodes of a run share."""

    referee: Referee
    recorder: Recorder
    budget: Budget


@dataclass(slots=True)
class Try:
    """One try, as far as it came: what is known of it when it fails, too."""

    job: Job
    court: Court
    queued_s: float
    attempts: list[Attempt] = field(default_factory=list)
    trajectory: Trajectory | None = None
    opened_s: float = 0.0
    judged_s: float = 0.0
    warm: bool = False
    _began: float = field(default_factory=trio.current_time)
    _began_unix: float = field(default_factory=time.time)

    @property
    def seconds(self) -> float:
        """How long it goes on."""
        return trio.current_time() - self._began

    async def play(self, decide: Callable[[Submission], Awaitable[Ruling]]) -> Episode:
        """Play and judge it; `decide` asks for the verdict, again where it may. Raises SandboxError when we failed."""
        job, court = self.job, self.court
        tell, turns = trio.open_memory_channel[Turn](math.inf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._record, turns)
            async with job.open() as sandbox:
                self.opened_s, self.warm = self.seconds, sandbox.options.template is not None
                scene = Scene(job.key.id, job.task, sandbox, court.budget)
                with tell:
                    end, why = await play_turns(scene, job.player, seed=job.seed, tell=tell.send_nowait)
                self.trajectory = scene.trajectory(end, why)
                began = trio.current_time()
                submission = await self.in_time(take_in(scene, court.referee))
            ruling = await decide(submission)
            self.judged_s = trio.current_time() - began
        return self.episode(scene.trajectory(end, why, ruling.verdict.decision.inputs.artifacts), ruling)

    async def _record(self, turns: trio.MemoryReceiveChannel[Turn]) -> None:
        """Record turns in their order, beside the play: they count only when the episode is finished."""
        async for turn in turns:
            await self.court.recorder.turn(self.job.key, turn)

    async def in_time(self, step: Awaitable[T]) -> T:
        """Await a step of judging. Raises DeadlineError when it takes too long."""
        within_s = self.court.budget.verdict_s
        if within_s is None:
            return await step
        with trio.move_on_after(within_s):
            return await step
        raise DeadlineError(f"{self.job.key.id} was not judged within {within_s:g} s")

    def episode(self, trajectory: Trajectory, ruling: Ruling | None) -> Episode:
        """Return it as it is recorded."""
        return Episode(
            key=self.job.key,
            seed=self.job.seed,
            task_digest=self.job.task_digest,
            group=self.job.group,
            started=self._began_unix,
            seconds=self.seconds,
            queued_s=self.queued_s,
            opened_s=self.opened_s,
            judged_s=self.judged_s,
            trajectory=trajectory,
            verdict=None if ruling is None else ruling.verdict,
            attempts=tuple(self.attempts),
            warm=self.warm,
            judge_episode=None if ruling is None else ruling.judge_episode,
        )


async def play_turns(
    scene: Scene,
    player: Player | TrustedPlayer,
    *,
    seed: int = 0,
    tell: Callable[[Turn], object] = lambda turn: None,
) -> tuple[End, str]:
    """Let a policy play a scene to its end, and return why it ended, in words too where that is a fault.

    `tell` sees each turn. Raises SandboxError when we failed. Cancelled: what ran is killed.
    """
    told = Told(
        episode=scene.episode,
        task=scene.task.name,
        instruction=scene.task.instruction,
        directory=scene.directory,
        budget=scene.budget,
        seed=seed,
        history=tuple(scene.turns),
    )
    async with seated(lambda: opened(player, told, scene.task)) as seat:
        try:
            while (end := scene.end) is None:
                bounds = [each for each in (scene.budget.think_s, scene.wall_left_s) if each is not None]
                asked = trio.current_time()
                step = await seat.ask(scene.observation, min(bounds, default=None))
                if scene.end is None:  # its time may be up
                    tell(await scene.act(step, think_s=trio.current_time() - asked))
        except PolicyFaultError as fault:
            return (scene.end or End.POLICY), str(fault)
    return end, ""


async def take_in(scene: Scene, referee: Referee) -> Submission:
    """End all that runs in a scene, and let a referee take in what lies there. Raises SandboxError when we failed."""
    alive = await seal(scene.sandbox)
    return await referee.take_in(scene.task, scene.sandbox, alive=alive)


def is_ours(ruling: Ruling) -> bool:
    """Return whether there is no verdict because we failed."""
    return ruling.verdict.decision.verdict is Verdict.IE
