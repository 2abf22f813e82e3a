"""Taking more than a limit allows, by evasion: children, orphans, many small ones. What it leaves is nothing."""

from __future__ import annotations

import psutil
import pytest
import trio

from minisandbox import ExitReason, Limits, Sandbox, Supervisor
from minisandbox.kernel.protocol import SLOT_IDS


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


@pytest.mark.requires_root
@pytest.mark.parametrize("way", ["fork", "daemon", "thread"])
@pytest.mark.parametrize(("limit", "reason"), [(24, ExitReason.PROCESSES), (400, ExitReason.EXITED)], ids=["on", "off"])
async def test_fork_bomb_stops_at_its_limit(supervisor: Supervisor, way: str, limit: int, reason: ExitReason) -> None:
    """Row 36: processes, daemons and threads count; all are killed and reaped. Defence off: more are allowed."""
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


@pytest.mark.requires_root
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


@pytest.mark.requires_root
async def test_no_orphan_survives_its_sandbox(supervisor: Supervisor) -> None:
    """Row 37: daemons without a parent, whose main process is long gone. Defence off: they outlive their command."""
    code = ORPHANS + "for _ in range(20): orphan(lambda: time.sleep(600))\ntime.sleep(0.05)"
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run(["python3", "-c", code])
        between = len(processes_of(sandbox))

    assert result.ok
    assert 21 == between
    assert [] == processes_of(sandbox)


@pytest.mark.enforces("control-groups", "processes-limit")
@pytest.mark.parametrize(
    "code",
    [
        ORPHANS + "orphan(burn)\ntime.sleep(60)",
        ORPHANS + "[orphan(burn) for _ in range(4)]\ntime.sleep(60)",
        "import os\nwhile True:\n if os.fork() == 0: [None for _ in range(100000)]; os._exit(0)\n os.wait()",
        "import os\nfor _ in range(10):\n if os.fork(): os.wait(); os._exit(0)\nwhile True: pass",
        "import os, subprocess\nwhile True: subprocess.run(['/bin/true'])",
        "from resource import *\nsetrlimit(RLIMIT_CPU, (1, getrlimit(RLIMIT_CPU)[1]))\nwhile True: pass",
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
