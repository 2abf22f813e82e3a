"""The way out through the proxy: allowed endpoints are reached by any client, and nothing else by any means."""

from __future__ import annotations

import secrets
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from minisandbox import Policy, Sandbox, StartError, Supervisor, UsageError
from minisandbox.policy import Network
from minisandbox.runtime.network import PROXY_PORT
from minisandbox.runtime.parking import OFTEN
from tests import observer
from tests.probes.lab import Defence, open_successor, policy_of
from tests.web import answer_http, serving

URLLIB = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://{sys.argv[1]}/asked").read().decode())
"""

TUNNEL = """
import http.client, os, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
connection = http.client.HTTPConnection(proxy.hostname, proxy.port)
host, port = sys.argv[1].rsplit(":", 1)
connection.set_tunnel(host, int(port))
connection.request("GET", "/asked")
print(connection.getresponse().read().decode())
"""

SOCKS = """
import ipaddress, os, socket, struct, sys, urllib.parse
host, port = sys.argv[1].rsplit(":", 1)
proxy = urllib.parse.urlsplit(os.environ["ALL_PROXY"])
connection = socket.create_connection((proxy.hostname, proxy.port))
connection.sendall(bytes([5, 1, 0]))
assert connection.recv(2) == bytes([5, 0])
try:
    place = bytes([1]) + ipaddress.IPv4Address(host).packed
except ValueError:
    place = bytes([3, len(host)]) + host.encode()
connection.sendall(bytes([5, 1, 0]) + place + struct.pack("!H", int(port)))
reply = connection.recv(10)
if reply[1] != 0:
    sys.exit(f"reply {reply[1]}")
connection.sendall(f"GET /asked HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
while received := connection.recv(4096):
    sys.stdout.write(received.decode())
"""

CURL = ("curl", "-sS", "--fail", "--max-time", "10")


@dataclass(frozen=True)
class Client:
    """A program inside that asks an endpoint for /asked."""

    name: str
    words: tuple[str, ...]

    async def ask(self, sandbox: Sandbox, endpoint: str) -> str:
        """Return what was answered, and "" when nothing was."""
        url = f"http://{endpoint}/asked" if self.words[0] == "curl" else endpoint
        result = await sandbox.run([*self.words, url])
        return result.stdout.decode() if result.ok else ""


CLIENTS = (
    Client("urllib", ("python3", "-c", URLLIB)),
    Client("tunnel", ("python3", "-c", TUNNEL)),
    Client("socks", ("python3", "-c", SOCKS)),
    Client("curl", CURL),
    Client("curl tunnel", (*CURL, "--proxytunnel")),
    Client("curl socks", (*CURL, "--proxy", f"socks5h://127.0.0.1:{PROXY_PORT}")),
)


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Each client that this host has."""
    chosen: Client = request.param
    if shutil.which(chosen.words[0], path="/usr/bin:/bin") is None:
        pytest.skip(f"this host has no {chosen.words[0]}")
    return chosen


@pytest.fixture
async def web() -> AsyncIterator[int]:
    """The port of an HTTP server on the host's 127.0.0.1."""
    async with serving(answer_http) as port:
        yield port


def allowing(*allow: str) -> Policy:
    """Return the default policy with an allow list."""
    return msgspec.structs.replace(policy_of(Defence.DEFAULT), allow=allow)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_allowed_endpoint_is_reached_by_every_client(
    supervisor: Supervisor, client: Client, web: int, host: str
) -> None:
    """Led there by its environment, where it looks at that. With an empty list it gets nowhere."""
    endpoint = f"{host}:{web}"
    async with supervisor.open_sandbox(policy=allowing(endpoint)) as sandbox:
        answer = await client.ask(sandbox, endpoint)
    async with supervisor.open_sandbox(policy=allowing()) as sandbox:
        nothing = await client.ask(sandbox, endpoint)

    assert "you said:\nGET /asked HTTP/1.1" in answer.replace("\r\n", "\n")
    assert "" == nothing


async def test_other_endpoints_are_refused_to_every_client(supervisor: Supervisor, client: Client, web: int) -> None:
    """Row 48: neither another port nor another name of the same server. Defence off: those that are listed answer."""
    async with serving(answer_http) as other:
        forbidden = (f"127.0.0.1:{other}", f"localhost:{web}", f"127.0.0.2:{web}")
        async with supervisor.open_sandbox(policy=allowing(f"127.0.0.1:{web}")) as sandbox:
            answers = [await client.ask(sandbox, endpoint) for endpoint in forbidden]
            usage = sandbox.network.usage
        async with supervisor.open_sandbox(policy=allowing(*forbidden)) as sandbox:
            reached = [await client.ask(sandbox, endpoint) for endpoint in forbidden[:2]]

    assert [""] * 3 == answers
    assert ({}, True) == (usage.endpoints, usage.refused >= 1)
    assert all("asked" in answer for answer in reached)


DIRECT = """
import errno, socket, sys
kind, family, address, port = sys.argv[1:]
place = address.replace("@", "\\0") if family == "AF_UNIX" else (address, int(port))
try:
    with socket.socket(getattr(socket, family), getattr(socket, kind)) as direct:
        direct.settimeout(5)
        if family == "AF_UNIX":
            direct.bind("")  # a name that can be answered (unix(7), autobind)
        direct.connect(place)
        direct.send(b"hello")
        print(direct.recv(100).decode())
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
"""


@dataclass(frozen=True)
class Way:
    """A socket of the host, and what comes of talking to it without the proxy."""

    family: str
    kind: str
    address: str
    refused: tuple[str, ...]


WAYS = (
    Way("AF_INET", "SOCK_STREAM", "127.0.0.1", ("ECONNREFUSED",)),
    Way("AF_INET", "SOCK_STREAM", "127.0.0.2", ("ECONNREFUSED",)),
    Way("AF_INET", "SOCK_DGRAM", "127.0.0.1", ("ECONNREFUSED",)),
    Way("AF_INET6", "SOCK_STREAM", "::1", ("ECONNREFUSED", "EADDRNOTAVAIL")),
    Way("AF_INET6", "SOCK_DGRAM", "::1", ("ECONNREFUSED", "EADDRNOTAVAIL")),
    Way("AF_UNIX", "SOCK_STREAM", "@", ("ECONNREFUSED",)),
    Way("AF_UNIX", "SOCK_DGRAM", "@", ("ECONNREFUSED",)),
)
"""TCP and UDP, as DNS has it, of both versions of IP, and abstract names."""


async def answer_directly(listening: socket.socket, kind: str) -> None:
    """Answer whoever says something, whatever the kind of socket."""
    served = trio.socket.from_stdlib_socket(listening)
    while True:
        if kind == "SOCK_STREAM":
            connection, _ = await served.accept()
            with connection:
                await connection.send(await connection.recv(100))
        else:
            said, address = await served.recvfrom(100)
            if address:
                await served.sendto(said, address)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.family}-{way.kind}-{way.address}")
