"""The way out: what the proxies of all sandboxes of a supervisor share. Looks names up and connects.

Whoever calls decides what may be connected to; `connect` goes to the address that it is given and nowhere else.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
from collections.abc import Awaitable, Callable

import trio

from minisandbox.endpoints import Address

LookUp = Callable[[str], Awaitable[list[Address]]]
"""From a name to its addresses, best first. Raises OSError when there are none."""

_LOOK_UPS = 16
"""Threads for getaddrinfo(3), of our own: names that are slow to look up must not hold up others' threads."""


class Uplink:
    """Opens connections for proxies. `places` bounds how many there are at once."""

    def __init__(self, look_up: LookUp | None = None) -> None:
        self.look_up: LookUp = look_up or _SystemLookUp()
        # each has two descriptors of ours: they get a quarter of what this process may open
        self.places = trio.Semaphore(max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))

    async def connect(self, address: Address, port: int) -> trio.SocketStream:
        """Return a connection. Raises OSError. Cancelled: there is none."""
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        connecting = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            await connecting.connect((str(address), port))
            return trio.SocketStream(connecting)
        except BaseException:
            connecting.close()
            raise


class _SystemLookUp:
    """Looks names up as the host does: /etc/hosts, DNS, whatever nsswitch.conf(5) says."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_LOOK_UPS)

    async def __call__(self, host: str) -> list[Address]:
        found = await trio.to_thread.run_sync(_getaddrinfo, host, limiter=self._limiter, abandon_on_cancel=True)
        # a set would lose the order (RFC 6724); a scope is an interface of this host's, of no use to anybody else
        return list(dict.fromkeys(ipaddress.ip_address(address.partition("%")[0]) for address in found))


def _getaddrinfo(host: str) -> list[str]:
    found = socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
