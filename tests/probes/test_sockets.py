"""Sockets: which ones there are, whom they reach, and that the network of a sandbox is not its own to change."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from minisandbox import Bind, Policy, Sandbox, Supervisor
from minisandbox.policy import Network
from tests.probes.lab import (
    FILTERED,
    PROBE,
    SANDBOXED,
    Defence,
    parse,
    policy_of,
    probe_bind,
    run_outside,
    skip_without_capability,
)

Made = set[tuple[str, int, int, int]]

RAW, OLD_PACKET = 3, 10
PROTOCOLS = "33"
"""How many protocols are tried, from 0 on: all of netlink (netlink(7)) among them."""

CONNECT = """
import errno, socket, sys
family, address = sys.argv[1:]
try:
    if family == "unix":
        socket.socket(socket.AF_UNIX).connect(address.replace("@", "\\0"))
    else:
        socket.create_connection(("127.0.0.1", int(address)), timeout=5)
    print("ok")
except OSError as error:
    print(errno.errorcode[error.errno])
"""

CHANGES = """
import errno, fcntl, socket, struct
address = struct.pack("HH4s8x", socket.AF_INET, 0, b"\\x0a\\x01\\x02\\x03")
requests = {
    "take-down": (0x8914, struct.pack("16sH14x", b"lo", 0)),
    "address": (0x8916, struct.pack("16s16s", b"lo", address)),
    "mtu": (0x8922, struct.pack("16si12x", b"lo", 60000)),
    "route": (0x890B, struct.pack("8x16s16s16sHHQ8x8xH6xQ16x", address, address, address, 5, 0, 0, 0, 0)),
}
for name, (number, data) in requests.items():
    try:
        fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), number, data)
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
link = struct.pack("BxHiII", 0, 0, 1, 0, 1)
head = struct.pack("IHHII", 16 + len(link), 16, 5, 1, 0)
rtnetlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
rtnetlink.send(head + link)
number = -struct.unpack_from("i", rtnetlink.recv(4096), 16)[0]
print("link", errno.errorcode[number] if number else "ok")
"""


def made_by(output: str) -> Made:
    """Return every socket that could be made: by which call, and with which family, type and protocol."""
    lines = [line.split() for line in output.splitlines()]
    return {(call, int(family), int(kind), int(protocol)) for call, family, kind, protocol in lines}


async def sockets_in(supervisor: Supervisor, policy: Policy, probe_dir: Path) -> Made:
    """Return every socket that can be made in a sandbox."""
    async with supervisor.open_sandbox(policy=policy, binds=[probe_bind(probe_dir)]) as sandbox:
        result = await sandbox.run([PROBE, "sockets", PROTOCOLS])
    assert result.ok, result.stderr
    return made_by(result.stdout.decode())


@pytest.mark.parametrize("defence", FILTERED, ids=lambda defence: defence.value)
async def test_only_harmless_sockets_can_be_made(supervisor: Supervisor, probe_dir: Path, defence: Defence) -> None:
    """Rows 34 and 52: local, IP and routing ones, of 64 families, whatever the upper halves of the arguments."""
    made = await sockets_in(supervisor, policy_of(defence), probe_dir)
    netlink = {(kind, protocol) for _, family, kind, protocol in made if family == socket.AF_NETLINK}
    raw = {(family, kind) for _, family, kind, _ in made if family != socket.AF_UNIX and kind in (RAW, OLD_PACKET)}

    families = {family for _, family, _, _ in made}
    assert {socket.AF_UNIX, socket.AF_INET, socket.AF_NETLINK} <= families
    assert families <= {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
    assert {0} == {protocol for _, protocol in netlink}
    assert raw <= {(socket.AF_NETLINK, RAW)}
    assert {socket.AF_UNIX} == {family for call, family, _, _ in made if call == "socketpair"}


async def test_more_sockets_can_be_made_without_filters(supervisor: Supervisor, probe_dir: Path) -> None:
    """Row 34, defence off: the kernel would give out more, though none that reads the network's packets."""
    made = await sockets_in(supervisor, policy_of(Defence.UNFILTERED), probe_dir)
    filtered = await sockets_in(supervisor, policy_of(Defence.DEFAULT), probe_dir)
    families = {family for _, family, _, _ in made}

    assert filtered < made
    assert {0} < {protocol for _, family, _, protocol in made if family == socket.AF_NETLINK}
    assert socket.AF_PACKET not in families
    assert set() == {family for _, family, kind, _ in made if kind == RAW} - {socket.AF_UNIX, socket.AF_NETLINK}


@pytest.mark.usefixtures("state_dir")
def test_packet_and_raw_sockets_can_be_made_outside(probe_dir: Path, tmp_path: Path) -> None:
    """Row 34, defence off: root of the host can make them, so the attempt is sound.

    With two protocols only, since the kernel takes 10 ms or more to close a packet socket.
    """
    skip_without_capability("CAP_NET_RAW")
    made = made_by(run_outside([probe_dir / "probe", "sockets", "2"], tmp_path))

    assert ("socket", socket.AF_INET, RAW, socket.IPPROTO_ICMP) in made
    assert {(family, RAW) for _, family, kind, _ in made if kind == RAW} > {(socket.AF_NETLINK, RAW)}


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_network_cannot_be_changed(supervisor: Supervisor, defence: Defence) -> None:
    """Row 34: interfaces, addresses and routes belong to the host, with all capabilities and without filters too.

    A slot's network serves one sandbox after another, so what one could change would be there for the next.
    """
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        result = await sandbox.run(["python3", "-c", CHANGES])

    assert dict.fromkeys(("take-down", "address", "mtu", "route", "link"), "EPERM") == parse(result.stdout.decode())


