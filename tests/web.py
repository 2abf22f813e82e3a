"""Servers on the host's loopback for tests of the network: one that answers HTTP, one that sends back what it gets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

Handler = Callable[[trio.SocketStream], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Serve connections to a port of the host for the block, and return the port."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host=host)

        async def serve(stream: trio.SocketStream) -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                async with stream:
                    await handler(stream)

        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def answer_http(stream: trio.SocketStream) -> None:
    """Answer one HTTP request with what was asked: its head and its body, after "you said:" and a line end."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += (chunk := await stream.receive_some(4096)) or b"\r\n\r\n"
        if not chunk:
            return
    head, _, body = received.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    while len(body) < int(fields.get(b"content-length", b"0")):
        body += await stream.receive_some(4096)
    content = b"you said:\n" + head + b"\r\n\r\n" + body
    await stream.send_all(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(content) + content
    )


async def echo(stream: trio.SocketStream) -> None:
    """Send back what comes, and end when it ends."""
    async for chunk in stream:
        await stream.send_all(chunk)


def closed_port() -> int:
    """Return a port of the host's loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
