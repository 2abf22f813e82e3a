"""Taking more than a limit allows, by evasion: children, orphans, many small ones, floods. What it leaves is nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import trio

from minisandbox import ExitReason, Limits, Sandbox, Supervisor
from minisandbox.kernel.protocol import SLOT_IDS

pytestmark = pytest.mark.requires_root


def processes_of(sandbox: Sandbox) -> list[psutil.Process]:
    """Return every process of the host that has an id of the sandbox's slot, init's among them."""
    found = []
    for process in psutil.process_iter():
        try:
            if 0 <= process.uids().real - sandbox.slot.uid_base < SLOT_IDS:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


FORKS = """
import os, sys, threading, time
way, wanted = sys.argv[1], int(sys.argv[2])
def fork():
    if os.fork() == 0:
        time.sleep(30)
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(30)
        os._exit(0)
def thread():
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
for _ in range(wanted):
    {"fork": fork, "daemon": daemon, "thread": thread}[way]()
os._exit(0)
"""


@pytest.mark.parametrize("way", ["fork", "daemon", "thread"])
@pytest.mark.parametrize(("limit", "reason"), [(24, ExitReason.PROCESSES), (400, ExitReason.EXITED)], ids=["on", "off"])
async def test_fork_bomb_stops_at_its_limit(
    supervisor: Supervisor, way: str, limit: int, reason: ExitReason
) -> None:
    """Row 36: processes, daemons and threads count alike; all are killed and reaped. Defence off: a limit above stops none."""
    async with supervisor.open_sandbox(limits=Limits(processes=limit, wall_time_s=20)) as sandbox:
        result = await sandbox.run(["python3", "-c", FORKS, way, "100"])
        at_end = len(processes_of(sandbox))
        await sandbox.kill_all()
        after = await sandbox.run(["echo", "serves"])
        with trio.fail_after(5):  # until init has reaped them: what is left over is init
            while len(processes_of(sandbox)) > 1:
                await trio.lowlevel.checkpoint()

    assert reason is result.exit_reason
    assert b"serves\n" == after.stdout
    assert [] == processes_of(sandbox)
    if reason is ExitReason.PROCESSES:
        assert at_end <= limit + 1
        assert result.usage.processes_peak is None or result.usage.processes_peak <= limit


async def test_forking_for_ever_leaves_the_host_alone(supervisor: Supervisor) -> None:
    """Row 36: a tree whose every member forks; other sandboxes start as before, and it is gone with its sandbox."""
    code = "import os\nwhile True:\n try: os.fork()\n except OSError: pass\n"
    async with (
        supervisor.open_sandbox(limits=Limits(processes=64, wall_time_s=0.5)) as bomb,
        supervisor.open_sandbox() as other,
    ):
        results = []

        async def explode() -> None:
            results.append(await bomb.run(["python3", "-c", code]))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(explode)
                answers = [(await other.run(["echo", "fine"])).stdout for _ in range(10)]

    assert [b"fine\n"] * 10 == answers
    assert results[0].exit_reason in (ExitReason.PROCESSES, ExitReason.WALL_TIME)
    assert [] == processes_of(bomb)


ORPHANS = """
import os, sys, time
def orphan(then):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            then()
        os._exit(0)
def burn():
    while True:
        pass
