"""Snapshots: what sandboxes wrote, sealed as layers that never change again, in memory until they are saved.

A sealed layer is the writable file system of a sandbox that went on with another one. The ids on it are those seen
inside, so that it can lie under a sandbox in any slot. It lives as long as a snapshot or a sandbox needs it, and with
it the memory group that its files are charged to: nobody else is charged for them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import trio

from minisandbox.errors import CgroupError, ClosedError, HostError
from minisandbox.images.rootfs import Rootfs
from minisandbox.images.snapshot_digest import digest_snapshot, opened_layers
from minisandbox.images.snapshot_manifest import StoredSnapshot
from minisandbox.images.snapshot_record import ContentCache
from minisandbox.images.snapshot_store import SnapshotStore
from minisandbox.images.state import StateDir
from minisandbox.kernel.cgroup import KeptMemory

if TYPE_CHECKING:
    from minisandbox.runtime.cleanup import Cleanup
    from minisandbox.runtime.disk import DiskDirectory

T = TypeVar("T")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SealedLayer:
    """One layer in memory. Whoever needs it calls `hold`, and `release` when he does not any more."""

    __slots__ = ("_cleanup", "_directory", "_holders", "_memory", "disk_fd", "fd", "flat", "namespace_fd")

    def __init__(
        self, disk_fd: int, cleanup: Cleanup, directory: DiskDirectory | None = None, *, namespace_fd: int = -1
    ) -> None:
        """Own a mount of the file system, and its directory if it is no tmpfs. It is held once.

        What it is charged to comes by `charge_to`. Raises HostError, and then owns nothing that is open.
        """
        self.namespace_fd = namespace_fd
        """The mount namespace in which it is attached, -1 where that is not needed."""
        self.disk_fd, self._directory, self._cleanup = disk_fd, directory, cleanup
        self._memory: list[KeptMemory] = []
        self._holders = 1
        try:
            self.fd = os.open("u", _DIRECTORY, dir_fd=disk_fd)
        except OSError as error:
            for fd in (disk_fd, namespace_fd):
                if fd >= 0:
                    os.close(fd)
            raise HostError(f"cannot open what a sandbox wrote: {error.strerror}") from error
        """The directory of the layer, -1 once nobody holds it."""
        self.flat: Flat | None = None
        """What can stand for this one and some below it; held by this one."""

    @property
    def in_memory(self) -> bool:
        """Whether it lies in memory, and not in a directory of the state directory."""
        return self._directory is None

    @property
    def memory_bytes(self) -> int:
        """What its files take, or what is cached of them."""
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
            fds = [fd for fd in (self.fd, self.disk_fd, self.namespace_fd) if fd >= 0]
            self.fd = self.disk_fd = self.namespace_fd = -1
            await self._cleanup.free("layer", partial(self._free, fds))
            if self.flat is not None:
                await self.flat.layer.release()

    def _free(self, fds: Iterable[int]) -> None:
        for fd in fds:
            os.close(fd)  # the kernel frees all pages here, 0.2 s for a GiB
        if self._directory is not None:
            self._directory.remove()
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


class Library:
    """The stored snapshots of a state directory, and what is known of files that were read before."""

    def __init__(self, state: StateDir) -> None:
        self.store = SnapshotStore(state)
        self._cache = ContentCache()

    def digest(self, rootfs: Rootfs, layer_fds: Sequence[int]) -> str:
        """Return the digest of a snapshot; blocks."""
        return digest_snapshot(rootfs, layer_fds, self._cache)

    def save(self, name: str | None, rootfs: Rootfs, layer_fds: Sequence[int]) -> StoredSnapshot:
        """Store a snapshot; blocks."""
        return self.store.save(rootfs, layer_fds, name, self._cache)


class Snapshot:
    """What a sandbox held at one moment: a root file system and the layers upon it. `close` it when it is not needed.

    `Sandbox.snapshot` makes it; use it as an async context manager. It is gone with its supervisor.
    """

    def __init__(
        self, rootfs: Rootfs, layers: Layers, owner: object, library: Library, stored: StoredSnapshot | None = None
    ) -> None:
        """Take over one hold on each layer. `stored` is what the rootfs was made of, if it was a snapshot."""
        self.rootfs = rootfs
        self.stored = stored
        self.owner = owner
        self._library = library
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

    async def digest(self) -> str:
        """Return the digest of what it shows over its root file system: equal trees have equal digests.

        Nothing is read before it is asked for, nor again what did not change since another was asked.
        """
        return await self._read(self._library.digest)

    async def save(self, name: str | None = None) -> StoredSnapshot:
        """Write it to the state directory, from which it can be opened by name later on; without one, by its digest.

        Layers that are there already are not written again. Raises UsageError when the name belongs to another
        snapshot, StoreFullError, StateError, HostError; then what is stored stays as it is. Cancelled: it is saved all
        the same.
        """
        return await self._read(partial(self._library.save, name))

    async def _read(self, read: Callable[[Rootfs, Sequence[int]], T]) -> T:
        layers = tuple(layer.hold() for layer in self.layers)
        fds = [layer.fd for layer in layers]
        try:
            return await trio.to_thread.run_sync(self._over_base, read, fds)
        finally:
            for layer in layers:
                await layer.release()

    def _over_base(self, read: Callable[[Rootfs, Sequence[int]], T], fds: list[int]) -> T:
        if self.stored is None:
            return read(self.rootfs, fds)
        with opened_layers(layer.path for layer in self.stored.layers) as stored_fds:
            return read(self.stored.rootfs, [*fds, *stored_fds])

    async def close(self) -> None:
        """Let go of it: its memory is freed as soon as no sandbox runs on it. Harmless when called twice."""
        layers, self._layers = self._layers, None
        for layer in layers or ():
            await layer.release()