async def test_no_socket_of_the_host_is_reached_past_the_proxy(supervisor: Supervisor, web: int, way: Way) -> None:
    """Row 48: neither by TCP nor UDP (DNS), IPv4 nor IPv6, nor by abstract names. Defence off: the host's network."""
    kind, family = getattr(socket, way.kind), getattr(socket, way.family)
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")
    with socket.socket(family, kind) as listening:
        name = f"@probe-{secrets.token_hex(8)}"
        try:
            listening.bind(name.replace("@", "\0") if way.family == "AF_UNIX" else (way.address, 0))
        except OSError as error:
            pytest.skip(f"this host has no {way.address}: {error.strerror}")
        if way.kind == "SOCK_STREAM":
            listening.listen()
        listening.setblocking(False)
        address, port = (name, 0) if way.family == "AF_UNIX" else listening.getsockname()[:2]
        words = ["python3", "-c", DIRECT, way.kind, way.family, address, str(port)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_directly, listening, way.kind)
            policy = allowing(f"127.0.0.1:{web}", *([f"127.0.0.1:{port}"] if port else []))
            async with supervisor.open_sandbox(policy=policy) as sandbox:
                refused = (await sandbox.run(words)).stdout.decode().strip()
            policy = msgspec.structs.replace(policy, network=Network.HOST, allow=())
            async with supervisor.open_sandbox(policy=policy) as sandbox:
                reached = (await sandbox.run(words)).stdout.decode().strip()
            nursery.cancel_scope.cancel()

    assert refused in way.refused
    assert "hello" == reached


ROUTES = """
import errno, socket, sys
for name, call in {
    "lookup": lambda: socket.getaddrinfo(sys.argv[1], 80),
    "outside": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 53)),
    "outside6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect(("2001:db8::1", 53)),
    "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "raw6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58),
    "packet": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
}.items():
    try:
        call()
        print(name, "ok")
    except socket.gaierror as error:
        print(name, "gaierror")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
print("interfaces", ",".join(name for _, name in socket.if_nameindex()))
print("routes", len(open("/proc/self/net/route").readlines()) - 1)
"""


async def test_there_is_no_route_and_no_name_service_inside(supervisor: Supervisor, web: int) -> None:
    """Row 48: with the proxy there, a sandbox has loopback alone, looks nothing up, and makes no packets of its own."""
    async with supervisor.open_sandbox(policy=allowing(f"127.0.0.1:{web}")) as sandbox:
        result = await sandbox.run(["python3", "-c", ROUTES, "a.example"])
    found = dict(line.split(" ", 1) for line in result.stdout.decode().splitlines())

    assert ("lo", "0", "gaierror", "ENETUNREACH") == (
        found["interfaces"],
        found["routes"],
        found["lookup"],
        found["outside"],
    )
    assert found["outside6"] in ("ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT")
    assert {found["raw"], found["raw6"], found["packet"]} <= {"EPERM", "EACCES", "EAFNOSUPPORT"}


