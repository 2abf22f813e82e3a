"""The scheduler: takes jobs from a source, plays so many at once, tries again what we failed, and ends in order.

    source --(no further than the queue has room)--> FairQueue --(as many as `target`)--> tries --> recorder

`drain` takes no more jobs and lets those end that run; `stop` cancels them, and what was cancelled is not recorded, so
that a run that is begun again plays it. It knows nothing of tasks and sandboxes: a job's try does.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import trio

from minisandbox.errors import (
    BusyError,
    DeadlineError,
    RecordError,
    SandboxError,
    UndecidedError,
    UsageError,
    leaves_of,
)
from minisandbox.rollout.concurrency import LOOK_S, Concurrency, Load, next_target
from minisandbox.rollout.episode import Court, Job, Try, is_ours
from minisandbox.rollout.fair import FairQueue
from minisandbox.rollout.referee import Ruling, Submission
from minisandbox.rollout.spec import Attempt, End, Episode, Trajectory

MARGIN_S = 180.0
"""Beyond its own budgets, what a try may take for opening, sealing and closing before it is reclaimed."""


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often what we failed is tried, and how long is waited before: twice as long each time."""

    tries: int = 4
    backoff_s: float = 0.25
    backoff_most_s: float = 30.0

    def __post_init__(self) -> None:
        if self.tries < 1 or self.backoff_s < 0 or self.backoff_most_s < self.backoff_s:
            raise UsageError("tries is from 1 up, and backoff_s from 0 to backoff_most_s")

    def pause_s(self, failed: int) -> float:
        """Return how long to wait after so many failures."""
        return min(self.backoff_most_s, self.backoff_s * 2.0 ** min(failed - 1, 32))