def test_network_can_be_changed_outside(tmp_path: Path) -> None:
    """Row 34, defence off: root of the host can change the network that he has made."""
    skip_without_capability("CAP_NET_ADMIN")
    outcomes = parse(run_outside(["python3", "-c", CHANGES], tmp_path))

    assert {"ok"} == {outcomes[name] for name in ("take-down", "address", "mtu", "link")}
    assert outcomes["route"] != "EPERM"


@contextlib.contextmanager
def listener(family: socket.AddressFamily, address: str | tuple[str, int]) -> Iterator[socket.socket]:
    """A socket of the host that listens."""
    with socket.socket(family) as listening:
        listening.bind(address)
        listening.listen()
        yield listening


async def connect_from(sandbox: Sandbox, family: str, address: str) -> str:
    """Return what came of an attempt to connect."""
    result = await sandbox.run(["python3", "-c", CONNECT, family, address])
    assert result.ok, result.stderr
    return result.stdout.decode().strip()


def host_network(policy: Policy) -> Policy:
    """Return a policy with the host's network in place of one of the sandbox's own."""
    return msgspec.structs.replace(policy, network=Network.HOST)


@pytest.mark.parametrize(("network", "outcome"), [(Network.NONE, "ECONNREFUSED"), (Network.HOST, "ok")])
async def test_abstract_socket_of_the_host_is_out_of_reach(
    supervisor: Supervisor, network: Network, outcome: str
) -> None:
    """Row 30: an abstract name belongs to a network namespace. Defence off: with the host's network it is found."""
    name = f"probe-{secrets.token_hex(8)}"
    policy = msgspec.structs.replace(policy_of(Defence.DEFAULT), network=network)
    with listener(socket.AF_UNIX, "\0" + name):
        async with supervisor.open_sandbox(policy=policy) as sandbox:
            reached = await connect_from(sandbox, "unix", "@" + name)

    assert outcome == reached


@pytest.mark.parametrize(("network", "outcome"), [(Network.NONE, "ECONNREFUSED"), (Network.HOST, "ok")])
async def test_loopback_of_the_host_is_out_of_reach(supervisor: Supervisor, network: Network, outcome: str) -> None:
    """Row 30, of TCP: 127.0.0.1 is the sandbox itself. Defence off: with the host's network it is the host."""
    policy = msgspec.structs.replace(policy_of(Defence.DEFAULT), network=network)
    with listener(socket.AF_INET, ("127.0.0.1", 0)) as listening:
        async with supervisor.open_sandbox(policy=policy) as sandbox:
            reached = await connect_from(sandbox, "tcp", str(listening.getsockname()[1]))

    assert outcome == reached


LISTEN = """
import socket, sys, time
listening = socket.socket(socket.AF_UNIX)
listening.bind("\\0" + sys.argv[1])
listening.listen()
print("listening", flush=True)
while True:
    listening.accept()
"""


@pytest.mark.parametrize(("network", "outcome"), [(Network.NONE, "ECONNREFUSED"), (Network.HOST, "ok")])
async def test_abstract_socket_of_a_sibling_is_out_of_reach(
    supervisor: Supervisor, network: Network, outcome: str
) -> None:
    """Row 30, between sandboxes: each has its own names. Defence off: with the host's network they share them."""
    name = f"probe-{secrets.token_hex(8)}"
    policy = msgspec.structs.replace(policy_of(Defence.DEFAULT), network=network)
    async with (
        supervisor.open_sandbox(policy=policy) as listening,
        supervisor.open_sandbox(policy=policy) as connecting,
        trio.open_nursery() as nursery,
    ):
        ready = trio.Event()

        async def listen() -> None:
            await listening.run(["python3", "-c", LISTEN, name], on_stdout=lambda _: ready.set())

        nursery.start_soon(listen)
        await ready.wait()
        own = await connect_from(listening, "unix", "@" + name)
        reached = await connect_from(connecting, "unix", "@" + name)
        nursery.cancel_scope.cancel()

    assert "ok" == own
    assert outcome == reached


async def test_no_socket_of_the_host_has_a_path_inside(supervisor: Supervisor) -> None:
    """Row 31: there is not one socket in all of the root, in /run and wherever daemons keep theirs."""
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run("find / /dev /dev/shm -xdev -type s; ls -A /run /var/run 2>/dev/null")

    assert b"" == result.stdout.replace(b"/run:", b"").strip()


async def test_a_socket_that_is_bound_is_seen_and_reached(supervisor: Supervisor, tmp_path: Path) -> None:
    """Row 31, defence off: where a directory with a socket is shown, it is found, and answers."""
    with listener(socket.AF_UNIX, str(tmp_path / "socket")):
        async with supervisor.open_sandbox(binds=[Bind(source=tmp_path, target="/run/host")]) as sandbox:
            seen = await sandbox.run("find / /run/host -xdev -type s")
            reached = await connect_from(sandbox, "unix", "/run/host/socket")

    assert b"/run/host/socket" == seen.stdout.strip()
    assert "ok" == reached
