"""How what a sandbox wrote becomes a layer, while those who are to start upon it make ready."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import trio

from minisandbox.kernel.disks import seal_disk
from minisandbox.kernel.launcher import Launcher
from minisandbox.runtime.snapshot import Layers, SealedLayer, Snapshot

if TYPE_CHECKING:
    from minisandbox.runtime.cleanup import Cleanup
    from minisandbox.runtime.sandbox import Sandbox


class Sealer:
    """Seals disks of quiet sandboxes, by one launcher."""

    def __init__(self, launcher: Launcher, cleanup: Cleanup) -> None:
        self._launcher, self._cleanup = launcher, cleanup
        self._is_whole_before = False
        """Whether a layer needs nothing that comes with the seal: known from the first one on."""

    async def seal(self, sandbox: Sandbox, early: Callable[[SealedLayer], None]) -> SealedLayer:
        """Return what a sandbox wrote as a layer that nobody can change any more, held once; it has no account yet.

        `early` may see it before, and always does. Raises BusyError, HostError.
        """
        if sandbox.directory is not None:
            await sandbox.wait_quiet()
            layer = SealedLayer(sandbox.directory.open(), self._cleanup, sandbox.directory)
            sandbox.directory = None  # nobody is left who could write there
            early(layer)
            return layer
        layer = SealedLayer(await sandbox.open_disk(quiet=True), self._cleanup)
        try:
            await self._seal_disk(sandbox, layer, early)
        except BaseException:
            with trio.CancelScope(shield=True):
                await layer.release()
            raise
        return layer

    async def _seal_disk(self, sandbox: Sandbox, layer: SealedLayer, early: Callable[[SealedLayer], None]) -> None:
        is_early = self._is_whole_before
        layer.namespace_fd = await seal_disk(
            self._launcher,
            sandbox.slot.number,
            sandbox.number,
            layer.disk_fd,
            lambda: early(layer) if is_early else None,
        )
        self._is_whole_before = layer.namespace_fd < 0
        if not is_early:
            early(layer)


class Sealing:
    """The layers of a snapshot that is being made. Closes the snapshot at the end of the block."""

    __slots__ = ("_are_found", "_layers", "_snapshot")

    def __init__(self) -> None:
        self._are_found = trio.Event()
        self._layers: Layers = ()
        self._snapshot: Snapshot | None = None

    def found(self, layers: Layers) -> None:
        """Let those who wait go on; borrowed."""
        self._layers = layers
        self._are_found.set()

    def done(self, snapshot: Snapshot) -> None:
        """Take over the snapshot."""
        self._snapshot = snapshot

    async def layers(self) -> Layers:
        """Wait for the layers, which are borrowed."""
        await self._are_found.wait()
        return self._layers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._snapshot is not None:
            await self._snapshot.close()
