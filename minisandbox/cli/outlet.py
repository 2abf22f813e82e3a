"""Passes what a command prints on to a stream of ours, in a thread, so that a slow reader stops no clock.

The command is slowed down like in a pipeline: beyond `BACKLOG_BYTES` the caller waits, and with it the command, whose
pipe then fills up. That wait ends with the wall-time limit and with a signal to us.
"""

from __future__ import annotations

import math
import os
import queue
import select
import threading
import time

from minisandbox.cli.signals import Interruption
from minisandbox.errors import HostError

BACKLOG_BYTES = 4 << 20
"""What may wait for the reader."""


class Outlet:
    """Writes to `fd`, in order and unchanged. Its thread begins with the first data."""

    def __init__(self, fd: int, interruption: Interruption) -> None:
        self._fd = fd
        self._interruption = interruption
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._room_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._queued_bytes = 0  # counted by the caller alone, as what was written is by the thread
        self._written_bytes = 0
        self.stall_until = math.inf
        """When (time.monotonic) the caller must not be kept any longer."""

    def write(self, data: bytes) -> None:
        """Pass data on. Raises BrokenPipeError when the reader is gone, HostError at any other failure."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"outlet-{self._fd}", daemon=True)
            self._thread.start()
        self._queued_bytes += len(data)
        self._chunks.put(data)
        while self._is_full() and (left_s := self.stall_until - time.monotonic()) > 0:
            self._wait(left_s)
        self._check()

    def _check(self) -> None:
        if isinstance(self._error, BrokenPipeError):
            raise self._error
        if self._error is not None:
            raise HostError(f"cannot pass on what the command printed: {self._error.strerror}") from self._error

    def _is_full(self) -> bool:
        waiting = self._queued_bytes - self._written_bytes
        return waiting > BACKLOG_BYTES and self._error is None and self._interruption.number is None

    def _wait(self, seconds: float) -> None:
        """Wait until something was written, a signal came, or the time is up."""
        poll = select.poll()
        poll.register(self._room_fd, select.POLLIN)
        poll.register(self._interruption.wake_fd, select.POLLIN)
        if any(fd == self._room_fd for fd, _ in poll.poll(None if seconds == math.inf else seconds * 1000)):
            os.eventfd_read(self._room_fd)

    def _serve(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            view = memoryview(chunk)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError as error:
                self._error = error
            self._written_bytes += len(chunk)
            os.eventfd_write(self._room_fd, 1)
            if self._error is not None:
                return

    def finish(self) -> None:
        """Wait until all is written, else raise as `write` does. Blocks: call it in a thread."""
        self._chunks.put(None)
        if self._thread is not None:
            self._thread.join()
        self._check()
