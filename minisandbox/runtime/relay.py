"""Bytes between two connections, passed on in both directions and counted, and never looked at."""

from __future__ import annotations

from collections.abc import Callable

import trio

from minisandbox.runtime.network_usage import Account

_CHUNK_BYTES = 65536


class Relay:
    """Joins a client with the server that it is connected to."""

    def __init__(
        self, client: trio.SocketStream, server: trio.SocketStream, account: Account, *, idle_s: float
    ) -> None:
        self._client = client
        self._server = server
        self._account = account
        self._idle_s = idle_s
        self._scope = trio.CancelScope()

    async def run(self, to_client: bytes, to_server: bytes, *, tunnel: bool) -> bool:
        """Pass bytes on, these two first, until both sides have ended, and return whether they did.

        They did not when one broke, or when nothing moved for `idle_s`. Without `tunnel` the end of the server's answer
        is the end of both.
        """
        self._note_progress()
        with self._scope:
            await self._client.send_all(to_client)
            await self._server.send_all(to_server)
            self._account.count_sent(len(to_server))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, self._client, self._server, self._account.count_sent)
                await self._pass_on(self._server, self._client, self._account.count_received)
                if not tunnel:
                    nursery.cancel_scope.cancel()
        return not self._scope.cancelled_caught

    async def _pass_on(self, source: trio.SocketStream, sink: trio.SocketStream, count: Callable[[int], None]) -> None:
        try:
            while chunk := await source.receive_some(_CHUNK_BYTES):
                self._note_progress()
                await sink.send_all(chunk)
                count(len(chunk))
            await sink.send_eof()
        except trio.BrokenResourceError:
            self._scope.cancel()

    def _note_progress(self) -> None:
        self._scope.deadline = trio.current_time() + self._idle_s
