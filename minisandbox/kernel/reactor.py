"""One epoll instance for all descriptors of a supervisor: sockets of inits, pipes of commands, events of cgroups.

trio waits for one descriptor (epoll's own); what is ready is handled by plain callbacks in one go. A task per
descriptor would cost ten times as much, and ten thousand of them memory. Callbacks must be short, must not raise and
must not block.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
PRIORITY = select.EPOLLPRI

Callback = Callable[[], None]


class Reactor:
    """Maps descriptors to callbacks. `run` serves until cancelled."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}

    def register(self, fd: int, callback: Callback, events: int = READABLE) -> None:
        """Call `callback` whenever fd is ready for events, until `unregister`."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, events)

    def unregister(self, fd: int) -> None:
        """Forget fd. Call it before closing fd; a second call does nothing."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Serve callbacks until cancelled."""
        fileno = self._epoll.fileno()
        while True:
            await trio.lowlevel.wait_readable(fileno)
            for fd, _events in self._epoll.poll(0):
                callback = self._callbacks.get(fd)
                if callback is not None:  # a callback before it may have unregistered it
                    callback()

    def close(self) -> None:
        """Close the epoll instance."""
        self._epoll.close()
