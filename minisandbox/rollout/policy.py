"""What a policy is: something that acts on observations; and how one is made for each episode. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from minisandbox.errors import UsageError
from minisandbox.rollout.spec import Budget, Observation, Step, Turn
from minisandbox.tasks.task import Task

STEP_MAX_BYTES = 16 << 20
"""How much one answer may hold, all told."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is told of an episode before the first observation: nothing that it is judged by."""

    episode: str
    task: str
    instruction: str
    directory: str
    budget: Budget
    seed: int
    history: tuple[Turn, ...] = ()
    """The turns before, where the episode was branched from another."""


class Policy(Protocol):
    """Plays one episode."""

    async def act(self, observation: Observation) -> Step:
        """Return what to do next.

        Raising a SandboxError says that whatever it asks is out of order, so that the episode is tried again where that
        is retryable; raising anything else ends the episode as the policy's fault. Cancelled: no answer is wanted.
        """
        ...


class PolicyFaultError(Exception):
    """The policy did not give an action: the episode ends there, with `End.POLICY`."""


@dataclass(frozen=True, slots=True)
class Player:
    """A policy by its name in the records, and how it is opened for an episode."""

    name: str
    open: Callable[[Told], AbstractAsyncContextManager[Policy]]


@dataclass(frozen=True, slots=True)
class TrustedPlayer:
    """A policy that is given the whole task, its solution and tests included: to try the loop, never to learn from."""

    name: str
    open: Callable[[Told, Task], AbstractAsyncContextManager[Policy]]


def opened(player: Player | TrustedPlayer, told: Told, task: Task) -> AbstractAsyncContextManager[Policy]:
    """Return a policy for an episode, to be entered."""
    return player.open(told, task) if isinstance(player, TrustedPlayer) else player.open(told)


def checked_step(answer: Any) -> Step:
    """Return an answer that is a step, whatever it is. Raises PolicyFaultError for what is none."""
    if not isinstance(answer, Step):
        raise PolicyFaultError(f"the policy answered {type(answer).__name__}, where a Step is due")
    try:
        encoded = msgspec.json.encode(answer)
        if len(encoded) > STEP_MAX_BYTES:
            raise PolicyFaultError(f"the policy answered {len(encoded)} bytes; {STEP_MAX_BYTES} are allowed")
        step = _STEPS.decode(encoded)
    except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError, UsageError) as error:
        raise PolicyFaultError(f"the policy answered no step: {str(error)[:300]}") from error
    wall_time_s = getattr(step.action, "wall_time_s", None)
    if step.tokens < 0 or (wall_time_s is not None and not wall_time_s > 0):
        raise PolicyFaultError("the policy answered a step with a number that is not positive")
    return step


_STEPS = msgspec.json.Decoder(Step)
