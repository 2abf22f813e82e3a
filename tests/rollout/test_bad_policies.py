"""A policy that raises, hangs, says nonsense or floods: its own episode ends so, and the others do not notice."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
import trio.testing

from minisandbox.errors import BrokenError, EndpointError, UsageError
from minisandbox.rollout.builtin import ORACLE
from minisandbox.rollout.policy import STEP_MAX_BYTES, Player, Policy, PolicyFaultError, Told, checked_step
from minisandbox.rollout.seat import seated
from minisandbox.rollout.spec import Budget, End, Observation, Run, Step, Submit, Write
from tests.rollout.conftest import PlayAll
from tests.rollout.players import DEADLINE_S, JUDGING, Acting, acting_player, file_task

pytestmark = JUDGING

OBSERVATION = Observation(episode="e", turn=0, instruction="i", directory="/d")


def raising(error: BaseException) -> Callable[[Observation], Any]:
    """Return a policy that raises."""

    async def act(observation: Observation) -> Any:
        raise error

    return act


def answering(answer: object) -> Callable[[Observation], Any]:
    """Return a policy that answers this."""

    async def act(observation: Observation) -> Any:
        return answer

    return act


async def hanging(observation: Observation) -> Any:
    """Never answers."""
    await trio.sleep_forever()


async def deaf(observation: Observation) -> Any:
    """Never answers, and does not end when it is cancelled once."""
    try:
        await trio.sleep_forever()
    finally:
        raise ValueError("and raises then")


BAD: dict[str, tuple[Callable[[Observation], Any], str]] = {
    "raises": (raising(ZeroDivisionError("of mine")), "ZeroDivisionError: of mine"),
    "exits": (raising(SystemExit(3)), "SystemExit: 3"),
    "raises-a-group": (raising(ExceptionGroup("g", [ValueError("inner")])), "ValueError: inner"),
    "raises-cancelled-like": (raising(BaseException("odd")), "BaseException: odd"),
    "hangs": (hanging, "no answer within 0.5 s"),
    "hangs-deaf": (deaf, "no answer within 0.5 s"),
    "says-nothing": (answering(None), "answered NoneType"),
    "says-a-text": (answering("ls"), "answered str"),
    "says-no-action": (answering(Step(action="ls")), "no step"),  # type: ignore[arg-type]
    "says-a-wrong-type": (answering(Step(action=Run(command=7))), "no step"),  # type: ignore[arg-type]
    "says-no-text": (answering(Step(action=Run(command="\ud800"))), "no step"),
    "says-no-json": (answering(Step(action=Submit(), data={"x": object()})), "no step"),
    "counts-down": (answering(Step(action=Submit(), tokens=-1)), "not positive"),
    "goes-back-in-time": (answering(Step(action=Run(command="ls", wall_time_s=-1.0))), "not positive"),
    "floods": (answering(Step(action=Write(path="x", content=bytes(STEP_MAX_BYTES)))), "bytes"),
}


@pytest.mark.parametrize("name", BAD)
async def test_its_episode_ends_as_the_policys_fault(play_all: PlayAll, name: str) -> None:
    """What lies there is judged, what it did is said, it is not tried again, and the oracle beside it is rewarded."""
    function, why = BAD[name]
    budget = Budget(think_s=0.5) if name.startswith("hangs") else Budget()
    bad, good = await play_all([file_task()], [acting_player("bad", function), ORACLE], budget=budget)

    assert (End.POLICY, 0.0, ()) == (bad.trajectory.end, bad.reward, bad.attempts)
    assert why in bad.trajectory.why
    assert (End.SUBMITTED, 1.0) == (good.trajectory.end, good.reward)


async def test_what_was_done_before_the_fault_counts(play_all: PlayAll) -> None:
    """The work is judged as it lies there."""

    async def act(observation: Observation) -> Step:
        if observation.turn == 0:
            return Step(action=Write(path="hello.txt", content=b"hello\n"))
        raise ValueError("too late")

    (episode,) = await play_all([file_task()], [acting_player("late", act)])

    assert (End.POLICY, 1.0, 1) == (episode.trajectory.end, episode.reward, len(episode.trajectory.turns))


async def test_a_policy_that_cannot_be_opened_is_its_fault(play_all: PlayAll) -> None:
    """So is one that fails when it is closed, but then all is done."""

    @contextlib.asynccontextmanager
    async def fails_at_once(told: Told) -> AsyncIterator[Policy]:
        if told.seed >= 0:
            raise LookupError("no weights")
        yield Acting(hanging)

    @contextlib.asynccontextmanager
    async def fails_at_last(told: Told) -> AsyncIterator[Policy]:
        yield Acting(answering(Step(action=Submit())))
        raise LookupError("cannot tidy up")

    first, last = await play_all([file_task()], [Player("a", fails_at_once), Player("b", fails_at_last)])

    assert (End.POLICY, "the policy raised LookupError: no weights") == (first.trajectory.end, first.trajectory.why)
    assert (End.SUBMITTED, 0.0) == (last.trajectory.end, last.reward)


async def test_a_policy_whose_backend_is_gone_is_tried_again(play_all: PlayAll) -> None:
    """It says so by an error that is retryable; the second try is a whole one, and the first is recorded."""
    calls = []

    async def act(observation: Observation) -> Step:
        calls.append(observation.turn)
        if len(calls) == 2:
            raise EndpointError("gone for a moment")
        return Step(action=Run(command="true") if observation.turn == 0 else Submit())

    (episode,) = await play_all([file_task()], [acting_player("asks", act)])

    assert [0, 1, 0, 1] == calls
    assert (["EndpointError"], 0.0) == ([each.error for each in episode.attempts], episode.reward)


@pytest.mark.parametrize(("error", "tries"), [(UsageError("refused"), 1), (BrokenError("gone"), 4)])
async def test_a_backend_that_stays_away_masks_the_episode(play_all: PlayAll, error: Exception, tries: int) -> None:
    """Never a 0: it was not the policy's doing."""
    (episode,) = await play_all([file_task()], [acting_player("asks", raising(error))])

    assert (End.INFRASTRUCTURE, None, None) == (episode.trajectory.end, episode.verdict, episode.reward)
    assert tries == len(episode.attempts)


async def test_the_seat_is_left_though_the_policy_stays(autojump_clock: trio.testing.MockClock) -> None:
    """One that does not heed its cancellation does not hold the episode."""
    stuck = trio.Event()

    async def act(observation: Observation) -> Any:
        with trio.CancelScope(shield=True):
            await stuck.wait()

    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Policy]:
        yield Acting(act)

    with trio.fail_after(DEADLINE_S):
        async with seated(make) as seat:
            with pytest.raises(PolicyFaultError, match="no answer"):
                await seat.ask(OBSERVATION, 1.0)
        assert not seat.left.is_set()
        stuck.set()
        await seat.left.wait()


def test_a_step_that_is_one_stays_what_it_is() -> None:
    """Bytes of any value, and what a trainer wants back."""
    step = Step(action=Write(path="x", content=bytes(range(256))), tokens=5, data={"logprob": [-0.5, None, "x"]})

    assert step == checked_step(step)
