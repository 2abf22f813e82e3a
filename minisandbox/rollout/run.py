"""A run: every task by every policy so many times, recorded, and begun again where it ended."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import trio

from minisandbox.errors import UsageError
from minisandbox.rollout.concurrency import Concurrency, Meter
from minisandbox.rollout.episode import Court, Job
from minisandbox.rollout.policy import Player, TrustedPlayer
from minisandbox.rollout.prepared import Prepared
from minisandbox.rollout.recorder import Recorder, RunInfo
from minisandbox.rollout.referee import Referee
from minisandbox.rollout.scheduler import Retry, Scheduler
from minisandbox.rollout.source import LeftOut
from minisandbox.rollout.spec import Budget, Episode, EpisodeKey
from minisandbox.rollout.warm import WarmTasks, open_warm_tasks
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is to do."""

    players: Sequence[Player | TrustedPlayer]
    samples: int = 1
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    concurrency: Concurrency
    retry: Retry = field(default_factory=Retry)
    priority: Callable[[Task], int] = lambda task: 0
    """Of its episodes; the lower come first."""
    group: Callable[[Task], str] = lambda task: task.name
    """What episodes are fair between, and compared within."""

    def __post_init__(self) -> None:
        names = [player.name for player in self.players]
        if not names or len(set(names)) != len(names):
            raise UsageError("a run needs policies, each with a name of its own")
        if self.samples < 1:
            raise UsageError(f"samples is {self.samples}, it must be at least 1")


@dataclass(slots=True)
class Run:
    """A run while it goes on. `tell` sees each episode when it is recorded, `tell_left_out` what is not played."""

    plan: Plan
    supervisor: Supervisor
    referee: Referee
    recorder: Recorder
    tell: Callable[[Episode], object] = lambda episode: None
    tell_left_out: Callable[[LeftOut], object] = lambda item: None
    before: int = 0
    """How many episodes were finished when it began."""
    begun: int = 0
    """How many were taken from the source."""
    scheduler: Scheduler = field(init=False)
    _finished: frozenset[EpisodeKey] = frozenset()

    def __post_init__(self) -> None:
        plan = self.plan
        self.scheduler = Scheduler(
            court=Court(referee=self.referee, recorder=self.recorder, budget=plan.budget),
            concurrency=plan.concurrency,
            look=Meter().look,
            retry=plan.retry,
            queue_limit=max(8, 2 * plan.concurrency.most),
            tell=self.tell,
        )

    async def play(
        self, tasks: Iterator[Task | LeftOut], *, version: str = "", machine: dict[str, str] | None = None
    ) -> None:
        """Play all tasks, those episodes left out that are recorded. Raises RecordError, UsageError."""
        plan = self.plan
        options = {"budget": msgspec.to_builtins(plan.budget)}
        info = RunInfo(
            policies=tuple(player.name for player in plan.players),
            samples=plan.samples,
            seed=plan.seed,
            options=options,
            version=version,
            machine=machine or {},
        )
        self._finished = frozenset(await self.recorder.begin(info))
        self.before = len(self._finished)
        # those that close still hold their places
        async with open_warm_tasks(self.supervisor, self.recorder.event, 2 * plan.concurrency.most) as warm:
            await self.scheduler.run(self._jobs(tasks, warm))

    async def _jobs(self, tasks: Iterator[Task | LeftOut], warm: WarmTasks) -> AsyncGenerator[Job, None]:
        while (item := await trio.to_thread.run_sync(next, tasks, None)) is not None:
            if isinstance(item, LeftOut):
                data = {"name": item.name, "why": item.why, "is_broken": item.is_broken}
                await self.recorder.event("left_out", None, data)
                self.tell_left_out(item)
                continue
            for job in await self._of_task(item, warm):
                self.begun += 1
                yield job

    async def _of_task(self, task: Task, warm: WarmTasks) -> list[Job]:
        plan = self.plan
        wanted = [
            (key, player)
            for sample in range(plan.samples)
            for player in plan.players
            if (key := EpisodeKey(task=task.name, policy=player.name, sample=sample)) not in self._finished
        ]
        if not wanted:
            return []
        await self.recorder.task(task)
        prepared = Prepared(self.supervisor, task, len(wanted), warm)
        digest = task.digest
        return [
            Job(
                key=key,
                task=task,
                player=player,
                open=prepared.open,
                used=prepared.used,
                seed=seed_of(plan.seed, key),
                group=plan.group(task),
                task_digest=digest,
                queued_at=trio.current_time(),
                priority=plan.priority(task),
            )
            for key, player in wanted
        ]


def seed_of(seed: int, key: EpisodeKey) -> int:
    """Return the seed of an episode: the same in every run of the same seed, whatever else is played."""
    digest = hashlib.sha256(f"{seed}/{key.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
