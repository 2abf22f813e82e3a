"""The proxy on sockets of the host: it connects to what is allowed and to nothing else, within its bounds."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import trio

from minisandbox.endpoints import Address, parse_endpoints
from minisandbox.runtime.background import background
from minisandbox.runtime.network_usage import REFUSALS_KEPT, EndpointUsage, Ledger
from minisandbox.runtime.proxy import Proxy, ProxyLimits
from minisandbox.runtime.uplink import LookUp, Uplink
from tests.test_proxy_protocol import GREETED, GREETING, socks
from tests.web import answer_http, closed_port, echo, serving

FAST = ProxyLimits(head_s=0.2, connect_s=0.4, idle_s=0.6)
ACCEPTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
PUBLIC = "93.184.215.14"


class Recorder(Uplink):
    """An uplink that writes down where it was sent, and goes to one port of this host whatever that was."""

    def __init__(self, port: int, look_up: LookUp | None = None) -> None:
        super().__init__(look_up)
        self.port = port
        self.connected: list[str] = []

    async def connect(self, address: Address, port: int) -> trio.SocketStream:
        """Connect to the port of this host."""
        self.connected.append(f"{address} {port}")
        return await super().connect(ipaddress.ip_address("127.0.0.1"), self.port)


@dataclass
class Names:
    """Answers each look-up with the next of its lists, the last one again and again."""

    answers: list[list[str]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str) -> list[Address]:
        """Return the next answer."""
        await trio.lowlevel.checkpoint()
        self.asked.append(host)
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return list(map(ipaddress.ip_address, addresses))


@dataclass
class Bench:
    """A proxy that serves, and what it wrote down."""

    proxy: Proxy
    ledger: Ledger
    port: int
    dialled: list[trio.SocketStream] = field(default_factory=list)

    async def dial(self) -> trio.SocketStream:
        """Connect to the proxy; what the test leaves open is closed when the proxy has ended."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.dialled.append(stream)
        return stream

    async def connect(self, target: str) -> trio.SocketStream:
        """Return a tunnel to a target that is allowed."""
        stream = await self.dial()
        await stream.send_all(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        assert ACCEPTED == await receive_exactly(stream, len(ACCEPTED))
        return stream

    async def ask(self, data: bytes) -> bytes:
        """Say something and return all that is answered until the end; b"reset" is added where it was no clean one."""
        stream = await self.dial()
        async with stream:
            await stream.send_all(data)
            return await receive_all(stream)

    async def status(self, target: str) -> str:
        """Return the status of the answer to a CONNECT that is refused."""
        answer = await self.ask(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        return answer.decode().split(" ")[1]


async def receive_exactly(stream: trio.SocketStream, count: int) -> bytes:
    """Return so many bytes, fewer at the end of the stream."""
    received = b""
    while len(received) < count and (chunk := await stream.receive_some(count - len(received))):
        received += chunk
    return received


async def receive_all(stream: trio.SocketStream) -> bytes:
    """Return everything until the end, and b"reset" where that was no clean one."""
    received = b""
    try:
        async for chunk in stream:
            received += chunk
    except trio.BrokenResourceError:
        received += b"reset"
    return received


@contextlib.asynccontextmanager
async def proxying(
    *allow: str, uplink: Uplink | None = None, limits: ProxyLimits | None = None
) -> AsyncIterator[Bench]:
    """Serve a proxy for the block, under a deadline; nothing of it may be left at the end."""
    listening = socket.create_server(("127.0.0.1", 0))
    ledger, uplink = Ledger(), uplink or Uplink()
    places = uplink.places.value
    proxy = Proxy(listening, parse_endpoints(allow), uplink=uplink, ledger=ledger, limits=limits or ProxyLimits())
    bench = Bench(proxy, ledger, listening.getsockname()[1])
    try:
        with trio.fail_after(20):
            async with background(proxy.serve):
                yield bench
    finally:
        for stream in bench.dialled:
            stream.socket.close()
    assert (0, places, -1) == (proxy.live, uplink.places.value, listening.fileno())


async def test_connect_makes_a_tunnel() -> None:
    """Bytes pass in both directions as they are, are counted, and an end on one side is one on the other."""
    async with serving(echo) as port, proxying(f"127.0.0.1:{port}") as bench:
        tunnel = await bench.connect(f"127.0.0.1:{port}")
        await tunnel.send_all(b"\0\xff\r\n" * 10)
        await tunnel.send_eof()
        echoed = await receive_all(tunnel)

    assert b"\0\xff\r\n" * 10 == echoed
    usage = EndpointUsage(connections=1, sent_bytes=40, received_bytes=40)
    assert {f"127.0.0.1:{port}": usage} == bench.ledger.read().endpoints


async def test_what_is_sent_at_once_with_the_request_is_passed_on() -> None:
    """A client need not wait for the answer."""
    async with serving(echo) as port, proxying(f"127.0.0.1:{port}") as bench:
        stream = await bench.dial()
        await stream.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nearly".encode())
        await stream.send_eof()
        answer = await receive_all(stream)

    assert ACCEPTED + b"early" == answer


async def test_a_request_in_absolute_form_is_answered_by_its_server() -> None:
    """The server sees a request like any other, and the connection ends with its answer."""
    async with serving(answer_http) as port, proxying(f"localhost:{port}") as bench:
        url = f"http://LOCALHOST.:{port}/a?b"
        answer = await bench.ask(
            f"POST {url} HTTP/1.1\r\nHost: x\r\nProxy-Connection: keep-alive\r\nContent-Length: 4\r\n\r\nbody".encode()
        )

    head, _, said = answer.partition(b"you said:\n")
    expected = f"POST /a?b HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert expected.encode() == said


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_socks_makes_a_tunnel(host: str) -> None:
    """To a name and to both kinds of address."""
    bound = "::1" if host == "::1" else "127.0.0.1"
    if host == "::1" and not has_ipv6():
        pytest.skip("this host has no ::1")
    entry = f"[{host}]" if ":" in host else host
    async with serving(echo, bound) as port, proxying(f"{entry}:{port}") as bench:
        stream = await bench.dial()
        await stream.send_all(GREETING)
        greeted = await receive_exactly(stream, 2)
        await stream.send_all(socks(host, port) + b"hello")
        await stream.send_eof()
        answer = await receive_all(stream)

    assert GREETED == greeted
    assert b"\x05\x00\x00\x01" + bytes(6) + b"hello" == answer


def has_ipv6() -> bool:
    """Return whether the host's loopback has an IPv6 address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def test_what_is_not_on_the_list_is_neither_looked_up_nor_connected() -> None:
    """Other ports, other names, addresses of names that are on it. It is refused in the client's own dialect."""
    names = Names([[PUBLIC]])
    async with serving(echo) as port:
        uplink = Recorder(port, names)
        async with proxying("a.example:443", uplink=uplink) as bench:
            targets = ("a.example:80", "b.example:443", f"{PUBLIC}:443", f"127.0.0.1:{port}", f"localhost:{port}")
            statuses = [await bench.status(target) for target in targets]
            reply = await bench.ask(GREETING + socks("b.example", 443))
            plain = await bench.ask(b"GET http://b.example/ HTTP/1.1\r\n\r\n")
            allowed = await bench.connect("a.example:443")
            await allowed.aclose()

    assert ["403"] * len(targets) == statuses
    assert GREETED + b"\x05\x02\x00\x01" + bytes(6) == reply
    assert plain.startswith(b"HTTP/1.1 403 Forbidden\r\n") and plain.endswith(
        b"b.example:80 is not on the allow list\n"
    )
    assert (["a.example"], [f"{PUBLIC} 443"]) == (names.asked, uplink.connected)
    assert len(targets) + 2 == bench.ledger.read().refused
    assert "b.example:443 is not on the allow list" in bench.ledger.read().refusals


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "169.254.169.254", "10.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"])
async def test_a_name_that_leads_into_the_site_is_refused(address: str) -> None:
    """Whoever answers for a name on the list does not open the host, nor what stands beside it."""
    async with serving(echo) as port:
        uplink = Recorder(port, Names([[address]]))
        async with proxying("a.example:443", "*.b.example:443", uplink=uplink) as bench:
            statuses = [await bench.status("a.example:443"), await bench.status("x.b.example:443")]

    assert (["403", "403"], []) == (statuses, uplink.connected)


