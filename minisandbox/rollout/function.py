"""Policies that are Python: a function of an observation, or a class that is made for each episode; async or not."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, get_args

import trio

from minisandbox.errors import UsageError
from minisandbox.rollout.policy import Player, Policy, Told
from minisandbox.rollout.spec import Action, Observation, Step
from minisandbox.rollout.wire import step_of

_ACTIONS = get_args(Action)
_THREADS = trio.CapacityLimiter(math.inf)
"""One that hangs is left behind, and must not keep others from theirs."""


class Called:
    """Asks a function: in a thread of its own unless it is async, so that it may block."""

    def __init__(self, function: Callable[[Observation], Any]) -> None:
        self._function = function

    async def act(self, observation: Observation) -> Step:
        """Return what the function says: a Step, an action alone, or the same as plain data."""
        call = partial(self._function, observation)
        if inspect.iscoroutinefunction(self._function):
            answer = await call()
        else:
            answer = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_THREADS)
        if isinstance(answer, _ACTIONS):
            return Step(action=answer)
        return step_of(answer) if isinstance(answer, Mapping) else answer  # what else it is, the seat finds out


def function_player(name: str, target: Callable[..., Any]) -> Player:
    """Return the policy that a function of an observation is, or a class that is called with `Told` and has `act`."""

    @contextlib.asynccontextmanager
    async def open_policy(told: Told) -> AsyncIterator[Policy]:
        if inspect.isclass(target):
            made: Any = await trio.to_thread.run_sync(target, told, abandon_on_cancel=True, limiter=_THREADS)
            yield Called(made.act)
        else:
            yield Called(target)

    return Player(name, open_policy)


def find_function(text: str) -> Callable[..., Any]:
    """Return what MODULE:NAME means. Raises UsageError when it cannot be imported, or is nothing that can be called."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"{text!r} is no MODULE:FUNCTION")
    try:
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except Exception as error:  # whatever importing raises
        raise UsageError(f"the policy {text} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(target):
        raise UsageError(f"the policy {text} is nothing that can be called")
    found: Callable[..., Any] = target
    return found
