"""Signals that ask the command to end: they cancel what runs, so that it closes all that it opened."""

from __future__ import annotations

import contextlib
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


def run_until_signal(serve: Callable[[], Awaitable[T]]) -> T:
    """Run an async function to its end. Raises Interrupted when one of the signals cancelled it before."""
    return trio.run(_guard, serve)


async def _guard(serve: Callable[[], Awaitable[T]]) -> T:
    token = trio.lowlevel.current_trio_token()
    came: list[int] = []

    def note(number: int) -> None:
        came.append(number)
        token.run_sync_soon(scope.cancel)

    with trio.CancelScope() as scope, _at_signals(note):
        return await serve()
    raise Interrupted(came[0])


@contextlib.contextmanager
def raising_signals() -> Iterator[None]:
    """Raise Interrupted at the first of the signals, in code that is not async."""

    def note(number: int) -> None:
        raise Interrupted(number)

    with _at_signals(note):
        yield


@contextlib.contextmanager
def _at_signals(note: Callable[[int], None]) -> Iterator[None]:
    """Call `note` at each of the signals during the block; those that are ignored stay so (nohup(1))."""

    def receive(number: int, _frame: FrameType | None) -> None:
        note(number)

    heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, receive) for number in heeded]
    try:
        yield
    finally:
        for number, action in zip(heeded, before, strict=True):
            signal.signal(number, action)
