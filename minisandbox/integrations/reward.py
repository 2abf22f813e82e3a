"""Rewards of the judge for trainers: texts of a model come in, rewards come out, None where an episode is to be masked.

Theory of operation. A trainer is a plain program or runs on asyncio, the judge runs on trio: so `RewardFunction` runs
a supervisor and a judge in a thread of its own, from `open` to `close`, and takes batches from any other thread. In
trio, `Grader` does the same with a judge that is there already. Where we failed there is no reward, never a 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import trio

from minisandbox.errors import BrokenError, ClosedError, DeadlineError, SandboxError, UsageError, only_of
from minisandbox.integrations.completions import Completion, fits, submission_of, text_of
from minisandbox.judge.pipeline import Judge, Judged
from minisandbox.judge.spec import Manifest
from minisandbox.judge.store import Store
from minisandbox.judge.verdict import PenaltyPolicy, Verdict
from minisandbox.runtime.opening import open_supervisor
from minisandbox.tasks.task import Files, Task
from minisandbox.tasks.workshop import Workshop

CELLS_AT_ONCE = 2
DEADLINE_S = 900.0

Submission = Callable[[Task, str], Files]
"""Makes the files of a submission of what a model said."""


class Graded(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one completion."""

    reward: float | None
    """None: leave it out of training."""
    verdict: Verdict | None = None
    episode: str | None = None
    """What `minisandbox judge replay` takes, where the store is kept."""
    error: str = ""
    """Why we failed, where we did."""


