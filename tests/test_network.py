"""The network of a sandbox as it changes: calls that overlap, are cancelled or come late leave it as it should be."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from minisandbox.errors import ClosedError, StartError, UsageError
from minisandbox.runtime.network import PROXY_PORT, SandboxNetwork
from minisandbox.runtime.uplink import Uplink
from tests.web import answer_http, serving


class Listener:
    """Listens on the host's loopback in place of a sandbox's, and waits before it does when it is told to."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.port = 0
        self.go_on = trio.Event()
        self.go_on.set()
        self.error: StartError | None = None

    async def __call__(self, port: int) -> int:
        """Return a descriptor, as the launcher does: shielded."""
        with trio.CancelScope(shield=True):
            await self.go_on.wait()
        if self.error is not None:
            raise self.error
        self.made.append(port)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port = listening.getsockname()[1]
            return listening.detach()

    async def reached(self, endpoint: str) -> bool:
        """Return whether the proxy connects to an endpoint."""
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        except OSError:
            return False
        async with stream:
            await stream.send_all(f"GET http://{endpoint}/ HTTP/1.1\r\n\r\n".encode())
            try:
                return (await stream.receive_some(100)).startswith(b"HTTP/1.1 200")
            except trio.BrokenResourceError:
                return False


def network_of(listener: Listener) -> SandboxNetwork:
    """Return the network of a sandbox that has none of the host's."""
    return SandboxNetwork(listener, Uplink(), is_host=False)


async def test_a_list_opens_the_proxy_and_none_closes_it() -> None:
    """One listener for as long as there is a list, on the port that nobody else can have; the accounts stay."""
    listener = Listener()
    network = network_of(listener)
    async with serving(answer_http) as port:
        endpoint = f"127.0.0.1:{port}"
        reached = []
        for allow in ([endpoint], ["a.example:80"], [endpoint, "a.example:80"], [], [endpoint]):
            await network.set_allow(allow)
            reached.append(await listener.reached(endpoint))
        await network.aclose()
        reached.append(await listener.reached(endpoint))

    assert [True, False, True, False, True, False] == reached
    assert [PROXY_PORT] * 2 == listener.made
    assert 3 == network.usage.endpoints[endpoint].connections


async def test_changes_at_once_happen_one_after_the_other() -> None:
    """There are never two proxies, and the last one that was asked for holds."""
    listener = Listener()
    listener.go_on = trio.Event()
    network = network_of(listener)
    async with serving(answer_http) as port:
        async with trio.open_nursery() as nursery:
            for allow in (["a.example:80"], ["b.example:80"], [f"127.0.0.1:{port}"]):
                nursery.start_soon(network.set_allow, allow)
                await trio.testing.wait_all_tasks_blocked()
            listener.go_on.set()
        reached = await listener.reached(f"127.0.0.1:{port}")
        await network.aclose()

    assert (True, 1) == (reached, len(listener.made))


async def test_a_change_that_comes_too_late_is_an_error() -> None:
    """A sandbox that is closed while its proxy is being opened has none afterwards."""
    listener = Listener()
    listener.go_on = trio.Event()
    network = network_of(listener)

    async def change() -> None:
        with pytest.raises(ClosedError):
            await network.set_allow(["a.example:80"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(network.aclose)
        await trio.testing.wait_all_tasks_blocked()
        listener.go_on.set()
    with pytest.raises(OSError, match="failed"):
        await trio.open_tcp_stream("127.0.0.1", listener.port)
    with pytest.raises(ClosedError):
        await network.set_allow(["a.example:80"])


async def test_a_change_that_is_cancelled_is_made_or_not() -> None:
    """The next one finds either state, and both can be closed."""
    listener = Listener()
    listener.go_on = trio.Event()
    network = network_of(listener)
    async with serving(answer_http) as port, trio.open_nursery() as nursery:
        nursery.start_soon(network.set_allow, ["a.example:80"])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        listener.go_on.set()
        with trio.CancelScope(shield=True):
            await network.set_allow([f"127.0.0.1:{port}"])
            reached = await listener.reached(f"127.0.0.1:{port}")
            await network.aclose()

    assert (True, 1) == (reached, len(listener.made))


async def test_a_listener_that_cannot_be_had_changes_nothing() -> None:
    """The error is the caller's to see, there are no variables that lead nowhere, and the next try may succeed."""
    listener = Listener()
    listener.error = StartError("cannot listen", "listen", 98)
    network = network_of(listener)
    with pytest.raises(StartError):
        await network.set_allow(["a.example:80"])
    before = network.variables
    listener.error = None
    await network.set_allow(["a.example:80"])
    after = network.variables
    await network.aclose()

    assert ({}, 8) == (before, len(after))


@pytest.mark.parametrize(
    ("allow", "own"),
    [
        (["a.example:80"], "localhost,127.0.0.1,::1"),
        (["localhost:80", "[::1]:80"], "127.0.0.1"),
        (["127.0.0.1:80", "*.a.example:80"], "localhost,::1"),
    ],
)
async def test_what_is_the_sandboxs_own_is_not_asked_of_the_proxy(allow: list[str], own: str) -> None:
    """Unless the list has a host of that name, since then it is the host's that is meant."""
    network = network_of(Listener())
    await network.set_allow(allow)
    variables = network.variables
    await network.aclose()

    url = f"http://127.0.0.1:{PROXY_PORT}"
    assert (own, own) == (variables.pop("no_proxy"), variables.pop("NO_PROXY"))
    assert dict.fromkeys("http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY".split(), url) == variables


async def test_the_hosts_network_takes_no_list() -> None:
    """But it can be told that it has none."""
    network = SandboxNetwork(Listener(), Uplink(), is_host=True)
    await network.set_allow([])
    with pytest.raises(UsageError, match="host's network"):
        await network.set_allow(["a.example:80"])
