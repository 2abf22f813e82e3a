"""The scheduler: faults of ours are tried again and never scored, what is stuck is reclaimed, and it ends in order."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest
import trio
import trio.testing

import minisandbox
from minisandbox.errors import BrokenError, CgroupError, RecordError, UsageError
from minisandbox.judge.assignment import Environment
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.store import Store
from minisandbox.rollout.builtin import NOOP, ORACLE
from minisandbox.rollout.concurrency import Concurrency, Load
from minisandbox.rollout.episode import Court, Job
from minisandbox.rollout.referee import LocalReferee, Ruling, Submission
from minisandbox.rollout.run import Plan, Run
from minisandbox.rollout.scheduler import MARGIN_S, Retry, Scheduler, first_of
from minisandbox.rollout.source import LeftOut
from minisandbox.rollout.spec import Budget, End, Episode, EpisodeKey, Observation, Step, Submit
from minisandbox.rollout.spec import Run as RunAction
from minisandbox.tasks.task import Agent, Task
from tests import observer
from tests.rollout.conftest import PlayAll
from tests.rollout.faults import KINDS, Chance, FaultyReferee, FaultySupervisor, undecided
from tests.rollout.players import DEADLINE_S, JUDGING, Memory, acting_player, file_task
from tests.tasks.samples import function_task

pytestmark = JUDGING

RETRY = Retry(tries=6, backoff_s=0.001, backoff_most_s=0.01)
IDLE = Load(busy=0.0, queueing=0.0, memory_free=1.0)


def is_right(episode: Episode) -> bool:
    """Return whether an episode ended as it should: the reward that its policy earns, or none at all."""
    return episode.reward in (1.0 if episode.key.policy == "oracle" else 0.0, None)


@pytest.mark.slow
@pytest.mark.parametrize("is_kept", [True, False])
async def test_faults_of_every_kind_never_make_a_false_score(
    supervisor: minisandbox.Supervisor, tmp_path: Path, memory: Memory, is_kept: bool
) -> None:
    """5 % at every step: each episode has the verdict it earned or is masked as ours, and most have a verdict."""
    chance = Chance(0.05, seed=2)
    faulty = FaultySupervisor(supervisor, chance)
    judge = Judge(supervisor=faulty, store=Store.open(tmp_path / "judge"))  # type: ignore[arg-type]
    referee = FaultyReferee(LocalReferee(judge, 2), chance, is_kept=is_kept)
    plan = Plan(
        players=[ORACLE, NOOP], samples=4, concurrency=Concurrency(least=6, most=6), retry=RETRY, budget=Budget()
    )
    tasks = [file_task(f"file-{at}", note="n") for at in range(4)] + [function_task(name=f"f-{at}") for at in range(3)]
    with trio.fail_after(DEADLINE_S):
        await Run(plan, faulty, referee, memory).play(iter(tasks))  # type: ignore[arg-type]
    episodes = list(memory.episodes.values())
    masked = [episode for episode in episodes if episode.reward is None]

    assert 7 * 2 * 4 == len(episodes)
    assert [] == [episode for episode in episodes if not is_right(episode)]
    assert all(episode.attempts for episode in masked)
    assert len(masked) < len(episodes) / 3
    assert {"killed", "in use", "IE"} <= {kind for kind, count in chance.thrown.items() if count}
    assert any(chance.thrown[kind] for kind in KINDS)


class Failing:
    """A referee that fails so often, and is then as good as another."""

    def __init__(self, referee: LocalReferee, error: Exception | None, times: int) -> None:
        self._referee, self._error, self.left, self.asked = referee, error, times, 0

    async def take_in(self, task: Task, sandbox: minisandbox.Sandbox, *, alive: bool) -> Submission:
        """Take in."""
        submission = await self._referee.take_in(task, sandbox, alive=alive)

        async def decide() -> Ruling:
            self.asked += 1
            ruling = await submission.decide()
            self.left -= 1
            if self.left < 0:
                return ruling
            if self._error is not None:
                raise self._error
            return undecided(ruling)

        return Submission(decide=decide, is_kept=True)


@pytest.mark.parametrize("error", [None, BrokenError("gone"), OSError(24, "Too many open files")])
async def test_a_judge_that_fails_is_asked_again_without_playing_again(
    play_all: PlayAll, referee: LocalReferee, memory: Memory, error: Exception | None
) -> None:
    """What was played stays; the failures are among the attempts."""
    failing = Failing(referee, error, 2)
    (episode,) = await play_all([file_task()], [ORACLE], judge=failing)

    assert (1.0, 3) == (episode.reward, failing.asked)
    assert [type(error).__name__ if error else "UndecidedError"] * 2 == [each.error for each in episode.attempts]
    assert 2 == len(memory.turns)  # once: the file, and submit
    assert ["retry", "retry"] == [name for name, _, _ in memory.events]


async def test_a_judge_that_never_decides_masks_the_episode(play_all: PlayAll, referee: LocalReferee) -> None:
    """The verdict is kept as it is, IE, and there is no reward."""
    (episode,) = await play_all([file_task()], [ORACLE], judge=Failing(referee, None, 100))

    assert episode.verdict is not None
    assert ("IE", None, End.SUBMITTED) == (
        episode.verdict.decision.verdict.value,
        episode.reward,
        episode.trajectory.end,
    )


async def test_a_fault_that_stays_is_not_tried_again(play_all: PlayAll, referee: LocalReferee) -> None:
    """What no slot can mend ends at once, masked, with what had been played."""
    failing = Failing(referee, CgroupError("read-only"), 100)
    (episode,) = await play_all([file_task()], [ORACLE], judge=failing)

    assert (End.INFRASTRUCTURE, None, 1, 2) == (
        episode.trajectory.end,
        episode.reward,
        failing.asked,
        len(episode.trajectory.turns),
    )


async def test_a_failing_program_is_never_tried_again(play_all: PlayAll) -> None:
    """Nor one that was killed for its limits: these are the policy's own."""

    times = (60.0, 60.0, 60.0, 0.3)

    async def act(observation: Observation) -> Step:
        commands = ["exit 7", "kill -9 $$", "head -c 4000000000 /dev/zero | tail", "sleep 9"]
        if observation.turn < len(commands):
            return Step(action=RunAction(command=commands[observation.turn], wall_time_s=times[observation.turn]))
        return Step(action=Submit())

    task = msgspec.structs.replace(file_task(), agent=Agent(memory_bytes=64 << 20))
    (episode,) = await play_all([task], [acting_player("fails", act)])
    endings = [turn.outcome.exit_reason.value for turn in episode.trajectory.turns if turn.outcome.exit_reason]

    assert (0.0, (), ["exited", "signaled", "memory", "wall_time"]) == (episode.reward, episode.attempts, endings)
    assert ("memory", "wall_time") == episode.trajectory.limits_hit


