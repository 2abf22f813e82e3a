"""Steps of a clean-up that may hang: each has a deadline, and what does not end in time is left alone, and counted.

What such a step still holds, a mount that is not taken apart or a directory that is not removed, goes with the process
or is removed by the next start. Nobody waits for it twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from minisandbox.runtime.telemetry import Telemetry

CLEANUP_DEADLINE_S = 30.0
"""How long one step may take. Freeing the pages of a large snapshot takes 0.2 s for a GiB."""

_THREADS = 32
"""So many steps may hang at once before others have to wait for their turn."""


class Cleanup:
    """The clean-ups of one supervisor."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._threads = trio.CapacityLimiter(_THREADS)

    async def free(self, step: str, work: Callable[[], None]) -> None:
        """Do what blocks in a thread. Shielded."""
        await self.wait(step, lambda: trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads))

    async def wait(self, step: str, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for a step. Shielded."""
        with trio.CancelScope(shield=True), trio.move_on_after(CLEANUP_DEADLINE_S) as scope:
            await work()
        if scope.cancelled_caught:
            self._telemetry.stick(step)
