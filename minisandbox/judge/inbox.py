"""Frames that a process in a cell writes to its standard output, one after the other."""

from __future__ import annotations

import trio

from minisandbox.judge.frames import frame_size
from minisandbox.runtime.process import Process

_CHUNK_BYTES = 1 << 16


class Inbox:
    """Reads the frames of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._buffer = bytearray()
        self.drained = trio.Event()

    async def drain(self) -> None:
        """Read to the end what nobody takes, and set `drained`."""
        while chunk := await self._process.stdout.receive_some(_CHUNK_BYTES):
            self._buffer[:] = chunk
        self.drained.set()

    @property
    def is_over(self) -> bool:
        """Whether more came than was taken."""
        return bool(self._buffer)

    async def next_frame(self) -> bytes:
        """Return the content of the next frame, unread.

        Raises FrameError for one that is too large, EOFError at the end.
        """
        return await self.take(frame_size(await self.take(4)))

    async def take(self, size: int) -> bytes:
        """Return so many bytes. Raises EOFError at the end."""
        while len(self._buffer) < size:
            chunk = await self._process.stdout.receive_some(_CHUNK_BYTES)
            if not chunk:
                self._buffer.clear()  # a part of what was asked for is nothing, and not too much
                raise EOFError
            self._buffer += chunk
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