async def test_there_are_routes_in_the_hosts_network(supervisor: Supervisor) -> None:
    """Row 48, defence off: the same attempts find the host's interfaces and routes. Connecting UDP sends nothing."""
    if "\t00000000\t" not in Path("/proc/self/net/route").read_text():
        pytest.skip("this host has no default route")
    policy = msgspec.structs.replace(allowing(), network=Network.HOST)
    async with supervisor.open_sandbox(policy=policy) as sandbox:
        result = await sandbox.run(["python3", "-c", ROUTES, "127.0.0.1"])
    found = dict(line.split(" ", 1) for line in result.stdout.decode().splitlines())

    assert ("ok", "ok") == (found["lookup"], found["outside"])
    assert found["interfaces"] != "lo"
    assert int(found["routes"]) > 0


BIND = """
import errno, socket, sys
try:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(sys.argv[1])))
    print("ok")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("defence", [Defence.DEFAULT, Defence.UNFILTERED], ids=lambda defence: defence.value)
async def test_nothing_inside_can_stand_in_for_the_proxy(supervisor: Supervisor, defence: Defence) -> None:
    """Its port cannot be taken before it is there, with all capabilities neither. Defence off: another port can."""
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        taken = await sandbox.run(["python3", "-c", BIND, str(PROXY_PORT)])
        other = await sandbox.run(["python3", "-c", BIND, "8080"])

    assert (b"EACCES\n", b"ok\n") == (taken.stdout, other.stdout)


async def test_a_sibling_has_no_way_through_the_proxy_of_another(supervisor: Supervisor, web: int) -> None:
    """Each listener is in the network of its own sandbox, and in no other."""
    endpoint = f"127.0.0.1:{web}"
    script = f"import socket; socket.create_connection(('127.0.0.1', {PROXY_PORT})); print('ok')"
    async with supervisor.open_sandbox(policy=allowing(endpoint)) as first, supervisor.open_sandbox() as second:
        own = await first.run(["python3", "-c", script])
        sibling = await second.run(["python3", "-c", script])

    assert (b"ok\n", b"") == (own.stdout, sibling.stdout)
    assert b"ConnectionRefusedError" in sibling.stderr
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", PROXY_PORT))


async def test_the_network_can_change_while_a_sandbox_is_open(supervisor: Supervisor, web: int) -> None:
    """None, then one endpoint, then another, then none: each holds from the call on, for commands that run as well."""
    client = CLIENTS[0]
    async with serving(answer_http) as other, supervisor.open_sandbox() as sandbox:
        seen = []
        for allow in ((), (f"127.0.0.1:{web}",), (f"127.0.0.1:{other}",), ()):
            await sandbox.set_network(allow=allow)
            answers = [await client.ask(sandbox, f"127.0.0.1:{port}") for port in (web, other)]
            variables = await sandbox.run("env | grep -ic _proxy=")
            seen.append((*map(bool, answers), int(variables.stdout)))

    assert [(False, False, 0), (True, False, 8), (False, True, 8), (False, False, 0)] == seen


WATCH = f"""
import socket, sys
connection = socket.create_connection(("127.0.0.1", {PROXY_PORT}))
connection.sendall(f"CONNECT {{sys.argv[1]}} HTTP/1.1\\r\\n\\r\\n".encode())
print(connection.recv(100), flush=True)
try:
    print("end" if connection.recv(1) == b"" else "data")
except ConnectionResetError:
    print("reset")
