"""Limits: each is enforced, whatever the tree of the command does, and each is named as the reason of the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from minisandbox import Bind, ExitReason, FileTransferError, Limits, Sandbox, Supervisor
from tests import observer
from tests.facts import IS_USER_MODE_LINUX, NO_MEMORY_TO_EXECUTE

pytestmark = pytest.mark.enforces("control-groups", "memory-limit", "processes-limit")

MIB = 1 << 20
PROMPT_S = 10.0
HOG = "while :; do :; done"


# ---- time


@pytest.mark.parametrize(
    "script", ["sleep 300", "sleep 300 & sleep 300", "kill -STOP $$", "trap '' TERM INT HUP; while :; do sleep 1; done"]
)
async def test_wall_time_ends_the_whole_tree(sandbox: Sandbox, script: str) -> None:
    """Report 16: asleep, stopped or deaf to signals, it ends with everything that it started."""
    with trio.fail_after(PROMPT_S):
        result = await sandbox.run(script, limits=Limits(wall_time_s=0.2))

    assert (ExitReason.WALL_TIME, 9) == (result.exit_reason, result.signal)
    assert result.usage.wall_time_s >= 0.2
    await observer.wait_no_workload(sandbox)


async def test_a_busy_loop_ends_at_its_wall_time(sandbox: Sandbox) -> None:
    """Report 17: a process that never sleeps is killed as promptly."""
    with trio.fail_after(PROMPT_S):
        result = await sandbox.run(["python3", "-c", "while 1: pass"], limits=Limits(wall_time_s=0.3))

    assert result.exit_reason is ExitReason.WALL_TIME


@pytest.mark.parametrize(
    "script",
    [
        HOG,
        f"trap '' XCPU; {HOG}",
        f"sh -c '{HOG}'",
        f"(setsid sh -c '{HOG}' &); exec sleep 300",
        "while :; do /bin/true; done",
        f"({HOG}) & ({HOG}) & wait",
    ],
    ids=["loop", "ignoring", "child", "double-fork", "short-lived", "two"],
)
async def test_cpu_time_is_that_of_the_whole_tree(sandbox: Sandbox, script: str) -> None:
    """Tool reports 4, 19: forking, short lives or leaving the session do not hide it, and wall time is not blamed."""
    result = await sandbox.run(script, limits=Limits(cpu_time_s=0.2, wall_time_s=30))

    assert result.exit_reason is ExitReason.CPU_TIME
    assert result.usage.cpu_time_s is not None
    assert 0.2 <= result.usage.cpu_time_s < 2


async def test_cpu_time_of_the_background_is_watched(sandbox: Sandbox) -> None:
    """Tool report 31: a daemon that outlives its command is ended when the CPU time of that is used up."""
    # no process of it lives long enough for RLIMIT_CPU
    daemon = f'while :; do timeout 0.1 sh -c "{HOG}"; done'
    result = await sandbox.run(f"(setsid sh -c '{daemon}' &); exit 0", limits=Limits(cpu_time_s=0.3))
    with observer.watched(observer.workload()[:1]) as alive:
        await observer.wait_ended(alive)

    assert (ExitReason.EXITED, 1) == (result.exit_reason, len(alive))


async def test_sleep_is_no_cpu_time(sandbox: Sandbox) -> None:
    """A program that waits longer than its CPU time is not ended for it."""
    result = await sandbox.run(["sleep", "0.5"], limits=Limits(cpu_time_s=0.2))

    assert result.ok


# ---- memory


@pytest.mark.qemu
async def test_too_much_memory_is_the_reason_of_the_end(supervisor: Supervisor) -> None:
    """Report 49, tool report 61: told apart from any other kill, at once, and the sandbox can be used on."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=64 * MIB)) as sandbox:
        with trio.fail_after(PROMPT_S):
            result = await sandbox.run(["python3", "-c", "bytearray(2 << 30)"])
        again = await sandbox.run(["echo", "alive"])

    assert (ExitReason.MEMORY, 9) == (result.exit_reason, result.signal)
    assert result.usage.memory_peak_bytes is None or 32 * MIB < result.usage.memory_peak_bytes <= 64 * MIB
    assert (b"alive\n", ExitReason.EXITED) == (again.stdout, again.exit_reason)