async def test_a_killed_launcher_costs_no_episode(play_all: PlayAll, memory: Memory) -> None:
    """Every sandbox is gone with it; the episodes begin again on another, and all are rewarded."""
    killed: list[int] = []

    async def act(observation: Observation) -> Step:
        if not killed and len(memory.episodes) >= 1:
            killed.append(observer.launcher().pid)
            observer.launcher().kill()
        return next_step(observation)

    episodes = await play_all([file_task(note="n")], [acting_player("kills", act), ORACLE], samples=4, at_once=3)

    assert 1 == len(killed)
    assert [1.0] * 8 == [episode.reward for episode in episodes]
    assert {"retry"} == {name for name, _, _ in memory.events}


def next_step(observation: Observation) -> Step:
    """Solve the task of one file in two turns."""
    if observation.turn == 0:
        return Step(action=RunAction(command="echo hello > hello.txt"))
    return Step(action=Submit())


# ---- deadlines, by trio's clock: nothing of these waits


async def never(*_: object, **__: object) -> None:
    """Wait for ever."""
    await trio.sleep_forever()


class Stuck:
    """A referee that never comes back."""

    async def take_in(self, task: Task, sandbox: minisandbox.Sandbox, *, alive: bool) -> Submission:
        """Never return."""
        await never()
        raise AssertionError


@contextlib.asynccontextmanager
async def open_never() -> AsyncIterator[minisandbox.Sandbox]:
    """Never open."""
    await never()
    yield cast("minisandbox.Sandbox", None)


def job(name: str = "t", priority: int = 0) -> Job:
    """Return an episode that never gets its sandbox."""
    return Job(
        key=EpisodeKey(task=name, policy="oracle", sample=0),
        task=file_task(name),
        player=ORACLE,
        open=open_never,
        used=trio.lowlevel.checkpoint,
        seed=0,
        group=name,
        task_digest="",
        queued_at=trio.current_time(),
        priority=priority,
    )


async def source_of(jobs: Sequence[Job]) -> AsyncGenerator[Job, None]:
    """Yield these."""
    for each in jobs:
        yield each


def scheduler_of(memory: Memory, budget: Budget, *, most: int = 1, **more: object) -> Scheduler:
    """Return a scheduler whose tries never get a sandbox."""
    memory.tasks |= {name: file_task(name) for name in ("t", "u", "v", "w")}
    return Scheduler(
        court=Court(referee=Stuck(), recorder=memory, budget=budget),
        concurrency=Concurrency(least=1, most=most),
        look=lambda: IDLE,
        retry=Retry(tries=2, backoff_s=1.0),
        **more,  # type: ignore[arg-type]
    )


