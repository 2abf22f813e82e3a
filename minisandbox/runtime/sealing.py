"""A snapshot that is being made while those who are to start upon it make ready."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import trio

from minisandbox.runtime.snapshot import Layers, Snapshot


class Sealing:
    """The layers of a snapshot that is not there yet. Closes the snapshot at the end of the block."""

    __slots__ = ("_is_done", "_snapshot")

    def __init__(self) -> None:
        self._is_done = trio.Event()
        self._snapshot: Snapshot | None = None

    def done(self, snapshot: Snapshot) -> None:
        """Let those who wait go on."""
        self._snapshot = snapshot
        self._is_done.set()

    async def layers(self) -> Layers:
        """Wait for the layers, which are borrowed."""
        await self._is_done.wait()
        assert self._snapshot is not None
        return self._snapshot.layers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._snapshot is not None:
            await self._snapshot.close()
