"""Signals that ask the command to end: they cancel what runs, so that it closes all that it opened."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import TypeVar

import trio

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal ended the command. Whatever it had opened is closed."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"ended by {signal.Signals(number).name}")


class Interruption:
    """Which signal asked us to end, if one did. `wake_fd` becomes readable then, for those who do not use trio."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @contextlib.contextmanager
    def listening(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Call `cancel` at each of the signals during the block; those that are ignored stay so (nohup(1))."""

        def note(number: int, _frame: FrameType | None) -> None:
            self.number = self.number or number
            os.eventfd_write(self.wake_fd, 1)
            cancel()

        heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = [signal.signal(number, note) for number in heeded]
        try:
            yield
        finally:
            for number, action in zip(heeded, before, strict=True):
                signal.signal(number, action)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.wake_fd)


def run_until_signal(serve: Callable[[Interruption], Awaitable[T]]) -> T:
    """Run an async function to its end. Raises Interrupted when a signal cancelled it before."""
    interruption = Interruption()
    try:
        return trio.run(_guard, serve, interruption)
    finally:
        interruption.close()


async def _guard(serve: Callable[[Interruption], Awaitable[T]], interruption: Interruption) -> T:
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope, interruption.listening(lambda: token.run_sync_soon(scope.cancel)):
        return await serve(interruption)
    raise Interrupted(interruption.number or signal.SIGINT)


@contextlib.contextmanager
def raising_signals() -> Iterator[None]:
    """Raise Interrupted at the first of the signals, in code that is not async."""

    def note(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, note) for number in heeded]
    try:
        yield
    finally:
        for number, action in zip(heeded, before, strict=True):
            signal.signal(number, action)
