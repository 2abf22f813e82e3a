"""The proxy of one sandbox: serves a listening socket in the sandbox's network, and connects to what is allowed.

Theory of operation. The socket was made inside the sandbox's network namespace, which has no way out; we accept from it
and connect in our own. A client says where it wants to go (`proxy_protocol`); its target must be on the allow list; the
name is looked up here, once, and of its addresses only one that passed the check is connected to, so that a name
cannot be checked with one address and used with another. From then on bytes are passed on, counted, and not looked at.

Every wait has a deadline and every queue a bound: `ProxyLimits.connections` clients are served, the next ones wait in
the backlog of the socket. A connection that is cut is reset on both sides: nobody takes what came for all of it.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from dataclasses import dataclass

import trio

from minisandbox.endpoints import Address, AllowList, Target, is_address
from minisandbox.runtime.network_usage import Account, Ledger
from minisandbox.runtime.proxy_protocol import Handshake, Refusal, RefusedError, Wanted
from minisandbox.runtime.relay import Relay
from minisandbox.runtime.uplink import Uplink

_HANDSHAKE_CHUNK_BYTES = 4096
_ADDRESSES_TRIED = 4
_LOOK_UPS_AT_ONCE = 2
_LINGER_S = 1.0
_LINGER_CHUNKS = 64
_PATIENCE_S = 0.1
"""Where the host has no descriptor or memory for another connection, how long until we look again."""

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESET = struct.pack("ii", 1, 0)  # struct linger (socket(7)): close sends RST and drops what was not sent


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """Bounds of one proxy. Times are in seconds."""

    connections: int = 32
    """Clients that are served at once."""
    head_s: float = 10.0
    """For a client to say what it wants."""
    connect_s: float = 10.0
    """For looking a name up and connecting, all its addresses together."""
    idle_s: float = 900.0
    """Without a byte in either direction. A model may think for minutes before it answers."""


DEFAULT_LIMITS = ProxyLimits()


class _Connection:
    """A client, and the server that it is connected to, once it is."""

    __slots__ = ("address", "clean", "client", "ended", "scope", "server", "target")

    def __init__(self, client: trio.SocketStream) -> None:
        self.client = client
        self.server: trio.SocketStream | None = None
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.target: Target | None = None
        self.address: Address | None = None
        self.clean = False
        """Whether both sides have said all that they had to say."""

    def close(self) -> None:
        """Close both sides; one that was cut off is reset."""
        for stream in (self.client, self.server):
            if stream is not None:
                if not self.clean:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                stream.socket.close()
        self.ended.set()


class Proxy:
    """Serves `listening`, which is its own from then on, until `serve` is cancelled."""

    def __init__(
        self,
        listening: socket.socket,
        allow: AllowList,
        *,
        uplink: Uplink,
        ledger: Ledger,
        limits: ProxyLimits = DEFAULT_LIMITS,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._allow = allow
        self._uplink = uplink
        self._ledger = ledger
        self._limits = limits
        self._places = trio.Semaphore(limits.connections)
        self._look_ups = trio.Semaphore(_LOOK_UPS_AT_ONCE)
        self._connections: set[_Connection] = set()

    @property
    def live(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def set_allow(self, allow: AllowList) -> None:
        """Serve another allow list from now on, and cut the connections that it does not allow."""
        self._allow = allow
        cut = [
            connection
            for connection in self._connections
            if connection.target is not None and not self._permits(connection.target, connection.address)
        ]
        for connection in cut:
            connection.scope.cancel()
        for connection in cut:
            await connection.ended.wait()

    async def serve(self) -> None:
        """Serve clients until cancelled; then the listening socket and every connection are closed."""
        with self._listening:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._places.acquire()
                    client = await self._accept()
                    nursery.start_soon(self._serve_client, _Connection(client))

    async def _accept(self) -> trio.SocketStream:
        """Return the next client, with a place of the uplink. While none waits, no place is taken."""
        while True:
            await trio.lowlevel.wait_readable(self._listening)
            await self._uplink.places.acquire()
            try:
                client, _address = self._listening.accept()
            except OSError as error:  # that client went away, or we are short of something (accept(2))
                self._uplink.places.release()
                await trio.sleep(_PATIENCE_S if error.errno in _SHORTAGES else 0)
            else:
                return trio.SocketStream(trio.socket.from_stdlib_socket(client))

    async def _serve_client(self, connection: _Connection) -> None:
        self._connections.add(connection)
        try:
            with connection.scope:
                await self._converse(connection)
        except (OSError, trio.BrokenResourceError):
            pass  # one of the two went away
        finally:
            connection.close()
            self._connections.discard(connection)
            self._uplink.places.release()
            self._places.release()

    async def _converse(self, connection: _Connection) -> None:
        handshake = Handshake()
        try:
            wanted = await self._hear(connection.client, handshake)
            if wanted is None:
                return
            server, account = await self._reach(connection, wanted.target)
        except RefusedError as error:
            self._ledger.refuse(str(error))
            await _say_no(connection, handshake.refuse(error))
            return
        relay = Relay(connection.client, server, account, idle_s=self._limits.idle_s)
        first = (handshake.accept(), wanted.head + handshake.rest)
        connection.clean = await relay.run(*first, tunnel=wanted.tunnel)

    async def _hear(self, client: trio.SocketStream, handshake: Handshake) -> Wanted | None:
        """Return what the client wants; None when it goes away, or takes too long to say it."""
        with trio.move_on_after(self._limits.head_s):
            while handshake.wanted is None:
                received = await client.receive_some(_HANDSHAKE_CHUNK_BYTES)
                if not received:
                    return None
                await client.send_all(handshake.receive(bytes(received)))
            return handshake.wanted
        return None

    async def _reach(self, connection: _Connection, target: Target) -> tuple[trio.SocketStream, Account]:
        """Connect to the target. Raises RefusedError when it is not allowed, or does not answer."""
        if self._allow.find(target) is None:
            raise RefusedError(Refusal.NOT_ALLOWED, f"{target} is not on the allow list")
        connection.target = target  # from here on a change of the list can cut it
        with trio.move_on_after(self._limits.connect_s):
            server = await self._connect(connection, target, await self._find_addresses(target))
            connection.server = server
            endpoint = self._allow.find(target)
            if endpoint is not None:
                account = self._ledger.account(endpoint)
                account.connections += 1
                return server, account
        raise _silent(target)

    async def _connect(self, connection: _Connection, target: Target, addresses: list[Address]) -> trio.SocketStream:
        failure = _silent(target)
        for address in addresses:
            if not self._permits(target, address):  # any more
                continue
            connection.address = address
            with trio.move_on_after(self._limits.connect_s / len(addresses)):
                try:
                    return await self._uplink.connect(address, target.port)
                except OSError as error:
                    refused = isinstance(error, ConnectionRefusedError)
                    why = Refusal.CONNECTION_REFUSED if refused else Refusal.UNREACHABLE
                    failure = RefusedError(why, f"cannot connect to {target}: {error.strerror}")
        raise failure

    async def _find_addresses(self, target: Target) -> list[Address]:
        """Return the addresses of the target that may be connected to, at least one. Raises RefusedError."""
        if is_address(target.host):
            return [ipaddress.ip_address(target.host)]
        try:
            async with self._look_ups:
                found = await self._uplink.look_up(target.host)
        except OSError as error:
            raise RefusedError(Refusal.UNREACHABLE, f"{target.host} cannot be looked up") from error
        permitted = [address for address in found if self._permits(target, address)]
        if not permitted:
            raise RefusedError(Refusal.NOT_ALLOWED, f"{target.host} leads to no address that its entry allows")
        return permitted[:_ADDRESSES_TRIED]

    def _permits(self, target: Target, address: Address | None = None) -> bool:
        endpoint = self._allow.find(target)
        return endpoint is not None and (address is None or endpoint.permits(address))


def _silent(target: Target) -> RefusedError:
    return RefusedError(Refusal.TIMED_OUT, f"{target} does not answer")


async def _say_no(connection: _Connection, answer: bytes) -> None:
    """Send the last word, and wait a little until it was read: what comes in unread would take it back (RST)."""
    with trio.move_on_after(_LINGER_S):
        await connection.client.send_all(answer)
        await connection.client.send_eof()
        for _ in range(_LINGER_CHUNKS):
            if not await connection.client.receive_some(_HANDSHAKE_CHUNK_BYTES):
                break
    connection.clean = True
