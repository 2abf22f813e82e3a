"""Faults of every kind, thrown in now and then where the loop meets the rest: openings, commands, judging."""

from __future__ import annotations

import contextlib
import errno
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import psutil

import minisandbox
from minisandbox.errors import (
    BrokenError,
    BusyError,
    CgroupError,
    DeadlineError,
    FileTransferError,
    HostError,
    ProtocolError,
    StartError,
    StoreFullError,
)
from minisandbox.judge.spec import Outcome
from minisandbox.judge.verdict import PenaltyPolicy, Verdict, decision_sha256, reward_of
from minisandbox.rollout.referee import Referee, Ruling, Submission
from minisandbox.tasks.task import Task
from tests import observer

KINDS: dict[str, Callable[[], Exception]] = {
    "start": lambda: StartError("cannot start a sandbox", "clone", errno.EAGAIN),
    "broken": lambda: BrokenError("the launcher is gone"),
    "deadline": lambda: DeadlineError("a sandbox did not become ready within 30 s"),
    "busy": lambda: BusyError("all slots are in use"),
    "cgroup": lambda: CgroupError("a control group could not be made"),
    "host": lambda: HostError("this host lacks what was asked for"),
    "protocol": lambda: ProtocolError("a record that is none"),
    "transfer": lambda: FileTransferError("write", "/submission", errno.EIO),
    "full": lambda: StoreFullError("the file system of the state directory is full"),
    "system": lambda: OSError(errno.EMFILE, "Too many open files"),
    "group": lambda: ExceptionGroup("of a nursery", [BrokenError("the init of a slot is gone")]),
}


KILLED, IE = "killed", "IE"
MORE = {KILLED: 4, IE: 3}
"""How much more often it happens: a process that is killed is any of those there are, and many have ended by then; and
there are few decisions."""


@dataclass
class Chance:
    """Throws each kind of fault at its share of the moments that it could, by a seed."""

    share: float
    seed: int = 0
    thrown: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def raise_one(self) -> None:
        """Raise one of the kinds, or none."""
        for name, make in KINDS.items():
            if self._random.random() < self.share / len(KINDS):
                self.thrown[name] += 1
                raise make()

    def comes(self, name: str) -> bool:
        """Return whether the fault of this name happens now."""
        happens = self._random.random() < self.share * MORE.get(name, 1)
        self.thrown[name] += happens
        return happens

    def one_of(self, things: list[Any]) -> Any:
        """Return any of them."""
        return self._random.choice(things)


class FaultySupervisor:
    """A supervisor whose sandboxes do not open now and then, fail in use, or are killed from outside."""

    def __init__(self, supervisor: minisandbox.Supervisor, chance: Chance) -> None:
        self._supervisor, self._chance = supervisor, chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._supervisor, name)

    @contextlib.asynccontextmanager
    async def open_sandbox(self, **options: Any) -> AsyncIterator[minisandbox.Sandbox]:
        """Open one, or fail."""
        self._chance.raise_one()
        async with self._supervisor.open_sandbox(**options) as sandbox:
            for name in ("run", "run_warm", "start", "write_file", "put_tree"):
                setattr(sandbox, name, partial(self._call, getattr(sandbox, name)))
            if self._chance.comes(KILLED):
                with contextlib.suppress(psutil.NoSuchProcess, ValueError, IndexError):
                    self._chance.one_of(observer.inits()).kill()
            yield sandbox

    @contextlib.asynccontextmanager
    async def open_template(self, *given: Any, **options: Any) -> AsyncIterator[minisandbox.Template]:
        """Open one, or fail."""
        self._chance.raise_one()
        async with self._supervisor.open_template(*given, **options) as template:
            yield template

    async def _call(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self._chance.comes("in use"):
            raise BrokenError("the init of this sandbox is gone")
        return await call(*args, **named)


class FaultyReferee:
    """A referee that cannot decide now and then, or fails when it is asked."""

    def __init__(self, referee: Referee, chance: Chance, *, is_kept: bool = True) -> None:
        self._referee, self._chance, self._is_kept = referee, chance, is_kept

    async def take_in(self, task: Task, sandbox: minisandbox.Sandbox, *, alive: bool) -> Submission:
        """Take in, or fail."""
        self._chance.raise_one()
        submission = await self._referee.take_in(task, sandbox, alive=alive)

        async def decide() -> Ruling:
            self._chance.raise_one()
            ruling = await submission.decide()
            return undecided(ruling) if self._chance.comes(IE) else ruling

        return Submission(decide=decide, is_kept=self._is_kept)


def undecided(ruling: Ruling) -> Ruling:
    """Return a ruling whose verdict is none, as a judge makes it that failed in every try."""
    before = ruling.verdict
    decision = msgspec.structs.replace(before.decision, verdict=Outcome.IE, score=None)
    reward = reward_of(decision, PenaltyPolicy())
    verdict: Verdict = msgspec.structs.replace(
        before, decision=decision, reward=reward, decision_sha256=decision_sha256(decision)
    )
    return Ruling(verdict=verdict, judge_episode=ruling.judge_episode)
