"""Who judges what lies in a sandbox at the end of an episode: a judge in this process, or one that is served.

Both take a submission in while its sandbox is open, and decide when it is closed. What they cannot decide because of us
is an exception or a verdict IE, and never a score.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from minisandbox.errors import BrokenError, HostError
from minisandbox.judge.client import RemoteJudge, connect
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_sandbox
from minisandbox.judge.spec import Manifest
from minisandbox.judge.verdict import Verdict
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A verdict, and the judge's own name of the episode."""

    verdict: Verdict
    judge_episode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What was taken in."""

    decide: Callable[[], Awaitable[Ruling]]
    is_kept: bool
    """Whether `decide` can be called again, and judges anew."""


class Referee(Protocol):
    """Judges episodes, many at once."""

    async def take_in(self, task: Task, sandbox: Sandbox, *, alive: bool) -> Submission:
        """Take in what a sealed sandbox holds of a submission; `alive` is what `seal` returned.

        Raises SandboxError when we failed. The sandbox can be closed afterwards.
        """
        ...


class LocalReferee:
    """Judges with a judge of this process, so many submissions at once."""

    def __init__(self, judge: Judge, at_once: int) -> None:
        self._judge = judge
        self._room = trio.CapacityLimiter(at_once)

    async def take_in(self, task: Task, sandbox: Sandbox, *, alive: bool) -> Submission:
        """See `Referee.take_in`."""
        declared = task.assignment.declared
        async with self._room:
            feed = feed_sandbox(sandbox, declared, alive=alive)
            manifest = await self._judge.take_in(declared, feed)
        return Submission(decide=partial(self._decide, task, manifest), is_kept=True)

    async def _decide(self, task: Task, manifest: Manifest) -> Ruling:
        async with self._room:
            judged = await self._judge.judge(task.assignment, manifest)
        return Ruling(verdict=judged.verdict, judge_episode=judged.episode)


class RemoteReferee:
    """Lets a judge decide that listens on a socket; tasks have the same names there."""

    def __init__(self, socket: Path, *, uid: int | None = None, at_once: int = 8) -> None:
        self._socket, self._uid = socket, uid
        self._room = trio.CapacityLimiter(at_once)

    async def take_in(self, task: Task, sandbox: Sandbox, *, alive: bool) -> Submission:
        """See `Referee.take_in`. The verdict is there when this returns."""
        async with self._room, self._connected() as judge:
            given = await judge.submit(task.name, lambda declared: feed_sandbox(sandbox, declared, alive=alive))
        ruling = Ruling(verdict=given.verdict, judge_episode=given.episode)

        async def decide() -> Ruling:
            return ruling

        return Submission(decide=decide, is_kept=False)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[RemoteJudge]:
        try:
            async with connect(self._socket, uid=self._uid) as judge:
                yield judge
        except HostError as error:  # it may be just starting again
            raise BrokenError(str(error)) from error