@pytest.mark.parametrize("attempt", range(3))
async def test_a_child_killed_for_memory_is_not_overlooked(supervisor: Supervisor, attempt: int) -> None:
    """Report 49, tool reports 34, 62: a parent that ignores it and says 0 hides nothing; init is not hit."""
    hog = "python3 -c 'bytearray(2 << 30)'"
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=64 * MIB)) as sandbox:
        result = await sandbox.run(f"{hog}; echo {attempt}; exit 0")

    assert (ExitReason.MEMORY, 0, b"%d\n" % attempt) == (result.exit_reason, result.exit_code, result.stdout)


@pytest.mark.parametrize(
    "grab",
    [
        "import mmap; m = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1",
        "import os; f = os.memfd_create('x')\nwhile 1: os.write(f, bytes(1 << 20))",
        "f = open('/tmp/x', 'wb')\nwhile 1: f.write(bytes(1 << 20))",
        "f = open('/dev/shm/x', 'wb')\nwhile 1: f.write(bytes(1 << 20))",
    ],
    ids=["shared", "memfd", "file", "shm"],
)
async def test_memory_is_counted_whatever_holds_it(supervisor: Supervisor, grab: str) -> None:
    """Shared mappings, memory files and the files of the sandbox count, and swap is no way out."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=48 * MIB, disk_bytes=512 * MIB)) as sandbox:
        result = await sandbox.run(["python3", "-c", grab])

    assert result.exit_reason is ExitReason.MEMORY


async def test_neighbours_are_unharmed_by_a_memory_hog(supervisor: Supervisor) -> None:
    """Report 49: a command of another sandbox goes on and is not blamed."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=48 * MIB)) as hog, supervisor.open_sandbox() as other:
        async with trio.open_nursery() as nursery:
            neighbour = await observer.start(nursery, other, "echo on; read x; exit 7", stdin=b"")
            bad = await hog.run(["python3", "-c", "bytearray(2 << 30)"])
            good = (await neighbour.wait()).result

    assert bad.exit_reason is ExitReason.MEMORY
    assert good is not None
    assert (ExitReason.EXITED, 7) == (good.exit_reason, good.exit_code)


async def test_reading_a_large_file_is_no_memory_of_the_program(supervisor: Supervisor, tmp_path: Path) -> None:
    """Tool report 22: the kernel's cache of a file that was read is given back, it does not end the command."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        for _ in range(100):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    bind = Bind(source=tmp_path, target="/mnt/large")
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=24 * MIB), binds=[bind]) as sandbox:
        result = await sandbox.run("cat /mnt/large/large | wc -c")

    assert (ExitReason.EXITED, b"%d\n" % (100 * MIB)) == (result.exit_reason, result.stdout)


async def test_a_megabyte_is_enough_for_hello_world(supervisor: Supervisor) -> None:
    """Tool report 27: a tiny limit is a limit and no failure of ours, also in a slot that was used before."""
    async with supervisor.open_sandbox() as before:
        await before.run(["python3", "-c", "open('/tmp/x', 'wb').write(bytes(64 << 20))"])
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=MIB)) as sandbox:
        small = await sandbox.run(["/bin/echo", "hi"])
        large = await sandbox.run(["python3", "-c", "bytearray(1 << 24)"])

    assert (b"hi\n", ExitReason.EXITED) == (small.stdout, small.exit_reason)
    assert large.exit_reason is ExitReason.MEMORY


@pytest.mark.parametrize("memory_bytes", [1, 4096, 65_536])
async def test_without_memory_no_start_is_mistaken_for_an_exit(supervisor: Supervisor, memory_bytes: int) -> None:
    """Report 49: where not even the start of a program fits, the reason is memory, never an exit code."""
    if IS_USER_MODE_LINUX:
        pytest.skip(NO_MEMORY_TO_EXECUTE)
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=memory_bytes)) as sandbox:
        results = [await sandbox.run(["/bin/echo", "hi"]) for _ in range(5)]

    assert {ExitReason.MEMORY} == {result.exit_reason for result in results}


async def test_files_that_fill_the_memory_do_not_forge_an_exit(supervisor: Supervisor) -> None:
    """Report 49: what cannot be started beside them ends for memory, and runs again when they are gone."""
    limits = Limits(memory_bytes=16 * MIB, disk_bytes=64 * MIB)
    async with supervisor.open_sandbox(limits=limits) as sandbox:
        await sandbox.run("head -c 64M /dev/zero > /tmp/x; kill -9 $$")
        results = [await sandbox.run(["/bin/echo", "hi"]) for _ in range(5)]

    assert {ExitReason.MEMORY} >= {result.exit_reason for result in results if result.stdout != b"hi\n"}


async def test_a_file_written_from_outside_is_memory_of_the_sandbox(supervisor: Supervisor) -> None:
    """What `write_file` puts there is charged as if a command had written it, and bound by the same limit."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=48 * MIB)) as sandbox:
        await sandbox.write_file("/tmp/fits", bytes(24 * MIB))
        held = (await sandbox.run(["true"])).usage.memory_held_bytes
        with pytest.raises(FileTransferError, match="memory"):
            await sandbox.write_file("/tmp/does-not", bytes(48 * MIB))
        after = await sandbox.run(["ls", "/tmp"])

    assert held is None or held > 20 * MIB
    assert after.exit_reason is ExitReason.EXITED