class Grader:
    """Judges completions with a judge that its caller opened, some at once. For trio."""

    def __init__(
        self,
        judge: Judge,
        tasks: Iterable[Task],
        *,
        submission: Submission = submission_of,
        at_once: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._judge, self._submission, self._deadline_s = judge, submission, deadline_s
        self.tasks = _named(tasks)
        self._room = trio.CapacityLimiter(_processors() if at_once is None else at_once)

    async def grade(self, task: str, completion: Completion) -> Graded:
        """Judge one completion. Raises UsageError for a task that there is not."""
        if task not in self.tasks:
            raise UsageError(f"there is no task {task!r}; there is {', '.join(sorted(self.tasks)[:8])}")
        async with self._room:
            return await self._grade(self.tasks[task], text_of(completion))

    async def grade_all(self, tasks: Sequence[str], completions: Sequence[Completion]) -> list[Graded]:
        """Judge a batch and return what came of each, in order. Raises UsageError where the lengths differ."""
        if len(tasks) != len(completions):
            raise UsageError(f"{len(completions)} completions of {len(tasks)} tasks; each needs the name of its task")
        graded: dict[int, Graded] = {}

        async def one(at: int) -> None:
            graded[at] = await self.grade(tasks[at], completions[at])

        async with trio.open_nursery() as nursery:
            for at in range(len(tasks)):
                nursery.start_soon(one, at)
        return [graded[at] for at in range(len(tasks))]

    async def _grade(self, task: Task, text: str) -> Graded:
        files = self._submission(task, text)
        judged: Judged | None = None
        failures: list[str] = []
        try:
            with trio.move_on_after(self._deadline_s) as scope:
                judged = await self._judge.judge(task.assignment, self._manifest(task, files))
            if scope.cancelled_caught:
                raise DeadlineError(f"no verdict within {self._deadline_s:g} s")
        except* SandboxError as group:
            failures = [f"{type(error).__name__}: {error}" for error in group.exceptions]
        if judged is None:
            return Graded(reward=None, error="; ".join(failures))
        reward, failed = judged.verdict.reward, judged.verdict.observations.failures
        return Graded(
            reward=None if reward.mask else reward.value,
            verdict=judged.verdict,
            episode=judged.episode,
            error="; ".join(failed) if reward.mask else "",
        )

    def _manifest(self, task: Task, files: Files) -> Manifest:
        """Return the submission; one with names or sizes that no submission may have is rejected."""
        if not fits(files, task.assignment.declared):
            return Manifest(files=(), rejected=True)
        return Workshop(self._judge, task, 1).manifest(files)


def _named(tasks: Iterable[Task]) -> dict[str, Task]:
    named = {task.name: task for task in tasks}
    if not named:
        raise UsageError("a reward needs at least one task")
    return named


class RewardFunction:
    """A judge in a thread of its own, which any thread and any event loop may call. Use it in a `with` block.

    Not for forked children: they have no such thread. Raises ClosedError after `close`.
    """

    __name__ = "minisandbox"
    """What trainers call it in their logs."""

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        column: str = "task",
        submission: Submission = submission_of,
        at_once: int | None = None,
        deadline_s: float = DEADLINE_S,
        penalty: PenaltyPolicy | None = None,
        store: Path | None = None,
        state_dir: Path | None = None,
    ) -> None:
        self._tasks, self._column, self._submission = tuple(tasks), column, submission
        self._at_once, self._deadline_s = _processors() if at_once is None else at_once, deadline_s
        self._penalty, self._store, self._state_dir = penalty or PenaltyPolicy(), store, state_dir
        self._lock = threading.Lock()
        self._pending: set[Future[list[Graded]]] = set()
        self._end: SandboxError | None = ClosedError("this reward function is not open; use it in a with block")
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def open(self) -> RewardFunction:
        """Start the thread, and return when it can judge. Raises UsageError, and what opening a supervisor raises."""
        _named(self._tasks)  # whatever this host can do
        ready: Future[None] = Future()
        self._pid, self._end = os.getpid(), None
        self._thread = threading.Thread(target=self._run, args=(ready,), name="minisandbox-reward", daemon=True)
        self._thread.start()
        ready.result()
        return self

    def close(self) -> None:
        """End the thread; what is being judged is given up with ClosedError. Closing twice does nothing."""
        if self._thread is None or os.getpid() != self._pid:
            return
        with contextlib.suppress(trio.RunFinishedError, AttributeError):  # it ended by itself, or never began
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def __enter__(self) -> RewardFunction:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, tasks: Sequence[str], completions: Sequence[Completion]) -> Future[list[Graded]]:
        """Begin to judge a batch."""
        if os.getpid() != self._pid:
            raise UsageError("this reward function was opened by another process; open one in this process")
        future: Future[list[Graded]] = Future()
        with self._lock:
            if self._end is not None:
                raise self._end
            self._pending.add(future)
            future.add_done_callback(self._pending.discard)
            with contextlib.suppress(
                trio.RunFinishedError
            ):  # the thread is at its end, and answers all that is pending
                self._token.run_sync_soon(self._take, future, list(tasks), list(completions))
        return future

    def grade(self, tasks: Sequence[str], completions: Sequence[Completion]) -> list[Graded]:
        """Judge a batch, and wait for it."""
        return self.submit(tasks, completions).result()

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        """Return a reward for each completion, None to mask it; one of the columns has the names of the tasks."""
        return [graded.reward for graded in self.grade(self._names(columns), completions)]

    async def for_asyncio(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        """Do the same without blocking an event loop of asyncio."""
        graded = await self.grade_for_asyncio(self._names(columns), completions)
        return [each.reward for each in graded]

    async def grade_for_asyncio(self, tasks: Sequence[str], completions: Sequence[Completion]) -> list[Graded]:
        """Judge a batch without blocking an event loop of asyncio."""
        return await asyncio.wrap_future(self.submit(tasks, completions))

    def _names(self, columns: Mapping[str, Any]) -> Sequence[str]:
        names = columns.get(self._column)
        if names is None or isinstance(names, str):
            raise UsageError(f"the column {self._column!r} must have the name of a task for each completion")
        return list(names)

    # ---- in the thread

    def _run(self, ready: Future[None]) -> None:
        end: SandboxError = ClosedError("this reward function was closed")
        try:
            trio.run(self._serve, ready)
        except BaseException as error:  # noqa: BLE001 - it is raised where this thread is waited for
            if not ready.done():
                ready.set_exception(only_of(error))
            end = BrokenError(f"the thread that judges failed: {only_of(error)}")
            end.__cause__ = error
        with self._lock:
            self._end = end
            left = list(self._pending)
        for future in left:
            if not future.done():
                future.set_exception(end)

    async def _serve(self, ready: Future[None]) -> None:
        self._stop, self._token = trio.Event(), trio.lowlevel.current_trio_token()
        self._send, receive = trio.open_memory_channel[tuple[Future[list[Graded]], list[str], list[Completion]]](
            float("inf")
        )
        room = self._at_once * CELLS_AT_ONCE + CELLS_AT_ONCE
        async with contextlib.AsyncExitStack() as stack:
            folder = self._store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minisandbox-reward-")))
            supervisor = await stack.enter_async_context(open_supervisor(state_dir=self._state_dir, max_sandboxes=room))
            judge = Judge(
                supervisor=supervisor,
                store=Store.open(folder / "judge" if self._store is None else folder),
                penalty=self._penalty,
                at_once=CELLS_AT_ONCE,
            )
            grader = Grader(
                judge,
                self._tasks,
                submission=self._submission,
                at_once=self._at_once,
                deadline_s=self._deadline_s,
            )
            stack.enter_context(receive)
            nursery = await stack.enter_async_context(trio.open_nursery())
            nursery.start_soon(self._end_at_stop, nursery.cancel_scope)
            ready.set_result(None)
            async for future, tasks, completions in receive:
                nursery.start_soon(self._answer, grader, future, tasks, completions)

    def _take(self, future: Future[list[Graded]], tasks: list[str], completions: list[Completion]) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # it is at its end, as above
            self._send.send_nowait((future, tasks, completions))

    async def _end_at_stop(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        scope.cancel()

    async def _answer(
        self, grader: Grader, future: Future[list[Graded]], tasks: list[str], completions: list[Completion]
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(await grader.grade_all(tasks, completions))
        except Exception as error:  # noqa: BLE001 - the caller gets it: it asked for what cannot be, or its submission failed
            future.set_exception(only_of(error))


def neutral(rewards: Sequence[float | None], groups: Sequence[object]) -> list[float]:
    """Return rewards for a trainer that cannot mask: a masked one gets the mean of its group's others.

    Where advantages are differences from the mean of a group, such an episode has none, and moves nothing.
    A group that is masked as a whole gets 0.0 throughout, which says nothing either.
    """
    known: dict[object, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            known.setdefault(group, []).append(reward)
    means = {group: sum(values) / len(values) for group, values in known.items()}
    return [means.get(group, 0.0) if reward is None else reward for reward, group in zip(rewards, groups, strict=True)]


def _processors() -> int:
    return len(os.sched_getaffinity(0))
