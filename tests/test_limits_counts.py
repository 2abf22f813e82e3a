"""Limits that count things: processes, bytes and inodes on the disk, open files; and the share of the processors."""

from __future__ import annotations

import pytest
import trio

from minisandbox import ExitReason, Limits, Sandbox, Supervisor
from tests import observer

pytestmark = pytest.mark.enforces("control-groups", "memory-limit", "processes-limit")

MIB = 1 << 20
PROMPT_S = 20.0


# ---- processes


@pytest.mark.parametrize(
    "bomb",
    [
        "f() { f | f & }; f; exec sleep 300",
        "while :; do sleep 300 & done",
        "python3 -c 'import os\nwhile 1:\n try: os.fork()\n except OSError: pass'",
        "while :; do setsid sh -c 'sleep 300 &' & done",
    ],
    ids=["pipes", "sleepers", "doubling", "daemons"],
)
async def test_a_fork_bomb_stops_at_its_limit(sandbox: Sandbox, bomb: str) -> None:
    """Tool report 60: it is killed as a whole, nothing of it stays, and the next command runs."""
    with trio.fail_after(PROMPT_S):
        result = await sandbox.run(bomb, limits=Limits(processes=30, wall_time_s=30))
        again = await sandbox.run(["echo", "alive"])

    assert result.exit_reason is ExitReason.PROCESSES
    assert result.usage.processes_peak in (None, *range(28, 31))
    assert again.stdout == b"alive\n"
    await observer.wait_no_workload(sandbox)
    assert [] == observer.zombies()


async def test_one_process_is_enough_for_one(sandbox: Sandbox) -> None:
    """Tool report 61: with a limit of one a program runs, and what forks is told so."""
    alone = await sandbox.run(["echo", "hi"], limits=Limits(processes=1))
    forking = await sandbox.run("/bin/true; echo never", limits=Limits(processes=1))

    assert (b"hi\n", ExitReason.EXITED) == (alone.stdout, alone.exit_reason)
    assert forking.exit_reason is ExitReason.PROCESSES


async def test_threads_are_counted_like_processes(sandbox: Sandbox) -> None:
    """They are what the kernel's limit is about."""
    script = "import threading as t; e = t.Event(); [t.Thread(target=e.wait, daemon=True).start() for _ in range({})]"
    few = await sandbox.run(["python3", "-c", script.format(15)], limits=Limits(processes=20))
    many = await sandbox.run(["python3", "-c", script.format(25)], limits=Limits(processes=20))

    assert [ExitReason.EXITED, ExitReason.PROCESSES] == [few.exit_reason, many.exit_reason]


async def test_a_bomb_does_not_take_the_neighbours_processes(supervisor: Supervisor) -> None:
    """Each sandbox has a count of its own."""
    async with supervisor.open_sandbox(limits=Limits(processes=20)) as bomb, supervisor.open_sandbox() as other:
        with trio.fail_after(PROMPT_S):
            bad = await bomb.run("while :; do sleep 300 & done")
        good = await other.run(["python3", "-c", "import subprocess; [subprocess.Popen('true') for _ in range(40)]"])

    assert [ExitReason.PROCESSES, ExitReason.EXITED] == [bad.exit_reason, good.exit_reason]


@pytest.mark.slow
async def test_orphans_are_reaped(sandbox: Sandbox) -> None:
    """Tool report 6: four times as many orphans as there may be processes, and no fork is refused for zombies."""
    script = "import os\nfor _ in range(1000):\n if os.fork() == 0: os.fork(); os._exit(0)\n os.wait()"
    result = await sandbox.run(["python3", "-c", script], limits=Limits(processes=250))

    assert (ExitReason.EXITED, 0, b"") == (result.exit_reason, result.exit_code, result.stderr)
    await observer.wait_no_workload(sandbox)


async def test_a_pool_of_processes_works(sandbox: Sandbox) -> None:
    """Tool report 18: semaphores in /dev/shm, queues and threads of multiprocessing."""
    script = "import multiprocessing as m; p = m.Pool(4); print(sum(p.map(abs, range(-99, 0)))); p.terminate()"
    result = await sandbox.run(["python3", "-c", script])

    assert (b"4950\n", b"") == (result.stdout, result.stderr)


# ---- disk


