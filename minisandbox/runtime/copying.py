"""Layers that are copies: of a sandbox that is frozen for it, or of a chain that has become long.

A process of the launcher copies, in a memory group of its own: what is copied is charged to the layer, not to us.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import trio

from minisandbox.errors import CgroupError, DeadlineError, HostError
from minisandbox.kernel.cgroup import KeptMemory
from minisandbox.kernel.disks import copy_layers
from minisandbox.kernel.launcher import Launcher
from minisandbox.runtime.slots import SlotPool
from minisandbox.runtime.snapshot import Flat, Layers, SealedLayer

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

FLATTEN_AT = 6
"""A chain of so many layers is long. A look-up of a name that is not there asks each: upon four layers, which are the
mean then, it takes twice as long as upon one, upon eight two to four times (docs/benchmarks.md)."""

SMALL_BYTES = 1 << 20
"""A layer of this size is copied again whatever lies above it."""

COPY_DEADLINE_S = 600.0
FREEZE_DEADLINE_S = 10.0
_PAUSE_S = 0.001


class Copies:
    """Makes copies with the launcher of one supervisor."""

    def __init__(self, launcher: Launcher, slots: SlotPool) -> None:
        self._launcher, self._slots = launcher, slots

    async def of_running(self, sandbox: Sandbox) -> SealedLayer:
        """Return a copy of what a sandbox wrote, at one moment: everything in it is frozen meanwhile.

        Raises HostError where that cannot be. It goes on in any case.
        """
        disk_fd = await sandbox.open_disk()
        try:
            upper_fd = os.open("u", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=disk_fd)
            try:
                async with _frozen(sandbox):
                    layer = await self._copy([upper_fd])
            finally:
                os.close(upper_fd)
        finally:
            os.close(disk_fd)
        return layer

    async def flatten(self, layers: Layers) -> None:
        """Make one layer of these, the upper ones of a chain; the caller holds them."""
        flat = Flat(await self._copy([layer.fd for layer in layers]), layers)
        old, layers[0].flat = layers[0].flat, flat
        if old is not None:
            await old.layer.release()

    async def _copy(self, layer_fds: Sequence[int]) -> SealedLayer:
        account = self._slots.open_account()
        try:
            with contextlib.ExitStack() as stack:
                join_fds = [] if account is None else [account.open_join()]
                for fd in join_fds:
                    stack.callback(os.close, fd)
                disk_fd, namespace_fd = await copy_layers(self._launcher, layer_fds, join_fds, COPY_DEADLINE_S)
            layer = SealedLayer(disk_fd, self._slots.cleanup, namespace_fd=namespace_fd)
        except BaseException:
            _remove(account)
            raise
        if account is not None:
            layer.charge_to(account)
        return layer


def _remove(account: KeptMemory | None) -> None:
    if account is not None:
        with contextlib.suppress(CgroupError):  # what stays goes with the tree of the instance
            account.remove()


def worth_flattening(layers: Layers) -> Layers:
    """Return the upper layers of a long chain that shall become one, none when it is short or they are too few.

    A layer is copied again only when those above it have grown to half its size: so all that was ever written is
    copied a few times at most, and the chain stays as long as a logarithm.
    """
    if len(layers) < FLATTEN_AT:
        return ()
    total, count = 0, 0
    for layer in layers:
        size = layer.memory_bytes
        if not layer.in_memory or size > 2 * total + SMALL_BYTES:
            break
        total, count = total + size, count + 1
    return layers[:count] if count >= FLATTEN_AT // 2 else ()


@contextlib.asynccontextmanager
async def _frozen(sandbox: Sandbox) -> AsyncIterator[None]:
    """Freeze all processes of a sandbox for the block."""
    cgroup = sandbox.slot.cgroup
    try:
        cgroup.freeze(1)
        deadline = trio.current_time() + FREEZE_DEADLINE_S
        while not cgroup.is_frozen():
            if trio.current_time() > deadline:
                raise DeadlineError(f"the processes of a sandbox did not stop within {FREEZE_DEADLINE_S:g} s")
            await trio.sleep(_PAUSE_S)
        yield
    finally:
        with contextlib.suppress(CgroupError, HostError):  # it was closed meanwhile, and its group is gone
            cgroup.freeze(0)
