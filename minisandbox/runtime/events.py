"""The event log: each event of a supervisor's sandboxes as one JSON line in a file, or passed to a function.

A write never holds the loop up and never fails anything: lines wait in memory up to a bound, a thread writes them, and
what could not be written is counted (`minisandbox_lost_events_total`).
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import trio

from minisandbox.errors import UsageError
from minisandbox.runtime.background import background
from minisandbox.runtime.telemetry import Event

BACKLOG_LINES = 16384
"""Lines that may wait for a slow disk; a line is some 200 bytes."""

FLUSH_S = 2.0
"""How long the end of a supervisor waits for the last lines."""

EventReceiver = Callable[[Event], object]


class EventLog:
    """Writes to `fd`, which it borrows. `serve` must run beside it."""

    def __init__(self, fd: int, on_lost: Callable[[int], None]) -> None:
        self._fd = fd
        self._on_lost = on_lost
        self._lines: deque[bytes] = deque()
        self._added = trio.Event()
        self._written = trio.Event()
        self._torn = False
        """Whether the last line was written in part, for want of space."""
        self.writing = False

    def add(self, event: Event) -> None:
        """Take an event, or count it as lost when too many wait."""
        if len(self._lines) >= BACKLOG_LINES:
            self._on_lost(1)
            return
        self._lines.append(msgspec.json.encode(event, enc_hook=str) + b"\n")
        self._added.set()

    async def serve(self) -> None:
        """Write what is added, until cancelled."""
        while True:
            await self._added.wait()
            self._added = trio.Event()
            lines = list(self._lines)
            self._lines.clear()
            self.writing = True
            try:
                lost = await trio.to_thread.run_sync(self._write, lines, abandon_on_cancel=True)
            except OSError:
                lost = len(lines)
            if lost:
                self._on_lost(lost)
            self.writing = False
            self._written.set()
            self._written = trio.Event()

    async def wait_written(self) -> None:
        """Wait until nothing waits to be written."""
        while self._lines or self.writing:
            await self._written.wait()

    def _write(self, lines: list[bytes]) -> int:
        """Write lines at one go, after the end of one that was torn, and return how many are not whole in the file."""
        data = (b"\n" if self._torn else b"") + b"".join(lines)
        written = os.write(self._fd, data)
        self._torn = written < len(data)
        return data[written:].count(b"\n")


@contextlib.asynccontextmanager
async def opened_events(
    events: Path | EventReceiver | None, on_lost: Callable[[int], None]
) -> AsyncIterator[EventReceiver | None]:
    """Open what takes events, for the block. Raises UsageError when the file cannot be opened for appending."""
    if not isinstance(events, Path):
        yield events
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(events, flags, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write the event log {events}: {error.strerror}; choose another path") from error
    log = EventLog(fd, on_lost)
    try:
        async with background(log.serve):
            try:
                yield log.add
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(FLUSH_S):
                    await log.wait_written()
    finally:
        if not log.writing:  # else a thread hangs in it, and the number must not become another file's
            os.close(fd)
