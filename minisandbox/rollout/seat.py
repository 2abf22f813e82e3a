"""Where a policy sits: a task of its own, so that whatever it raises, and however long it takes, stays there.

    episode                      seat
      ask(observation)  ------>  act(observation)
      Step, or a fault  <------  answer, or how it failed

The task is none of a nursery: a policy that does not let itself be cancelled is left behind, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import trio

from minisandbox.errors import SandboxError, only_of
from minisandbox.rollout.policy import Policy, PolicyFaultError, checked_step
from minisandbox.rollout.spec import Observation, Step

CLOSE_S = 5.0
"""How long a policy may take to close, and once more when it is cancelled then."""


class Seat:
    """Hosts one policy."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Policy]]) -> None:
        self._make = make
        self._ask, self._asked = trio.open_memory_channel[Observation](0)
        self._answer, self._answered = trio.open_memory_channel[Step](0)
        self._fault: Exception = PolicyFaultError("the policy ended before it was asked")
        self._is_thinking = False
        self.scope = trio.CancelScope()
        self.left = trio.Event()

    async def ask(self, observation: Observation, within_s: float | None) -> Step:
        """Return the policy's answer.

        Raises PolicyFaultError when there is none in time or it is none, TimeoutError aside; SandboxError where the
        policy says that what it needs is out of order.
        """
        with trio.move_on_after(math.inf if within_s is None else within_s):
            try:
                await self._ask.send(observation)
                return await self._answered.receive()
            except (trio.BrokenResourceError, trio.EndOfChannel):
                raise self._fault from None
        raise PolicyFaultError(f"the policy gave no answer within {within_s:g} s")

    def leave(self) -> None:
        """Tell the policy that the episode is over; one that still thinks is cancelled: nobody wants its answer."""
        self._ask.close()
        if self._is_thinking:
            self.scope.cancel()

    async def serve(self) -> None:
        """Open the policy and let it answer until the episode is over. Never raises but Cancelled."""
        try:
            with self.scope:
                try:
                    async with self._make() as policy:
                        async for observation in self._asked:
                            self._is_thinking = True
                            step = checked_step(await policy.act(observation))
                            self._is_thinking = False
                            await self._answer.send(step)
                except BaseException as error:  # noqa: BLE001 - a policy may raise anything, SystemExit too
                    await trio.lowlevel.checkpoint_if_cancelled()
                    self._fault = _fault_of(error)
        finally:
            self._asked.close()
            self._answer.close()
            self.left.set()


@contextlib.asynccontextmanager
async def seated(make: Callable[[], AbstractAsyncContextManager[Policy]]) -> AsyncIterator[Seat]:
    """Give a policy a seat for the block. At its end it is closed, and cancelled if that takes long."""
    seat = Seat(make)
    trio.lowlevel.spawn_system_task(seat.serve)
    try:
        yield seat
    finally:
        seat.leave()
        with trio.CancelScope(shield=True):
            for _ in range(2):
                with trio.move_on_after(CLOSE_S):
                    await seat.left.wait()
                    break
                seat.scope.cancel()


def _fault_of(error: BaseException) -> Exception:
    error = only_of(error)
    if isinstance(error, SandboxError | PolicyFaultError):
        return error
    return PolicyFaultError(f"the policy raised {type(error).__name__}: {str(error)[:500]}")