"""


async def test_no_orphan_survives_its_sandbox(supervisor: Supervisor) -> None:
    """Row 37: daemons without end or parent, whose main process is long gone. Defence off: they outlive their command."""
    code = ORPHANS + "for _ in range(20): orphan(lambda: time.sleep(600))\ntime.sleep(0.05)"
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run(["python3", "-c", code])
        between = len(processes_of(sandbox))

    assert result.ok
    assert 21 == between
    assert [] == processes_of(sandbox)


@pytest.mark.parametrize(
    "code",
    [
        ORPHANS + "orphan(burn)\ntime.sleep(60)",
        ORPHANS + "[orphan(burn) for _ in range(4)]\ntime.sleep(60)",
        "import os\nwhile True:\n if os.fork() == 0: [None for _ in range(100000)]; os._exit(0)\n os.wait()",
        "import os\nfor _ in range(10):\n if os.fork(): os.wait(); os._exit(0)\nwhile True: pass",
        "import os, subprocess\nwhile True: subprocess.run(['/bin/true'])",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, resource.getrlimit(resource.RLIMIT_CPU)[1]))\nwhile True: pass",
    ],
    ids=["orphan", "orphans", "short children", "chain", "short programs", "itself"],
)
async def test_cpu_time_is_that_of_the_whole_tree(supervisor: Supervisor, code: str) -> None:
    """Rows 37 and 38: nobody in the tree comes near the limit of a process (RLIMIT_CPU), and yet it ends.

    Defence off: with a limit on wall time alone, the same program goes on until that.
    """
    async with supervisor.open_sandbox(limits=Limits(processes=64)) as sandbox:
        with trio.fail_after(15):
            limited = await sandbox.run(["python3", "-c", code], limits=Limits(cpu_time_s=0.25, wall_time_s=10))
            free = await sandbox.run(["python3", "-c", code], limits=Limits(wall_time_s=0.5))

    assert ExitReason.CPU_TIME is limited.exit_reason
    assert limited.usage.cpu_time_s is not None
    assert 0.2 < limited.usage.cpu_time_s < 1.5
    assert free.exit_reason in (ExitReason.WALL_TIME, ExitReason.PROCESSES)


MIB = 1 << 20
EAT = "x = bytearray({0}); [x.__setitem__(i, 1) for i in range(0, {0}, 4096)]"
EATERS = {
    "itself": EAT.format(96 * MIB),
    "child": f"import os\nif os.fork() == 0:\n {EAT.format(96 * MIB)}\n os._exit(0)\nprint(os.wait()[1])",
    "orphan": ORPHANS + f"r, w = os.pipe()\norphan(lambda: exec({EAT.format(96 * MIB)!r}))\nos.close(w)\nos.read(r, 1)",
    "mapped": f"import mmap\nx = mmap.mmap(-1, {96 * MIB})\nfor i in range(0, {96 * MIB}, 4096): x[i] = 1",
    "memory file": f"import os\nfd = os.memfd_create('x')\nfor _ in range(96): os.write(fd, bytes({MIB}))",
    "shared memory": f"f = open('/dev/shm/x', 'wb', 0)\nfor _ in range(96): f.write(bytes({MIB}))",
    "files": f"f = open('/tmp/x', 'wb', 0)\nfor _ in range(96): f.write(bytes({MIB}))",
    "pipes": "import os, fcntl\nh = [os.pipe() for _ in range(100)]\nfor r, w in h:\n fcntl.fcntl(w, 1031, 1 << 20); os.write(w, bytes(1 << 20))",
    "many": f"import os, time\nfor _ in range(12):\n if os.fork() == 0:\n  {EAT.format(8 * MIB)}\n  time.sleep(0.5); os._exit(0)\n[os.wait() for _ in range(12)]",
}


@pytest.mark.parametrize("way", EATERS)
@pytest.mark.parametrize(("limit_bytes", "over"), [(48 * MIB, True), (256 * MIB, False)], ids=["on", "off"])
async def test_memory_is_that_of_the_whole_sandbox(
    supervisor: Supervisor, way: str, limit_bytes: int, over: bool
) -> None:
    """Row 43: whoever takes it and whatever for; init lives on. Defence off: with room enough nobody is killed."""
    limits = Limits(memory_bytes=limit_bytes, wall_time_s=10)
    async with supervisor.open_sandbox(limits=limits) as sandbox:
        result = await sandbox.run(["python3", "-c", EATERS[way]])
        await sandbox.kill_all()
        await sandbox.run("rm -f /tmp/x /dev/shm/x")
        after = await sandbox.run(["echo", "serves"])

    assert over is (ExitReason.MEMORY is result.exit_reason)
    assert b"serves\n" == after.stdout
    if way in ("itself", "mapped", "memory file") and over:
        assert signal.SIGKILL == result.signal


async def test_memory_of_a_killed_command_is_counted_before_it_is_gone(sandbox: Sandbox) -> None:
    """Row 43: the reason comes from a counter that goes with its group; again and again it is read in time."""
    limits = Limits(wall_time_s=10)
    code = EAT.format(1 << 30)
    reasons = {(await sandbox.run(["python3", "-c", code], limits=limits)).exit_reason for _ in range(3)}

    assert {ExitReason.MEMORY} == reasons


SOCKETS = """
import socket
held = []
def tcp():
    listening = socket.create_server(("127.0.0.1", 0))
    for _ in range(60):
        sending = socket.socket()
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        sending.connect(listening.getsockname())
        sending.setblocking(False)
        held.extend((sending, listening.accept()))
        try:
            while sending.send(bytes(1 << 20)): pass
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
    (line,) = (line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith(protocol.upper() + ":"))
    words = line.split()
    return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize(("limit_bytes", "over"), [(48 * MIB, False), (1024 * MIB, True)], ids=["on", "off"])
async def test_socket_buffers_are_memory_of_the_sandbox(
    supervisor: Supervisor, protocol: str, limit_bytes: int, over: bool
) -> None:
    """Row 43: what is sent and never read counts, too. Defence off: with a limit far above it takes as much as it wants."""
    code = f"{SOCKETS}\n{protocol}()\nprint('full', flush=True)\nimport time\ntime.sleep(60)"
    before = socket_buffer_bytes(protocol)
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=limit_bytes)) as sandbox:
        async with await sandbox.start(["python3", "-c", code]) as process:
            await process.stdout.receive_some()
            taken = socket_buffer_bytes(protocol) - before
        after = await sandbox.run(["echo", "serves"])

    assert over is (taken > 64 * MIB)
    assert b"serves\n" == after.stdout
