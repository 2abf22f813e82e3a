"""Frames that a process in a cell writes to its standard output, one after the other."""

from __future__ import annotations

from minisandbox.judge.frames import Value, decode, frame_size
from minisandbox.runtime.process import Process

_CHUNK_BYTES = 1 << 16


class Inbox:
    """Reads the frames of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether nothing came beyond what was taken."""
        return not self._buffer

    async def next(self) -> Value:
        """Return the next value. Raises FrameError for what is none, EOFError at the end."""
        return decode(await self._exactly(frame_size(await self._exactly(4))))

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            chunk = await self._process.stdout.receive_some(_CHUNK_BYTES)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