"""


@pytest.mark.parametrize("keep", [True, False])
async def test_a_connection_that_is_not_allowed_any_more_is_cut(supervisor: Supervisor, keep: bool) -> None:
    """Also that of a command that runs. Defence off: one that stays allowed is not."""
    ended = trio.Event()

    async def wait(stream: trio.SocketStream) -> None:
        try:
            await stream.receive_some(1)
        finally:
            ended.set()

    async with serving(wait) as port, supervisor.open_sandbox(policy=allowing(f"127.0.0.1:{port}")) as sandbox:
        async with await sandbox.start(["python3", "-c", WATCH, f"127.0.0.1:{port}"]) as process:
            connected = await process.stdout.receive_some()
            await sandbox.set_network(allow=[f"127.0.0.1:{port}", "a.example:443"] if keep else ["a.example:443"])
            with trio.move_on_after(0.2 if keep else 10):
                await ended.wait()
            cut = ended.is_set()
            rest = b"" if keep else await process.stdout.receive_some()

    assert b"200 Connection established" in connected
    assert (not keep, b"" if keep else b"reset\n") == (cut, rest)


async def test_closing_a_sandbox_closes_its_connections_and_its_listener(supervisor: Supervisor) -> None:
    """Before the slot is used again; and the next sandbox in it finds a network in which nothing ever happened."""
    ends: list[str] = []

    async def wait(stream: trio.SocketStream) -> None:
        try:
            await stream.receive_some(1)
        except trio.BrokenResourceError:
            ends.append("reset")

    async with serving(wait) as port:
        async with supervisor.open_sandbox(policy=allowing(f"127.0.0.1:{port}")) as sandbox:
            slot = sandbox.slot.number
            process = await sandbox.start(["python3", "-c", WATCH, f"127.0.0.1:{port}"])
            await process.stdout.receive_some()
            usage = sandbox.network.usage
        await process.aclose()
        await trio.testing.wait_all_tasks_blocked()
        async with open_successor(supervisor, slot, policy_of(Defence.DEFAULT)) as successor:
            sockets = await successor.run("cat /proc/net/tcp /proc/net/dev; env | grep -ic _proxy=")

    listed = sockets.stdout.decode()
    assert (["reset"], 1) == (ends, usage.endpoints[f"127.0.0.1:{port}"].connections)
    assert f":{PROXY_PORT:04X}" not in listed
    assert [0] * 16 == list(map(int, listed.partition("lo:")[2].split()[:16]))


async def test_a_variable_of_the_callers_own_wins(supervisor: Supervisor, web: int) -> None:
    """Who sets one of them knows why; the others stay."""
    async with supervisor.open_sandbox(policy=allowing(f"127.0.0.1:{web}"), env={"http_proxy": "own"}) as sandbox:
        result = await sandbox.run('echo "$http_proxy $HTTP_PROXY $no_proxy"', env={"no_proxy": "x"})

    assert f"own http://127.0.0.1:{PROXY_PORT} x\n" == result.stdout.decode()


async def test_parked_sandboxes_get_the_list_of_whoever_takes_them(supervisor: Supervisor, web: int) -> None:
    """An allow list is no matter of the kind: who asks for none gets none of one that was parked, and the other way."""
    client, endpoint = CLIENTS[0], f"127.0.0.1:{web}"
    for _ in range(OFTEN):
        async with supervisor.open_sandbox(policy=allowing()):
            pass
    await observer.wait_until(lambda: supervisor.parking.parked >= 2, trio.lowlevel.checkpoint)
    answers = []
    for allow in ([endpoint], []):
        async with supervisor.open_sandbox(policy=allowing(*allow)) as sandbox:
            answers.append((sandbox.timing.parked, await client.ask(sandbox, endpoint) != ""))

    assert [(True, True), (True, False)] == answers


async def test_the_hosts_network_takes_no_list(supervisor: Supervisor) -> None:
    """The two contradict each other, in a policy as later."""
    with pytest.raises(UsageError, match="allow list"):
        msgspec.structs.replace(allowing("a.example:80"), network=Network.HOST)
    policy = msgspec.structs.replace(allowing(), network=Network.HOST)
    async with supervisor.open_sandbox(policy=policy) as sandbox:
        await sandbox.set_network()
        with pytest.raises(UsageError, match="allow list"):
            await sandbox.set_network(allow=["a.example:80"])


async def test_a_wrong_list_changes_nothing(supervisor: Supervisor, web: int) -> None:
    """The one before stays."""
    endpoint = f"127.0.0.1:{web}"
    async with supervisor.open_sandbox(policy=allowing(endpoint)) as sandbox:
        with pytest.raises(UsageError, match="not an endpoint"):
            await sandbox.set_network(allow=["127.0.0.1"])
        answer = await CLIENTS[0].ask(sandbox, endpoint)

    assert "asked" in answer


async def test_a_second_listener_is_an_error_and_the_launcher_stays_where_it_is(
    supervisor: Supervisor, web: int
) -> None:
    """It comes back to its own network whether or not there can be a socket, and starts sandboxes as before."""
    launcher = supervisor._launcher
    async with supervisor.open_sandbox(policy=allowing(f"127.0.0.1:{web}")) as sandbox:
        with pytest.raises(StartError, match="listen: Address already in use"):
            await launcher.listen(sandbox.slot.number, sandbox.number, PROXY_PORT)
        with pytest.raises(StartError, match="listen: No such process"):
            await launcher.listen(sandbox.slot.number, sandbox.number + 1, PROXY_PORT)
        networks = {trio.Path(f"/proc/{pid}/ns/net") for pid in ("self", launcher.pid)}
        names = {str(await path.readlink()) for path in networks}
        async with supervisor.open_sandbox() as next_one:
            result = await next_one.run(["true"])

    assert result.ok
    assert 1 == len(names)