@dataclass(slots=True, kw_only=True)
class State:
    """What can be seen of a scheduler while it runs."""

    target: int = 0
    running: int = 0
    ended: int = 0
    retried: int = 0
    load: Load | None = None
    draining: bool = False
    stopped: bool = False


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Plays the jobs of one source. `look` says how loaded the machine is, and is asked only where it matters."""

    court: Court
    concurrency: Concurrency
    look: Callable[[], Load]
    retry: Retry = field(default_factory=Retry)
    queue_limit: int = 256
    tell: Callable[[Episode], object] = lambda episode: None
    state: State = field(default_factory=State)
    _queue: FairQueue[Job] = field(init=False)
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _room: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self._queue = FairQueue(self.queue_limit)
        self.state.target = self.concurrency.least

    @property
    def waiting(self) -> int:
        """How many jobs are queued."""
        return len(self._queue)

    def drain(self) -> None:
        """Begin no more episodes, and let those that run come to their end."""
        self.state.draining = True
        self._queue.clear()

    def stop(self) -> None:
        """End all at once. What ran is cancelled and not recorded."""
        self.state.stopped = True
        self.drain()
        self._scope.cancel()

    async def run(self, source: AsyncGenerator[Job, None]) -> None:
        """Play every job. Raises what the source raises, and RecordError, at which it stops.

        Cancelled: as `stop`.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed, source)
                nursery.start_soon(self._scale)
                async with trio.open_nursery() as tries:
                    while (job := await self._next()) is not None:
                        self.state.running += 1
                        tries.start_soon(self._serve, job)
                nursery.cancel_scope.cancel()
        if self.state.draining:
            await self._note("stopped" if self.state.stopped else "drained", None, {"ended": self.state.ended})

    async def _feed(self, source: AsyncGenerator[Job, None]) -> None:
        async with contextlib.aclosing(source):
            async for job in source:
                if self.state.draining:
                    break
                await self._queue.put(job)
        self._queue.end()

    async def _next(self) -> Job | None:
        while self.state.running >= self.state.target:
            self._room = trio.Event()
            await self._room.wait()
        return await self._queue.take()

    async def _scale(self) -> None:
        while self.concurrency.least < self.concurrency.most:
            await trio.sleep(LOOK_S)
            state = self.state
            state.load = self.look()
            is_full = state.running >= state.target and self.waiting > 0
            target = next_target(state.target, self.concurrency, state.load, is_full=is_full)
            if target != state.target:
                await self._note("concurrency", None, {"from": state.target, "to": target})
                state.target = target
                self._room.set()

    async def _serve(self, job: Job) -> None:
        try:
            episode = await self._until_done(job)
            await self.court.recorder.finish(episode)
            self.tell(episode)
        finally:
            self.state.running -= 1
            self.state.ended += 1
            self._queue.done(job)
            self._room.set()
            await job.used()

    async def _until_done(self, job: Job) -> Episode:
        """Try until there is a verdict, or we failed too often."""
        attempts: list[Attempt] = []
        queued_s = trio.current_time() - job.queued_at
        while True:
            one = Try(job, self.court, queued_s, attempts)
            try:
                return await self._reclaimed(one)
            except* (SandboxError, OSError) as group:
                error = first_of(group)
            if isinstance(error, RecordError):
                raise error
            again = self._may_retry(one, error)
            await self._failed(one, type(error).__name__, str(error), is_retryable(error))
            if not again:
                why = f"{type(error).__name__}: {error}"
                before = one.trajectory
                turns = before.turns if before else ()
                return one.episode(Trajectory(turns=turns, end=End.INFRASTRUCTURE, why=why), None)
            await trio.sleep(self.retry.pause_s(len(attempts)))

    async def _reclaimed(self, one: Try) -> Episode:
        """Let a try have its time. Raises DeadlineError when it is stuck beyond all that it may take."""
        budget = self.court.budget
        parts = (budget.wall_time_s, budget.verdict_s, MARGIN_S)
        within_s = None if None in parts else sum(each for each in parts if each is not None)
        with trio.move_on_after(within_s if within_s is not None else float("inf")):
            return await one.play(partial(self._decide, one))
        raise DeadlineError(f"{one.job.key.id} was stuck, and reclaimed after {within_s:g} s")

    async def _decide(self, one: Try, submission: Submission) -> Ruling:
        """Return a verdict. What was played stays as it is where only the judging need be tried again."""
        while True:
            ruling = None
            try:
                ruling = await one.in_time(submission.decide())
            except* (SandboxError, OSError) as group:
                error = first_of(group)
            if ruling is None:
                if not submission.is_kept or not self._may_retry(one, error):
                    raise error
                await self._failed(one, type(error).__name__, str(error), True)
            else:
                error = UndecidedError("; ".join(ruling.verdict.observations.failures) or "no reason given")
                if not is_ours(ruling) or not self._may_retry(one, error):
                    return ruling
                if not submission.is_kept:
                    raise error
                await self._failed(one, type(error).__name__, str(error), True)
            await trio.sleep(self.retry.pause_s(len(one.attempts)))

    def _may_retry(self, one: Try, error: Exception) -> bool:
        return is_retryable(error) and len(one.attempts) + 1 < self.retry.tries

    async def _failed(self, one: Try, error: str, message: str, retryable: bool) -> None:
        self.state.retried += 1
        one.attempts.append(Attempt(error=error, message=message[:1000], retryable=retryable, seconds=one.seconds))
        await self._note("retry", one.job, {"error": error, "message": message[:1000]})

    async def _note(self, name: str, job: Job | None, data: dict[str, Any]) -> None:
        await self.court.recorder.event(name, None if job is None else job.key, data)


def is_retryable(error: Exception) -> bool:
    """Return whether the same may succeed on another slot, or a moment later."""
    if isinstance(error, SandboxError):
        return error.retryable or isinstance(error, BusyError)
    return True  # the system said no: descriptors, memory


def first_of(group: BaseExceptionGroup[Exception]) -> Exception:
    """Return the one that counts of a group: that of the records before all others, then the first."""
    leaves = leaves_of(group)
    return next((each for each in leaves if isinstance(each, RecordError)), leaves[0])
