"""Passes what a command prints on to a stream of ours, in a thread, so that a slow reader stops no clock.

The command is slowed down as in a pipeline: beyond `BACKLOG_BYTES` its own pipe is not read, until there is room again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading

import trio

from minisandbox.errors import HostError

BACKLOG_BYTES = 4 << 20
"""What may wait for the reader."""


class Outlet:
    """Writes to `fd`, in order and unchanged. Its thread begins with the first data."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._token = trio.lowlevel.current_trio_token()
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._room: trio.Event | None = None
        self._queued_bytes = 0  # counted by the caller alone, as what was written is by the thread
        self._written_bytes = 0

    def write(self, data: bytes) -> trio.Event | None:
        """Pass data on. When too much waits for the reader, return an event that is set once there is room.

        Raises BrokenPipeError when the reader is gone, HostError at any other failure.
        """
        self._check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"outlet-{self._fd}", daemon=True)
            self._thread.start()
        self._queued_bytes += len(data)
        self._chunks.put(data)
        if self._has_room():
            return None
        room = self._room = trio.Event()
        self._note_room()  # the thread may have written all before it could see the event
        return room

    def _has_room(self) -> bool:
        return self._queued_bytes - self._written_bytes <= BACKLOG_BYTES or self._error is not None

    def _note_room(self) -> None:
        if self._room is not None and self._has_room():
            self._room.set()
            self._room = None

    def _check(self) -> None:
        if isinstance(self._error, BrokenPipeError):
            raise self._error
        if self._error is not None:
            raise HostError(f"cannot pass on what the command printed: {self._error.strerror}") from self._error

    def _serve(self) -> None:
        while self._error is None and (chunk := self._chunks.get()) is not None:
            view = memoryview(chunk)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError as error:
                self._error = error
            self._written_bytes += len(chunk)
            if self._room is not None:
                with contextlib.suppress(trio.RunFinishedError):  # a signal ended the run, and nobody waits
                    self._token.run_sync_soon(self._note_room)

    def finish(self) -> None:
        """Wait until all is written, else raise as `write` does. Blocks: call it in a thread."""
        self._chunks.put(None)
        if self._thread is not None:
            self._thread.join()
        self._check()
