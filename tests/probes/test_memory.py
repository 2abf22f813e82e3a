"""Taking memory, in every way that there is and whoever takes it: the limit of the sandbox holds for all together."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from minisandbox import ExitReason, Limits, Supervisor

pytestmark = pytest.mark.enforces("memory-limit")

MIB = 1 << 20

EAT = """
import fcntl, mmap, os, sys
MIB = 1 << 20
way, most = sys.argv[1], int(sys.argv[2])

def take(mib):
    held = bytearray(mib * MIB)
    for place in range(0, len(held), 4096):
        held[place] = 1
    return held

def child():
    if os.fork() == 0:
        take(most)
        os._exit(0)
    os.wait()

def orphan():
    read_fd, write_fd = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            take(most)
        os._exit(0)
    os.close(write_fd)
    os.read(read_fd, 1)

def many():
    ready, say_ready = os.pipe()
    over, say_over = os.pipe()
    for _ in range(12):
        if os.fork() == 0:
            os.close(say_over)
            held = take(most // 12)
            os.close(say_ready)
            os.read(over, 1)
            os._exit(0)
    os.close(say_ready)
    os.read(ready, 1)
    os.close(say_over)
    for _ in range(12):
        os.wait()

def mapped():
    held = mmap.mmap(-1, most * MIB)
    for place in range(0, len(held), 4096):
        held[place] = 1

def write(fd):
    for _ in range(most):
        os.write(fd, bytes(MIB))

def pipes():
    held = [os.pipe() for _ in range(most)]
    try:
        for _, write_fd in held:
            fcntl.fcntl(write_fd, 1031, MIB)
            os.write(write_fd, bytes(MIB))
    except PermissionError:  # a user has 64 MiB of large pipes at most (pipe(7), pipe-user-pages-soft)
        pass

{
    "itself": lambda: take(most),
    "child": child,
    "orphan": orphan,
    "many": many,
    "mapped": mapped,
    "pipes": pipes,
    "memory file": lambda: write(os.memfd_create("x")),
    "shared memory": lambda: write(os.open("/dev/shm/x", os.O_CREAT | os.O_WRONLY)),
    "files": lambda: write(os.open("/tmp/x", os.O_CREAT | os.O_WRONLY)),
}[way]()
"""
"""Takes so many MiB in one way, and frees them."""

ALONE = ("itself", "mapped", "memory file")
"""Ways in which the main process is the one that is killed."""


@pytest.mark.parametrize("way", [*ALONE, "child", "orphan", "many", "pipes", "shared memory", "files"])
@pytest.mark.parametrize(("limit_bytes", "over"), [(48 * MIB, True), (256 * MIB, False)], ids=["on", "off"])
async def test_memory_is_that_of_the_whole_sandbox(
    supervisor: Supervisor, way: str, limit_bytes: int, over: bool
) -> None:
    """Row 43: whoever takes it and whatever for; init lives on. Defence off: with room enough nobody is killed."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=limit_bytes, wall_time_s=60)) as sandbox:
        result = await sandbox.run(["python3", "-c", EAT, way, "96"])
        await sandbox.kill_all()
        await sandbox.run("rm -f /tmp/x /dev/shm/x")
        after = await sandbox.run(["echo", "serves"])

    assert over is (ExitReason.MEMORY is result.exit_reason)
    assert over or result.ok
    assert b"serves\n" == after.stdout
    if way in ALONE and over:
        assert signal.SIGKILL == result.signal


async def test_memory_of_a_killed_command_is_counted_before_it_is_gone(supervisor: Supervisor) -> None:
    """Row 43: the reason comes from a counter that goes with its group; again and again it is read in time."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=32 * MIB)) as sandbox:
        reasons = {(await sandbox.run(["python3", "-c", EAT, "itself", "64"])).exit_reason for _ in range(5)}

    assert {ExitReason.MEMORY} == reasons


SOCKETS = """
import socket
held = []
def tcp():
    listening = socket.create_server(("127.0.0.1", 0))
    sent = 0
    while sent < 160 << 20 and len(held) < 800:
        sending = socket.socket()
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        sending.connect(listening.getsockname())
        sending.setblocking(False)
        held.extend((sending, listening.accept()))
        try:
            while True: sent += sending.send(bytes(1 << 20))
        except BlockingIOError:
            pass
def udp():
    for _ in range(600):
        sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sending.bind(("127.0.0.1", 0))
        sending.setblocking(False)
        held.append(sending)
        for _ in range(8):
            try:
                sending.sendto(bytes(60000), sending.getsockname())
            except OSError:
                break
"""
"""Fills as many buffers of sockets as it can, over its own loopback, and reads nothing."""


def socket_buffer_bytes(protocol: str) -> int:
    """Return what the buffers of a protocol take on this host, in all networks together (proc_pid_net(5))."""
    (line,) = (
        line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith(protocol.upper() + ":")
    )
    words = line.split()
    return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize(("limit_bytes", "over"), [(48 * MIB, False), (1024 * MIB, True)], ids=["on", "off"])
async def test_socket_buffers_are_memory_of_the_sandbox(
    supervisor: Supervisor, protocol: str, limit_bytes: int, over: bool
) -> None:
    """Row 43: what is sent and never read counts, too. Defence off: with a limit far above it takes what it wants."""
    code = f"{SOCKETS}\n{protocol}()\nprint('full', flush=True)\nimport time\ntime.sleep(60)"
    before = socket_buffer_bytes(protocol)
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=limit_bytes)) as sandbox:
        async with await sandbox.start(["python3", "-c", code]) as process:
            await process.stdout.receive_some()
            taken = socket_buffer_bytes(protocol) - before
        after = await sandbox.run(["echo", "serves"])

    assert over is (taken > 64 * MIB)
    assert b"serves\n" == after.stdout
