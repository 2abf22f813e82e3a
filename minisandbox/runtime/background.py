"""Tasks that serve for the length of a block, without a nursery around the block.

A nursery would wrap whatever the user's block raises into an exception group. These tasks are ours, run until they are
cancelled, and must not raise: a crash of one is a bug, and trio reports it as such (TrioInternalError).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import trio


@contextlib.asynccontextmanager
async def background(serve: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `serve` beside the block; at its end cancel it and wait until it is gone."""
    scope = trio.CancelScope()
    ended = trio.Event()

    async def run() -> None:
        try:
            with scope:
                await serve()
        finally:
            ended.set()  # or the block would wait for a crashed one, and hide the crash

    trio.lowlevel.spawn_system_task(run)
    try:
        yield
    finally:
        scope.cancel()
        with trio.CancelScope(shield=True):
            await ended.wait()
