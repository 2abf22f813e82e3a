"""Snapshots: what sandboxes wrote, sealed as layers that never change again, in memory until they are saved.

A sealed layer is the writable file system of a sandbox that went on with another one. The ids on it are those seen
inside, so that it can lie under a sandbox in any slot. It lives as long as a snapshot or a sandbox needs it, and with
it the memory group that its files are charged to: nobody else is charged for them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import trio

from minisandbox.errors import CgroupError, ClosedError
from minisandbox.images.rootfs import Rootfs
from minisandbox.kernel.cgroup import KeptMemory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SealedLayer:
    """One layer in memory. Whoever needs it calls `hold`, and `release` when he does not any more."""

    __slots__ = ("_disk_fd", "_holders", "_memory", "fd", "flat")

    def __init__(self, disk_fd: int, memory: KeptMemory | None) -> None:
        """Own a mount of the file system, and the memory group that it is charged to. It is held once."""
        self._disk_fd = disk_fd
        self._memory = [] if memory is None else [memory]
        self._holders = 1
        self.fd = os.open("u", _DIRECTORY, dir_fd=disk_fd)
        """The directory of the layer, -1 once nobody holds it."""
        self.flat: Flat | None = None
        """What can stand for this one and some below it; held by this one."""

    @property
    def memory_bytes(self) -> int:
        """What its files take."""
        return sum(memory.held_bytes() for memory in self._memory)

    def charge_to(self, memory: KeptMemory) -> bool:
        """Take over a group that pages of it are charged to; return False when it is gone already."""
        if self.fd >= 0:
            self._memory.append(memory)
        return self.fd >= 0

    def hold(self) -> SealedLayer:
        """Keep it until `release`."""
        self._holders += 1
        return self

    async def release(self) -> None:
        """Give it back. The last one who does frees its memory."""
        self._holders -= 1
        if self._holders == 0:
            fds, self.fd, self._disk_fd = (self.fd, self._disk_fd), -1, -1
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._free, fds)
            if self.flat is not None:
                await self.flat.layer.release()

    def _free(self, fds: Iterable[int]) -> None:
        for fd in fds:
            os.close(fd)  # the kernel frees all pages here, 0.2 s for a GiB
        for memory in self._memory:
            with contextlib.suppress(CgroupError):  # what stays goes with the tree of the instance
                memory.remove()


Layers = tuple[SealedLayer, ...]
"""A chain, top first."""


@dataclass(frozen=True, slots=True)
class Flat:
    """One layer that shows the same as several, which lie just so upon each other."""

    layer: SealedLayer
    parts: Layers


def shortened(layers: Layers) -> Layers:
    """Return a chain that shows the same with the fewest layers."""
    at = 0
    while at < len(layers):
        flat = layers[at].flat
        if flat is not None and layers[at : at + len(flat.parts)] == flat.parts:
            layers = (*layers[:at], flat.layer, *layers[at + len(flat.parts) :])
        else:
            at += 1
    return layers


class Snapshot:
    """What a sandbox held at one moment: a root file system and the layers upon it. `close` it when it is not needed.

    `Sandbox.snapshot` makes it; use it as an async context manager. It is gone with its supervisor.
    """

    def __init__(self, rootfs: Rootfs, layers: Layers, owner: object) -> None:
        """Take over one hold on each layer."""
        self.rootfs = rootfs
        self.owner = owner
        self._layers: Layers | None = layers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        """False once it was closed."""
        return self._layers is not None

    @property
    def layers(self) -> Layers:
        """Its layers, top first. Raises ClosedError when it was closed."""
        if self._layers is None or any(layer.fd < 0 for layer in self._layers):
            raise ClosedError("this snapshot is closed; take another")
        return shortened(self._layers)

    @property
    def memory_bytes(self) -> int:
        """The memory that its files take, those that it shares with other snapshots included."""
        _ = self.layers
        return sum(layer.memory_bytes for layer in self._layers or ())

    async def close(self) -> None:
        """Let go of it: its memory is freed as soon as no sandbox runs on it. Harmless when called twice."""
        layers, self._layers = self._layers, None
        for layer in layers or ():
            await layer.release()
