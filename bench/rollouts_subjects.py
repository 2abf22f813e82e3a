"""The episode that is measured, played in three ways: three turns, then a verdict on two inputs."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import trio

import minisandbox
from bench.tools import BenchError, Rate
from minisandbox.judge.assignment import Assignment, StdioWork, TestCase
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import seal
from minisandbox.judge.store import Store
from minisandbox.rollout.concurrency import Concurrency
from minisandbox.rollout.policy import Player, Policy, Told
from minisandbox.rollout.prepared import Prepared
from minisandbox.rollout.recorder import Recorder
from minisandbox.rollout.referee import LocalReferee
from minisandbox.rollout.run import Plan
from minisandbox.rollout.run import Run as WholeRun
from minisandbox.rollout.spec import Action, Budget, Episode, Observation, Run, Step, Write
from minisandbox.rollout.store import open_store
from minisandbox.tasks.task import File, Task

PROGRAM = "read a b\necho $((a + b))\n"
NOTES = "Write main.sh, which prints the sum of two numbers.\n"
CASES = {"small": ("3 4\n", "7\n"), "large": ("123456 654321\n", "777777\n")}
LOOK, TRY = "cat notes.txt", "echo 1 2 | sh main.sh"
TURNS: tuple[Action, ...] = (Run(command=LOOK), Write(path="main.sh", content=PROGRAM.encode()), Run(command=TRY))

TASK = Task(
    name="sum",
    instruction=NOTES,
    assignment=Assignment(
        name="sum",
        work=StdioWork(
            language="shell",
            source="main.sh",
            cases=tuple(
                TestCase(id=name, input=given.encode(), answer=answer.encode())
                for name, (given, answer) in CASES.items()
            ),
        ),
    ),
    files={"notes.txt": File(content=NOTES.encode())},
    solution={"main.sh": File(content=PROGRAM.encode())},
)


class Crowd:
    """Many policies that begin together, and sleep before each action."""

    def __init__(self, size: int, think_s: float) -> None:
        self.size, self.think_s = size, think_s
        self.playing = 0
        self._all_there = trio.Event()

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Belong to it for the block."""
        self.playing += 1
        if self.playing == self.size:
            self._all_there.set()
        try:
            yield
        finally:
            self.playing -= 1

    async def sleep(self) -> None:
        """Wait until all are there, and then for a while."""
        await self._all_there.wait()
        await trio.sleep(self.think_s)


class Script:
    """A policy that acts in an order, whatever it sees."""

    def __init__(self, actions: Sequence[Action], crowd: Crowd | None) -> None:
        self._actions, self._crowd = actions, crowd

    async def act(self, observation: Observation) -> Step:
        """Return the next action."""
        if self._crowd is not None:
            await self._crowd.sleep()
        return Step(action=self._actions[observation.turn])


def player_of(actions: Sequence[Action], crowd: Crowd | None) -> Player:
    """Return the policy of a script, by itself or in a crowd."""

    @contextlib.asynccontextmanager
    async def open_policy(_: Told) -> AsyncIterator[Policy]:
        with contextlib.nullcontext() if crowd is None else crowd.join():
            yield Script(actions, crowd)

    return Player("script", open_policy)


