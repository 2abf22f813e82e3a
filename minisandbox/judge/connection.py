"""A connection between a trainer and a judge: messages over a Unix socket, and who is at its other end."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

import trio

from minisandbox.errors import BrokenError, DeadlineError
from minisandbox.judge.messages import SIZE_BYTES, Answer, Request, encode_message, size_of

_CREDENTIALS = struct.Struct("iII")
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, by the kernel's word (SO_PEERCRED, unix(7))."""

    pid: int
    uid: int
    gid: int


class Connection:
    """One end of a connection. One task reads, and one writes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    @property
    def peer(self) -> Peer:
        """Who made the other end."""
        content = self._stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return Peer(*_CREDENTIALS.unpack(content))

    async def send(self, message: Request | Answer, *, within_s: float) -> None:
        """Send a message. Raises BrokenError when the other end is gone, DeadlineError when it does not read."""
        with trio.move_on_after(within_s) as scope:
            try:
                await self._stream.send_all(encode_message(message))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise BrokenError("the other end of a judge's socket is gone") from error
        if scope.cancelled_caught:
            raise DeadlineError(f"the other end of a judge's socket has read nothing for {within_s:g} s")

    async def receive(self, most_bytes: int, *, within_s: float) -> bytes:
        """Return the content of a frame. What was read of one is kept when this is cancelled.

        Raises BrokenError at the end, DeadlineError when nothing comes, ProtocolError when it is too large.
        """
        size = size_of(await self._exactly(SIZE_BYTES, within_s), most_bytes)
        content = await self._exactly(SIZE_BYTES + size, within_s)
        del self._buffer[: SIZE_BYTES + size]
        return content[SIZE_BYTES:]

    async def _exactly(self, size: int, within_s: float) -> bytes:
        """Return so many bytes without taking them."""
        while len(self._buffer) < size:
            with trio.move_on_after(within_s) as scope:
                try:
                    chunk = await self._stream.receive_some(_CHUNK_BYTES)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise BrokenError("the other end of a judge's socket is gone") from error
                if not chunk:
                    raise BrokenError("the other end of a judge's socket has closed it")
                self._buffer += chunk
            if scope.cancelled_caught:
                raise DeadlineError(f"the other end of a judge's socket has said nothing for {within_s:g} s")
        return bytes(self._buffer[:size])

    async def aclose(self) -> None:
        """Close this end."""
        await trio.aclose_forcefully(self._stream)