async def test_a_stuck_episode_is_reclaimed(memory: Memory, autojump_clock: trio.testing.MockClock) -> None:
    """At the end of all that it may take; it is tried again, then masked, and the next one begins."""
    await scheduler_of(memory, Budget(wall_time_s=100.0, verdict_s=50.0)).run(source_of([job(), job("u")]))
    first = memory.episodes[EpisodeKey(task="t", policy="oracle", sample=0)]

    assert (End.INFRASTRUCTURE, ["DeadlineError"] * 2) == (
        first.trajectory.end,
        [each.error for each in first.attempts],
    )
    assert [150.0 + MARGIN_S] * 2 == pytest.approx([each.seconds for each in first.attempts])
    assert 2 == len(memory.episodes)


async def test_stopping_records_nothing_of_what_ran(memory: Memory, autojump_clock: trio.testing.MockClock) -> None:
    """A run that is begun again plays it."""
    scheduler = scheduler_of(memory, Budget())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run, source_of([job(), job("u")]))
        await trio.sleep(1)
        running = scheduler.state.running
        scheduler.stop()

    assert (1, 0, {}) == (running, scheduler.state.running, memory.episodes)
    assert ["stopped"] == [name for name, _, _ in memory.events]


async def test_draining_begins_nothing_more(memory: Memory, autojump_clock: trio.testing.MockClock) -> None:
    """What runs comes to its end and is recorded; what waits is not."""
    scheduler = scheduler_of(memory, Budget(wall_time_s=100.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run, source_of([job(name) for name in "tuvw"]))
        await trio.sleep(1)
        scheduler.drain()

    assert ["t"] == [key.task for key in memory.episodes]
    assert "drained" == memory.events[-1][0]
    assert 0 == scheduler.waiting


async def test_it_runs_more_at_once_while_the_machine_is_idle(
    memory: Memory, autojump_clock: trio.testing.MockClock
) -> None:
    """From the least to the most, step by step, and each step is an event."""
    scheduler = scheduler_of(memory, Budget(wall_time_s=100.0), most=3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run, source_of([job(name) for name in "tuvw"]))
        await trio.sleep(10)
        running = scheduler.state.running
        scheduler.stop()

    assert (3, 3) == (running, scheduler.state.target)
    assert [(1, 2), (2, 3)] == [(data["from"], data["to"]) for name, _, data in memory.events if name == "concurrency"]


async def test_the_source_is_read_no_further_than_needed(
    memory: Memory, autojump_clock: trio.testing.MockClock
) -> None:
    """One runs, two wait, and the next is in hand: of a thousand, four were made."""
    made = []

    async def source() -> AsyncGenerator[Job, None]:
        for at in range(1000):
            made.append(at)
            yield job()

    scheduler = scheduler_of(memory, Budget(), queue_limit=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run, source())
        await trio.sleep(10)
        before = list(made)
        scheduler.stop()

    assert [0, 1, 2, 3] == before


async def test_records_that_cannot_be_kept_stop_the_run(play_all: PlayAll, memory: Memory) -> None:
    """It is no fault of an episode, and never tried again."""

    async def refuse(episode: Episode) -> None:
        raise RecordError("the disk is full")

    memory.finish = refuse  # type: ignore[method-assign]
    with pytest.raises(BaseExceptionGroup) as caught:
        await play_all([file_task()], [ORACLE, NOOP])

    assert isinstance(first_of(caught.value), RecordError)
    assert {} == memory.episodes


async def test_what_is_no_task_is_told_and_the_others_are_played(
    supervisor: minisandbox.Supervisor, referee: LocalReferee, memory: Memory
) -> None:
    """In its place, as an event; a root file system that is gone masks the episodes of its task alone."""
    whole = file_task("gone")
    assignment = msgspec.structs.replace(whole.assignment, environment=Environment(rootfs="no-such-rootfs"))
    gone = msgspec.structs.replace(whole, assignment=assignment)
    left_out: list[LeftOut] = []
    broken = LeftOut(name="bad", why="TaskError: no", is_broken=True)
    plan = Plan(players=[NOOP, ORACLE], concurrency=Concurrency(least=2, most=2), retry=RETRY)
    with trio.fail_after(DEADLINE_S):
        run = Run(plan, supervisor, referee, memory, tell_left_out=left_out.append)
        await run.play(iter([broken, gone, file_task()]))
    rewards = {key.id: episode.reward for key, episode in memory.episodes.items()}

    assert [broken] == left_out
    assert {"gone/noop/0": None, "gone/oracle/0": None, "greet/noop/0": 0.0, "greet/oracle/0": 1.0} == rewards
    assert {End.INFRASTRUCTURE} == {e.trajectory.end for k, e in memory.episodes.items() if k.task == "gone"}
    assert "left_out" in [name for name, _, _ in memory.events]


def test_a_pause_doubles_up_to_its_bound() -> None:
    """And values that cannot be are refused."""
    retry = Retry(tries=9, backoff_s=0.5, backoff_most_s=3.0)

    assert [0.5, 1.0, 2.0, 3.0, 3.0] == [retry.pause_s(failed) for failed in range(1, 6)]
    with pytest.raises(UsageError):
        Retry(tries=0)
