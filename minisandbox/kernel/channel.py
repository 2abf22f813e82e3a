"""A SOCK_SEQPACKET connection to the launcher or to an init: requests out, records in.

Owns one socket. Sending never blocks the event loop for long: a request is one datagram, and a full socket buffer is
waited for.
"""

from __future__ import annotations

import array
import os
import select
import socket

import trio

from minisandbox.errors import BrokenError
from minisandbox.kernel.protocol import REQUEST_INLINE_MAX, Record, Request, decode_record, sealed_memfd

_ONE_FD = socket.CMSG_SPACE(array.array("i").itemsize)


class Channel:
    """Our end of a connection. `what` names the other side in errors."""

    __slots__ = ("_sending", "_socket", "fd", "what")

    def __init__(self, sock: socket.socket, what: str) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._sending = trio.Lock()
        self.fd = sock.fileno()
        self.what = what

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self.fd < 0

    @property
    def hung_up(self) -> bool:
        """Whether the other side is gone by now, as the kernel says it; it may have said something before it went."""
        poll = select.poll()
        poll.register(self.fd, 0)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close our end; init and launcher take that as the order to end."""
        self._socket.close()
        self.fd = -1

    async def send(self, request: Request) -> None:
        """Send one request. Raises BrokenError when the other side is gone. Cancelled: sent whole or not at all."""
        data = request.encode()
        if len(data) <= REQUEST_INLINE_MAX:
            await self._send_datagram(data, request.fds)
            return
        memfd = sealed_memfd("request", data)
        try:
            await self._send_datagram(b"@\0", [memfd, *request.fds])
        finally:
            os.close(memfd)

    def send_now(self, request: Request) -> bool:
        """Send a small request at once, or return False when there is no room. Raises BrokenError as `send` does."""
        return self._try_send(request.encode(), [])

    async def _send_datagram(self, data: bytes, fds: list[int]) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        if self._try_send(data, ancillary):
            return
        async with self._sending:  # one at a time waits for room
            while not self._try_send(data, ancillary):
                await trio.lowlevel.wait_writable(self._socket)

    def _try_send(self, data: bytes, ancillary: list[tuple[int, int, array.array[int]]]) -> bool:
        try:
            self._socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise BrokenError(f"{self.what} is gone: {error.strerror}") from error
        return True

    def _receive(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        try:
            return self._socket.recvmsg(64, _ONE_FD, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it left something of ours unread; what it said before it went comes next
            return self._socket.recvmsg(64, _ONE_FD, socket.MSG_CMSG_CLOEXEC)

    def receive(self) -> tuple[Record, int] | None:
        """Return the next record and the descriptor beside it (the caller's now; -1 if none), None when none waits.

        Raises BrokenError at the end of the connection.
        """
        try:
            datagram, ancillary, _flags, _address = self._receive()
        except BlockingIOError:
            return None
        except OSError as error:
            raise BrokenError(f"{self.what} is gone: {error.strerror}") from error
        if not datagram:
            raise BrokenError(f"{self.what} is gone: it closed its connection")
        fd = -1
        for _level, _kind, data in ancillary:
            fd = array.array("i", data)[0]
        return decode_record(datagram), fd
