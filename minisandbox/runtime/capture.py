"""The pipes of a command: what it writes is drained, counted and kept in part; what it reads is fed.

Owns our ends of the pipes. All methods but the constructors are called by the reactor: they never block.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import trio

from minisandbox.kernel.reactor import WRITABLE, Reactor

_CHUNK_BYTES = 65536
_READS_AT_ONCE = 16
"""Bound of one turn, so that a flood does not starve the others."""


class Capture:
    """Reads one stream to its end, keeps the first and the last half of `kept_bytes`, and counts all.

    `on_data` sees each chunk as it comes, and may return an event until which nothing more is read; `on_change` is
    called at the end of the stream and when `limit_bytes` is passed.
    """

    def __init__(
        self,
        reactor: Reactor,
        fd: int,
        *,
        kept_bytes: int,
        limit_bytes: int | None,
        on_data: Callable[[bytes], object] | None,
        on_change: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._fd = fd
        self._head_bytes = (kept_bytes + 1) // 2
        self._tail_bytes = kept_bytes - self._head_bytes
        self._limit = limit_bytes
        self._on_data = on_data
        self._on_change = on_change
        self._head = bytearray()
        self._tail = bytearray()
        self.paused = False
        """Whether the one who watches the stream asked for a pause."""
        self.total_bytes = 0
        self.error: Exception | None = None
        """What `on_data` raised; it is not called again then."""
        os.set_blocking(fd, False)
        reactor.register(fd, self.drain)

    @property
    def ended(self) -> bool:
        """True once the stream was read to its end, or closed."""
        return self._fd < 0

    @property
    def over_limit(self) -> bool:
        """True when more than the limit was written."""
        return self._limit is not None and self.total_bytes > self._limit

    @property
    def truncated(self) -> bool:
        """True when `kept` is not all."""
        return self.total_bytes > self._head_bytes + self._tail_bytes

    def adjust(self, kept_bytes: int, limit_bytes: int | None, on_data: Callable[[bytes], object] | None) -> None:
        """Change what was given at the start, while nothing was read yet."""
        self._head_bytes = (kept_bytes + 1) // 2
        self._tail_bytes = kept_bytes - self._head_bytes
        self._limit, self._on_data = limit_bytes, on_data

    def drain(self) -> None:
        """Read what is there."""
        for _ in range(_READS_AT_ONCE):
            if self._fd < 0 or self.paused:
                return
            try:
                data = os.read(self._fd, _CHUNK_BYTES)
            except BlockingIOError:
                return
            except OSError:  # EIO: the other side of a terminal is gone
                data = b""
            if not data:
                self.close()
                self._on_change()
                return
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self.total_bytes += len(data)
        if self._on_data is not None:
            self._show(self._on_data, data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_bytes + _CHUNK_BYTES:
            del self._tail[: len(self._tail) - self._tail_bytes]
        if self.over_limit:
            self._on_change()

    def _show(self, on_data: Callable[[bytes], object], data: bytes) -> None:
        try:
            answer = on_data(data)
            if isinstance(answer, trio.Event):
                self._pause(answer)
        except Exception as error:  # noqa: BLE001 - the caller's own code: `run` hands to the caller what it raises
            self.error, self._on_data = error, None
            self._on_change()

    def _pause(self, until: trio.Event) -> None:
        self._reactor.unregister(self._fd)
        self.paused = True

        async def resume() -> None:
            await until.wait()
            self.paused = False
            if self._fd >= 0:
                self._reactor.register(self._fd, self.drain)
            self._on_change()

        trio.lowlevel.spawn_system_task(resume)

    def kept(self) -> bytes:
        """Return all that was written, or its beginning and end with a line between that says how much is missing."""
        tail = self._tail[max(0, len(self._tail) - self._tail_bytes) :]
        missing = self.total_bytes - len(self._head) - len(tail)
        if missing <= 0:
            return bytes(self._head + tail)
        return bytes(self._head) + b"\n[minisandbox: %d bytes omitted]\n" % missing + bytes(tail)

    def close(self) -> None:
        """Stop reading. A second call does nothing."""
        if self._fd >= 0:
            self._reactor.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1


class Feed:
    """Writes `data` into a pipe as fast as the command reads it, then closes it."""

    def __init__(self, reactor: Reactor, fd: int, data: bytes) -> None:
        self._reactor = reactor
        self._fd = fd
        self._left = memoryview(data)
        os.set_blocking(fd, False)
        reactor.register(fd, self._write, WRITABLE)
        self._write()

    def _write(self) -> None:
        try:
            while self._left:
                self._left = self._left[os.write(self._fd, self._left) :]
        except BlockingIOError:
            return
        except OSError:  # EPIPE: nobody will read the rest
            pass
        self.close()

    def close(self) -> None:
        """Stop writing. A second call does nothing."""
        if self._fd >= 0:
            self._reactor.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1
