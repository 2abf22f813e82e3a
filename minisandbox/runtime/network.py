"""The network of one sandbox, as it can be changed while that is open: no way out, or a proxy to some endpoints.

The sandbox has a network namespace of its own with a loopback interface, and that stays so. What is opened and closed
here is one listening socket on it, and who serves that.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, cast

import trio

from minisandbox.endpoints import LOCALHOST, NOTHING, AllowList, parse_endpoints
from minisandbox.errors import ClosedError, UsageError
from minisandbox.runtime.network_usage import Ledger, NetworkUsage
from minisandbox.runtime.proxy import Proxy
from minisandbox.runtime.uplink import Uplink

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

PROXY_PORT = 1021
"""Where the proxy listens inside. Ports below 1024 need a capability towards the owner of the network namespace, which
is the host: nothing inside can take this one first, nor stand in for the proxy. 1021 is for experiments (RFC 4727)."""

Listen = Callable[[int], Awaitable[int]]
"""From a port to a descriptor that listens on it inside the sandbox."""

_OWN_HOSTS = (LOCALHOST, "127.0.0.1", "::1")


class SandboxNetwork:
    """Owns the proxy of a sandbox, if it has one."""

    def __init__(self, listen: Listen, uplink: Uplink, *, is_host: bool) -> None:
        self._listen = listen
        self._uplink = uplink
        self._is_host = is_host
        self._allow = NOTHING
        self._ledger = Ledger()
        self._changing = trio.Lock()
        self._proxy: _Served | None = None
        self._closed = False

    @property
    def usage(self) -> NetworkUsage:
        """What was counted since the sandbox was opened."""
        return self._ledger.read()

    @property
    def allow(self) -> tuple[str, ...]:
        """The endpoints that can be reached."""
        return tuple(map(str, self._allow.endpoints))

    def go_on(self, other: SandboxNetwork) -> None:
        """Count on where another network left off, before anything is allowed."""
        self._ledger = other._ledger

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that lead programs to the proxy: none while there is none.

        All in HTTP, which every client speaks; one that has no SOCKS fails at the sight of a socks URL (httpx does).
        What is the sandbox's own is not asked of the proxy, unless the allow list has a host of that name.
        """
        if self._proxy is None:
            return {}
        url = f"http://127.0.0.1:{PROXY_PORT}"
        own = ",".join(host for host in _OWN_HOSTS if not self._allow.has_host(host))
        names = {"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": own}
        return {**names, **{name.upper(): value for name, value in names.items()}}

    async def set_allow(self, endpoints: Iterable[str]) -> None:
        """Let the sandbox reach these endpoints and no others. Connections to others are cut before it returns.

        Raises UsageError when one is none, or the sandbox has the host's network; StartError when nobody can listen.
        """
        allow = parse_endpoints(endpoints)
        if self._is_host and allow.endpoints:
            raise UsageError("this sandbox has the host's network; an allow list is for one that has its own")
        async with self._changing:
            self._check_open()
            if allow.endpoints and self._proxy is None:
                self._proxy = await self._start(allow)
            self._allow = allow
            if not allow.endpoints:
                await self._stop()
            elif self._proxy is not None:
                await self._proxy.proxy.set_allow(allow)

    async def aclose(self) -> None:
        """Close the listener and every connection. Shielded by the caller; takes no time when there is no proxy."""
        self._closed = True
        if self._proxy is not None or self._changing.locked():
            async with self._changing:
                await self._stop()

    async def _start(self, allow: AllowList) -> _Served:
        fd = await self._listen(PROXY_PORT)
        listening = socket.socket(fileno=fd)
        if self._closed:
            listening.close()
            self._check_open()
        return _Served(Proxy(listening, allow, uplink=self._uplink, ledger=self._ledger))

    async def _stop(self) -> None:
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this sandbox is closed; open another")


class Networked:
    """What users call to change the network of a sandbox; `Sandbox` inherits it."""

    network: SandboxNetwork

    async def set_network(self, *, allow: Iterable[str] = ()) -> None:
        """Let it reach these endpoints and no others from now on, none when there are none; the rest is cut off.

        Commands that start later get variables that lead to the proxy, or none any more. Raises UsageError when an
        endpoint is none, or when it has the host's network.
        """
        await cast("Sandbox", self).settled()
        await self.network.set_allow(allow)


class _Served:
    """A proxy and the task that serves it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        trio.lowlevel.spawn_system_task(self._serve)

    async def _serve(self) -> None:
        with self._scope:
            await self.proxy.serve()
        self._ended.set()

    async def stop(self) -> None:
        """Return when the socket and all connections are closed. Shielded: it waits for nobody else."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