async def test_an_entry_can_opt_in_to_the_site() -> None:
    """Defence off: with /private the same name is connected to, and loopback is refused all the same."""
    async with serving(echo) as port:
        uplink = Recorder(port, Names([["10.0.0.1"], ["127.0.0.1"]]))
        async with proxying("a.example:443/private", uplink=uplink) as bench:
            await (await bench.connect("a.example:443")).aclose()
            status = await bench.status("a.example:443")

    assert ("403", ["10.0.0.1 443"]) == (status, uplink.connected)


async def test_a_name_that_changes_its_address_is_connected_where_it_was_checked() -> None:
    """DNS rebinding: one look-up a connection, and no other address than one that passed the check."""
    names = Names([[PUBLIC, "127.0.0.1"], ["127.0.0.1", PUBLIC], ["127.0.0.1"]])
    async with serving(echo) as port:
        uplink = Recorder(port, names)
        async with proxying("a.example:443", uplink=uplink) as bench:
            await (await bench.connect("a.example:443")).aclose()
            await (await bench.connect("a.example:443")).aclose()
            status = await bench.status("a.example:443")

    assert "403" == status
    assert ([f"{PUBLIC} 443"] * 2, 3) == (uplink.connected, len(names.asked))


async def test_another_address_is_tried_when_one_does_not_answer() -> None:
    """The name counts as reached when any of its addresses is."""

    class Half(Recorder):
        """The first address is down."""

        async def connect(self, address: Address, port: int) -> trio.SocketStream:
            """Refuse the first."""
            if not self.connected:
                self.connected.append(str(address))
                raise ConnectionRefusedError(111, "Connection refused")
            return await super().connect(address, port)

    async with serving(echo) as port:
        uplink = Half(port, Names([["1.1.1.1", PUBLIC]]))
        async with proxying("a.example:443", uplink=uplink) as bench:
            await (await bench.connect("a.example:443")).aclose()

    assert ["1.1.1.1", f"{PUBLIC} 443"] == uplink.connected