class Stage:
    """A supervisor, a judge and a place for records, in which all ways take turns."""

    def __init__(self, supervisor: minisandbox.Supervisor, folder: Path, processors: int) -> None:
        self.supervisor, self._folder = supervisor, folder
        self.judge = Judge(supervisor=supervisor, store=Store.open(folder / "judge"))
        self.referee = LocalReferee(self.judge, processors)
        self._numbers = itertools.count()

    async def play(
        self, actions: Sequence[Action], episodes: int, at_once: int, crowd: Crowd | None = None
    ) -> list[Episode]:
        """Play episodes in the loop, with records as a run keeps them, and return them."""
        async with open_store(self._folder / f"run-{next(self._numbers)}") as recorder:
            return await self._play(recorder, actions, episodes, at_once, crowd)

    async def _play(
        self, recorder: Recorder, actions: Sequence[Action], episodes: int, at_once: int, crowd: Crowd | None
    ) -> list[Episode]:
        played: list[Episode] = []
        plan = Plan(
            players=[player_of(actions, crowd)],
            samples=episodes,
            budget=Budget(turns=len(actions), wall_time_s=None, verdict_s=None),
            concurrency=Concurrency(least=at_once, most=at_once),
        )
        await WholeRun(plan, self.supervisor, self.referee, recorder, played.append).play(iter([TASK]))
        return played

    async def rate_of_loop(self, episodes: int, at_once: int) -> Rate:
        """Play so many episodes in the loop."""
        begun = time.perf_counter()
        played = await self.play(TURNS, episodes, at_once)
        seconds = time.perf_counter() - begun
        _check([episode.reward for episode in played], episodes)
        return Rate(starts=episodes, seconds=seconds)

    async def rate_by_hand(self, episodes: int, at_once: int) -> Rate:
        """Do the same work in sandboxes: no policy, no scheduler, no records."""
        prepared, rewards = Prepared(self.supervisor, TASK, episodes), []

        async def one() -> None:
            rewards.append(await self._by_hand(prepared))
            await prepared.used()

        begun = time.perf_counter()
        await _all(one, episodes, at_once)
        seconds = time.perf_counter() - begun
        _check(rewards, episodes)
        return Rate(starts=episodes, seconds=seconds)

    async def _by_hand(self, prepared: Prepared) -> float | None:
        root = TASK.assignment.declared.root
        async with prepared.open() as sandbox:
            await sandbox.run(["/bin/sh", "-c", LOOK], cwd=root)
            await sandbox.write_file(f"{root}/main.sh", PROGRAM.encode())
            await sandbox.run(["/bin/sh", "-c", TRY], cwd=root)
            submission = await self.referee.take_in(TASK, sandbox, alive=await seal(sandbox))
        return (await submission.decide()).verdict.reward.value

    async def turns_of_loop(self, count: int) -> list[float]:
        """Return the seconds of each turn of an episode, from the question to the next one."""
        (episode,) = await self.play([Run(command="true")] * (count + 1), 1, 1)
        starts = [turn.started_s for turn in episode.trajectory.turns]
        return [after - before for before, after in itertools.pairwise(starts)]

    async def turns_by_hand(self, count: int) -> list[float]:
        """Return the seconds of as many commands in a sandbox that was opened in the same way."""
        seconds = []
        async with Prepared(self.supervisor, TASK, 1).open() as sandbox:
            for _ in range(count):
                begun = time.perf_counter()
                await sandbox.run(["/bin/sh", "-c", "true"], cwd=TASK.assignment.declared.root)
                seconds.append(time.perf_counter() - begun)
        return seconds


async def rate_of_plain(episodes: int, at_once: int) -> Rate:
    """Do the same by processes of this user in a directory of the host, which nothing keeps from anything."""
    rewards: list[float | None] = []

    async def one() -> None:
        with tempfile.TemporaryDirectory(prefix="bench-plain-") as folder:
            Path(folder, "notes.txt").write_text(NOTES)
            await _plain(LOOK, folder)
            Path(folder, "main.sh").write_text(PROGRAM)
            await _plain(TRY, folder)
            said = [await _plain("sh main.sh", folder, given) for given, _ in CASES.values()]
        rewards.append(float(said == [answer for _, answer in CASES.values()]))

    begun = time.perf_counter()
    await _all(one, episodes, at_once)
    seconds = time.perf_counter() - begun
    _check(rewards, episodes)
    return Rate(starts=episodes, seconds=seconds)


async def _plain(command: str, folder: str, given: str = "") -> str:
    ran = await trio.run_process(["/bin/sh", "-c", command], cwd=folder, stdin=given.encode(), capture_stdout=True)
    return ran.stdout.decode()


async def _all(one: Callable[[], Awaitable[None]], count: int, at_once: int) -> None:
    """Let so many workers do it until it was done so often."""
    left: Iterator[int] = iter(range(count))

    async def work() -> None:
        for _ in left:
            await one()

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)


def _check(rewards: Sequence[float | None], episodes: int) -> None:
    if list(rewards) != [1.0] * episodes:
        raise BenchError(f"{rewards.count(1.0)} of {episodes} episodes were rewarded; all of them should be")