# ---- accounting


CPU_LIMIT_S, IDLE_CPU_S = (0.3, 0.25) if IS_USER_MODE_LINUX else (0.1, 0.05)
"""A limit, and less of it, which a program needs that does nothing: fork and exec cost 8 times as much there."""


async def test_the_second_run_starts_at_zero(sandbox: Sandbox) -> None:
    """Tool reports 20, 21: CPU time, memory peak, processes and reasons of one command are not those of the next."""
    work = (
        "x = bytearray(64 << 20)\nfor _ in range(3000000): pass\nimport os\nfor _ in range(5): os.fork() or os._exit(0)"
    )
    first = (await sandbox.run(["python3", "-c", work])).usage
    await sandbox.run(HOG, limits=Limits(cpu_time_s=CPU_LIMIT_S))
    second = await sandbox.run(["true"], limits=Limits(cpu_time_s=CPU_LIMIT_S))
    usage = second.usage

    assert second.exit_reason is ExitReason.EXITED
    assert first.cpu_time_s is not None and usage.cpu_time_s is not None
    assert first.cpu_time_s > 0.05
    assert usage.cpu_time_s < IDLE_CPU_S
    assert usage.cpu_time_s < first.cpu_time_s / 2
    assert first.memory_peak_bytes is None or first.memory_peak_bytes > 64 * MIB
    assert usage.memory_peak_bytes is None or usage.memory_peak_bytes < 8 * MIB
    assert first.processes_peak is None or first.processes_peak >= 2
    assert usage.processes_peak in (None, 1)


async def test_a_limit_does_not_outlive_its_sandbox(supervisor: Supervisor) -> None:
    """Tool report 21: the next sandbox in the same slot has its own limits, larger or none."""
    grow = ["python3", "-c", "bytearray(100 << 20)"]
    reasons = []
    for limits in (Limits(memory_bytes=48 * MIB), Limits(memory_bytes=512 * MIB), Limits(memory_bytes=48 * MIB)):
        async with supervisor.open_sandbox(limits=limits) as sandbox:
            reasons.append((await sandbox.run(grow)).exit_reason)

    assert [ExitReason.MEMORY, ExitReason.EXITED, ExitReason.MEMORY] == reasons


async def test_usage_is_what_happened(sandbox: Sandbox) -> None:
    """Wall and CPU seconds, processes, bytes written out and bytes on the disk are plausible, each on its own."""
    script = "head -c 3000000 /dev/zero > /tmp/x; sleep 0.2 & sleep 0.2; wait; printf 12345; printf 123 >&2"
    usage = (await sandbox.run(script)).usage

    assert 0.2 <= usage.wall_time_s < 10
    assert usage.cpu_time_s is not None and 0 < usage.cpu_time_s < usage.wall_time_s
    assert usage.processes_peak in (None, 3)
    assert (5, 3) == (usage.stdout_bytes, usage.stderr_bytes)
    assert 3_000_000 <= usage.disk_bytes < 3_100_000
    assert usage.memory_peak_bytes is None or 2_500_000 < usage.memory_peak_bytes < 20_000_000


async def test_files_and_background_processes_are_held_memory(sandbox: Sandbox) -> None:
    """What was there when the command began is told apart from what the command took."""
    await sandbox.run("head -c 32M /dev/zero > /tmp/x")
    usage = (await sandbox.run(["true"])).usage

    assert usage.memory_held_bytes is None or 30 * MIB < usage.memory_held_bytes < 48 * MIB
    assert usage.memory_peak_bytes is None or usage.memory_peak_bytes < 8 * MIB