async def test_a_server_that_refuses_is_told_from_one_that_is_forbidden() -> None:
    """Both dialects have words for it."""
    port = closed_port()
    async with proxying(f"127.0.0.1:{port}") as bench:
        status = await bench.status(f"127.0.0.1:{port}")
        reply = await bench.ask(GREETING + socks("127.0.0.1", port))

    assert "502" == status
    assert GREETED + b"\x05\x05" == reply[:4]


async def test_a_name_that_there_is_not_is_unreachable() -> None:
    """What the resolver says of it does not come out."""

    async def fail(host: str) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known: by 10.9.8.7")

    async with proxying("a.example:443", uplink=Uplink(fail)) as bench:
        answer = await bench.ask(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 502 ")
    assert answer.endswith(b"minisandbox: a.example cannot be looked up\n")


async def forever(_anything: object) -> list[Address]:
    """Never answer."""
    await trio.Event().wait()
    return []


async def test_a_look_up_that_takes_too_long_is_given_up() -> None:
    """Its deadline is that of the connection."""
    async with proxying("a.example:443", uplink=Uplink(forever), limits=FAST) as bench:
        status = await bench.status("a.example:443")

    assert "504" == status


@pytest.mark.parametrize("beginning", [b"", b"CONNECT a.ex", b"\x05", GREETING, GREETING + b"\x05\x01\x00\x03\xff"])
async def test_a_client_that_does_not_say_what_it_wants_is_dropped(beginning: bytes) -> None:
    """However far it came."""
    async with proxying("a.example:443", limits=FAST) as bench:
        stream = await bench.dial()
        await stream.send_all(beginning)
        answer = await receive_all(stream)

    assert answer in (b"reset", GREETED + b"reset")
    assert 0 == bench.ledger.read().refused


async def test_a_tunnel_in_which_nothing_moves_is_cut() -> None:
    """And on both sides the end is no clean one."""
    ends: list[bytes] = []

    async def listen(stream: trio.SocketStream) -> None:
        ends.append(await receive_all(stream))

    async with serving(listen) as port, proxying(f"127.0.0.1:{port}", limits=FAST) as bench:
        tunnel = await bench.connect(f"127.0.0.1:{port}")
        for _ in range(8):  # longer than idle_s in all
            await tunnel.send_all(b".")
            await trio.sleep(FAST.idle_s / 4)
        ends.append(await receive_all(tunnel))

    assert [b"........reset", b"reset"] == sorted(ends)


async def test_clients_beyond_the_bound_wait() -> None:
    """They are served when others leave, and none is lost."""
    async with serving(echo) as port:
        async with proxying(f"127.0.0.1:{port}", limits=ProxyLimits(connections=2)) as bench:
            first = await bench.connect(f"127.0.0.1:{port}")
            await bench.connect(f"127.0.0.1:{port}")
            waiting = await bench.dial()
            await waiting.send_all(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            with trio.move_on_after(0.05) as scope:
                await waiting.receive_some(1)
            live = bench.proxy.live
            await first.aclose()
            answer = await receive_exactly(waiting, len(ACCEPTED))

    assert (True, 2, ACCEPTED) == (scope.cancelled_caught, live, answer)


async def test_the_bound_of_all_proxies_together_holds() -> None:
    """An idle proxy takes no place of it; one that has a client does."""
    uplink = Uplink()
    uplink.places = trio.Semaphore(1)
    async with serving(echo) as port:
        target = f"127.0.0.1:{port}"
        async with proxying(target, uplink=uplink) as bench, proxying(target, uplink=uplink) as other:
            first = await bench.connect(target)
            waiting = await other.dial()
            await waiting.send_all(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            with trio.move_on_after(0.05) as scope:
                await waiting.receive_some(1)
            await first.aclose()
            answer = await receive_exactly(waiting, len(ACCEPTED))
            await waiting.aclose()
            await (await bench.connect(target)).aclose()
            while uplink.places.value == 0:
                await trio.lowlevel.checkpoint()

    assert (True, ACCEPTED) == (scope.cancelled_caught, answer)


async def test_a_shorter_list_cuts_what_is_not_on_it() -> None:
    """At once, and reset on both sides; what stays on the list goes on."""
    ends: list[bytes] = []

    async def listen(stream: trio.SocketStream) -> None:
        ends.append(await receive_all(stream))

    async with serving(listen) as gone, serving(echo) as kept:
        async with proxying(f"127.0.0.1:{gone}", f"127.0.0.1:{kept}") as bench:
            cut = await bench.connect(f"127.0.0.1:{gone}")
            stays = await bench.connect(f"127.0.0.1:{kept}")
            await bench.proxy.set_allow(parse_endpoints([f"127.0.0.1:{kept}"]))
            live = bench.proxy.live
            end = await receive_all(cut)
            status = await bench.status(f"127.0.0.1:{gone}")
            await stays.send_all(b"still")
            echoed = await receive_exactly(stays, 5)

    assert (1, b"reset", "403", b"still", [b"reset"]) == (live, end, status, echoed, ends)


async def test_a_list_that_loses_private_cuts_what_it_let_in() -> None:
    """The address of a connection is judged again, not the name alone."""
    async with serving(echo) as port:
        uplink = Recorder(port, Names([["10.0.0.1"]]))
        async with proxying("a.example:443/private", uplink=uplink) as bench:
            tunnel = await bench.connect("a.example:443")
            await bench.proxy.set_allow(parse_endpoints(["a.example:443"]))
            end = await receive_all(tunnel)

    assert b"reset" == end


async def test_a_shorter_list_cuts_what_is_being_connected() -> None:
    """What was allowed when it was asked for does not come through later."""
    started = trio.Event()

    async def look_up(host: str) -> list[Address]:
        started.set()
        return await forever(host)

    async with proxying("a.example:443", uplink=Uplink(look_up)) as bench:
        stream = await bench.dial()
        await stream.send_all(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
        await started.wait()
        await bench.proxy.set_allow(parse_endpoints(["b.example:443"]))
        end = await receive_all(stream)

    assert b"reset" == end


async def test_the_end_of_the_proxy_is_the_end_of_its_connections() -> None:
    """Those that pass bytes, that are being connected, and that have not said yet what they want."""
    started = trio.Event()

    async def look_up(host: str) -> list[Address]:
        started.set()
        return await forever(host)

    async with serving(echo) as port, contextlib.AsyncExitStack() as stack:
        target = f"127.0.0.1:{port}"
        bench = await stack.enter_async_context(proxying(target, "a.example:443", uplink=Uplink(look_up)))
        streams = [await bench.connect(target), await bench.dial(), await bench.dial()]
        await streams[1].send_all(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
        await started.wait()
        await streams[2].send_all(b"CONN")
        bench.dialled.clear()  # to look at them after the end
        await stack.aclose()
        ends = [await receive_all(stream) for stream in streams]
        for stream in streams:
            await stream.aclose()
        with pytest.raises(OSError, match="failed"):
            await bench.dial()

    assert [b"reset"] * 3 == ends


async def test_much_passes_intact_in_both_directions_at_once() -> None:
    """8 MiB, more than all buffers on the way together, so each side waits for the other."""
    data = random.Random(1).randbytes(8 << 20)
    async with serving(echo) as port, proxying(f"127.0.0.1:{port}") as bench:
        tunnel = await bench.connect(f"127.0.0.1:{port}")

        async def send() -> None:
            await tunnel.send_all(data)
            await tunnel.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            echoed = await receive_all(tunnel)

    (usage,) = bench.ledger.read().endpoints.values()
    assert data == echoed
    assert (len(data), len(data)) == (usage.sent_bytes, usage.received_bytes)


async def test_junk_hurts_nobody() -> None:
    """A hundred clients that say anything, some of it half of something, and leave; then one is served as ever."""
    draw = random.Random(2)
    whole = [f"CONNECT {target} HTTP/1.1\r\n\r\n".encode() for target in ("a.example:443", "[::1]:80", "10.0.0.1:1")]
    whole += [GREETING + socks("a.example", 443), b"GET http://a.example/ HTTP/1.1\r\n\r\n"]
    async with serving(echo) as port, proxying(f"127.0.0.1:{port}", limits=FAST) as bench:
        for _ in range(100):
            said = bytearray(draw.choice(whole))
            for _ in range(draw.randrange(4)):
                said[draw.randrange(len(said))] = draw.randrange(256)
            stream = await bench.dial()
            await stream.send_all(bytes(said[: draw.randrange(1, len(said) + 1)]))
            await stream.aclose()
        tunnel = await bench.connect(f"127.0.0.1:{port}")
        await tunnel.send_all(b"fine")
        answer = await receive_exactly(tunnel, 4)

    assert b"fine" == answer
    assert len(bench.ledger.read().refusals) <= REFUSALS_KEPT
