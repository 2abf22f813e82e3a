"""A pod: a launcher in a user namespace of its own, for the sandboxes of one template and their warm process.

Owns the launcher's process, one range of host ids, which all of them share, and their slots. See launcher/pod.c.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minisandbox.binds import Bind
from minisandbox.kernel.launcher import Launcher
from minisandbox.kernel.pod import PodSpec
from minisandbox.runtime.background import background
from minisandbox.runtime.slots import SlotPool

if TYPE_CHECKING:
    from minisandbox.runtime.template import Template

SpawnLauncher = Callable[..., Awaitable[Launcher]]
"""From a number of `slots`, and the spec of a `pod`, to a launcher."""


@dataclass(slots=True)
class Place:
    """Where sandboxes are started: a launcher and its slots, perhaps in the pod of a template."""

    launcher: Launcher
    slots: SlotPool
    template: Template | None = None


@contextlib.asynccontextmanager
async def open_pod(
    host: SlotPool,
    spawn: SpawnLauncher,
    layer_fds: Sequence[int],
    binds: Sequence[tuple[Bind, int]],
    sandboxes: int,
) -> AsyncIterator[Place]:
    """Open a pod for the block, for at most so many sandboxes at once. Its end is the end of all that is in it."""
    async with contextlib.AsyncExitStack() as stack:
        ids = stack.enter_context(host.lend_ids())
        slots = sandboxes + 1  # the warm process has one
        launcher = await spawn(slots=slots, pod=PodSpec(ids.pod_base, tuple(layer_fds), tuple(binds)))
        pool = host.nested(launcher, ids, slots)
        stack.callback(pool.remove)
        stack.push_async_callback(launcher.aclose)
        await stack.enter_async_context(background(pool.serve))
        yield Place(launcher, pool)