@pytest.mark.parametrize("place", ["/tmp", "/root", "/run", "/dev/shm", "/etc", "/usr/../opt"])
async def test_disk_bytes_hold_wherever_they_are_written(supervisor: Supervisor, place: str) -> None:
    """The program is told that the disk is full, and the reason is named when it fails."""
    async with supervisor.open_sandbox(limits=Limits(disk_bytes=4 * MIB)) as sandbox:
        result = await sandbox.run(f"head -c 16M /dev/zero > {place}/x")
        after = await sandbox.run(f"rm {place}/x; echo alive; echo more > /tmp/y")

    assert (ExitReason.DISK, 4 * MIB) == (result.exit_reason, result.usage.disk_bytes)
    assert b"No space left" in result.stderr
    assert (b"alive\n", ExitReason.EXITED) == (after.stdout, after.exit_reason)


async def test_many_small_files_fill_the_disk_as_one_large_one(supervisor: Supervisor) -> None:
    """Tool report 18: the limit is of the sum, over /tmp and /dev/shm together."""
    script = "for i in range(100): open(('/tmp/%d', '/dev/shm/%d')[i % 2] % i, 'wb').write(bytes(100_000))"
    async with supervisor.open_sandbox(limits=Limits(disk_bytes=4 * MIB)) as sandbox:
        result = await sandbox.run(["python3", "-c", script])

    assert result.exit_reason is ExitReason.DISK
    assert 4 * MIB - 100_000 < result.usage.disk_bytes <= 4 * MIB


@pytest.mark.parametrize(
    "make",
    [": > /tmp/{}", "mkdir /tmp/{}", "ln -s x /run/{}", "mkfifo /dev/shm/{}"],
    ids=["file", "dir", "link", "fifo"],
)
async def test_disk_inodes_hold_for_everything_that_has_a_name(supervisor: Supervisor, make: str) -> None:
    """Empty files fill the disk as well."""
    script = "i=0; while " + make.format("$i") + " 2>&1; do i=$((i+1)); done; exit 3"
    async with supervisor.open_sandbox(limits=Limits(disk_inodes=64)) as sandbox:
        result = await sandbox.run(script)

    assert (ExitReason.DISK, 64) == (result.exit_reason, result.usage.disk_inodes)


async def test_a_full_disk_is_not_blamed_for_a_success(supervisor: Supervisor) -> None:
    """A program that copes with it ended by itself."""
    async with supervisor.open_sandbox(limits=Limits(disk_bytes=MIB)) as sandbox:
        result = await sandbox.run("head -c 16M /dev/zero > /tmp/x; exit 0")

    assert result.ok


@pytest.mark.slow
async def test_a_storm_of_names_costs_no_memory(supervisor: Supervisor) -> None:
    """Tool report 60: files that are made and removed over and over leave nothing behind."""
    script = "import os\nfor i in range(20000):\n open('/tmp/%d' % i, 'w').close(); os.unlink('/tmp/%d' % i)"
    async with supervisor.open_sandbox(limits=Limits(disk_inodes=100, memory_bytes=32 * MIB)) as sandbox:
        before = (await sandbox.run(["true"])).usage.disk_inodes
        result = await sandbox.run(["python3", "-c", script])

    assert (ExitReason.EXITED, 0) == (result.exit_reason, result.exit_code)
    assert result.usage.disk_inodes <= before + 1  # /tmp itself, once it was changed


# ---- the rest


async def test_open_files_are_limited(sandbox: Sandbox) -> None:
    """A process has no more descriptors than that, and cannot raise it."""
    script = "import os, resource as r; n = r.RLIMIT_NOFILE; print(*r.getrlimit(n)); [os.dup(0) for _ in range(40)]"
    result = await sandbox.run(["python3", "-c", script], limits=Limits(open_files=32))
    raised = await sandbox.run("ulimit -n 64", limits=Limits(open_files=32))

    assert (b"32 32\n", 1) == (result.stdout, result.exit_code)
    assert b"Too many open files" in result.stderr
    assert raised.exit_code != 0


async def test_cpus_is_a_share_of_the_processors(supervisor: Supervisor) -> None:
    """At a fifth of a processor, two busy loops get a fifth of the wall time together."""
    async with supervisor.open_sandbox(limits=Limits(cpus=0.2)) as sandbox:
        script = "while :; do :; done & while :; do :; done"
        usage = (await sandbox.run(script, limits=Limits(wall_time_s=1.0))).usage

    assert usage.cpu_time_s is not None
    assert usage.cpu_time_s < 0.4 * usage.wall_time_s


async def test_no_core_is_dumped(sandbox: Sandbox) -> None:
    """A crash writes nothing, inside or outside, even when the program asks for it."""
    result = await sandbox.run("cd /tmp; ulimit -c unlimited 2>/dev/null; sh -c 'kill -SEGV $$'; ls /tmp; ulimit -c")

    assert result.stdout == b"0\n"
