"""Many at once: starts, commands and ends do not wait for each other, and what is used is given back."""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import trio

from minisandbox import Bind, BusyError, DeadlineError, ExitReason, Limits, Sandbox, Supervisor, open_supervisor
from minisandbox.kernel.protocol import RUNS_MAX
from tests import observer

START_S = 20.0
"""What each start may take here. Alone it takes a few milliseconds."""


@contextlib.contextmanager
def file_system_that_never_answers(place: Path) -> Iterator[None]:
    """Mount a FUSE file system whose server reads no request: whoever asks for an attribute waits (fuse.rst)."""
    server_fd = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={server_fd},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"stuck", os.fsencode(place), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    try:
        yield
    finally:
        os.close(server_fd)
        libc.umount2(os.fsencode(place), 2)  # MNT_DETACH


@pytest.fixture
async def no_parking(state_dir: Path) -> AsyncIterator[Supervisor]:
    """A supervisor that starts sandboxes only when they are asked for."""
    async with open_supervisor(state_dir=state_dir, max_parked=0) as supervisor:
        yield supervisor


needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="the host has no /dev/fuse")


@needs_fuse
@pytest.mark.requires_root
async def test_a_start_that_never_becomes_ready_holds_no_other(no_parking: Supervisor, tmp_path: Path) -> None:
    """Report 1, tool report 40: of 64 starts at once one hangs in the kernel; the others are ready in time."""
    supervisor, ready = no_parking, []

    async def open_one(number: int) -> None:
        with trio.fail_after(START_S):
            async with supervisor.open_sandbox() as sandbox:
                result = await sandbox.run(["echo", str(number)])
                ready.append(result.stdout)

    async def open_stuck() -> None:
        async with supervisor.open_sandbox(binds=[Bind(source=tmp_path, target="/mnt/stuck")]):
            ready.append(b"impossible")

    with file_system_that_never_answers(tmp_path):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_stuck)
            async with trio.open_nursery() as others:
                for number in range(63):
                    others.start_soon(open_one, number)
            waiting = len(observer.inits())
            begun = trio.current_time()
            nursery.cancel_scope.cancel()
        took = trio.current_time() - begun

    assert sorted(b"%d\n" % number for number in range(63)) == sorted(ready)
    assert (1, 0, ()) == (waiting, supervisor.live, supervisor.quarantined)
    assert took < START_S


@needs_fuse
@pytest.mark.requires_root
async def test_a_start_has_a_deadline(supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tool report 40: a start that hangs is given up, retryable, and leaves nothing."""
    monkeypatch.setattr("minisandbox.runtime.starting.STEP_DEADLINE_S", 0.3)
    with file_system_that_never_answers(tmp_path):
        with trio.fail_after(START_S), pytest.raises(DeadlineError, match="ready") as caught:
            async with supervisor.open_sandbox(binds=[Bind(source=tmp_path, target="/mnt/stuck")]):
                pass

    assert caught.value.retryable
    assert ([], 0, ()) == (observer.inits(), supervisor.live, supervisor.quarantined)


@pytest.mark.slow
async def test_a_burst_of_starts_is_served_evenly(state_dir: Path) -> None:
    """Reports 2, 4: of 200 starts at once none fails, and the slowest are not far behind the middle."""
    took: list[float] = []

    async def open_one() -> None:
        begun = trio.current_time()
        async with supervisor.open_sandbox() as sandbox:
            took.append(trio.current_time() - begun)
            assert (await sandbox.run(["true"])).ok

    async with open_supervisor(state_dir=state_dir, max_sandboxes=256) as supervisor:
        async with supervisor.open_sandbox():
            pass
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(open_one)
    took.sort()

    assert len(took) == 200
    assert took[197] < 5 * statistics.median(took)


async def test_sandboxes_run_at_the_same_time(supervisor: Supervisor) -> None:
    """Twenty that sleep take about as long as one."""
    begun = trio.current_time()

    async def sleep() -> None:
        async with supervisor.open_sandbox() as sandbox:
            assert (await sandbox.run(["sleep", "1"])).ok

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(sleep)

    assert trio.current_time() - begun < 10


@pytest.mark.slow
async def test_a_thousand_short_commands(sandbox: Sandbox) -> None:
    """Tool report 42: a program that is gone before anybody looks is reported like any other, each time."""
    reasons = [(await sandbox.run(["true"])).exit_reason for _ in range(1000)]

    assert {ExitReason.EXITED} == set(reasons)
    assert [] == observer.zombies()


@pytest.mark.slow
async def test_opening_and_closing_over_and_over_uses_nothing_up(no_parking: Supervisor, state_dir: Path) -> None:
    """Reports 3, 9: after 300 sandboxes there are as many descriptors, processes and files as before."""
    took = []
    for number in range(310):
        begun = time.perf_counter()
        async with no_parking.open_sandbox() as sandbox:
            took.append(time.perf_counter() - begun)
            await sandbox.run(["true"])
        if number == 10:
            before = counted(state_dir)
    after = counted(state_dir)

    assert before == after
    assert [] == observer.zombies()
    assert statistics.median(took[-100:]) < 3 * statistics.median(took[10:110])


def counted(state_dir: Path) -> tuple[list[str], int, int, list[str]]:
    """Count what could leak: our descriptors, the launcher's, its children, the state directory's entries."""
    launcher = observer.launcher()
    entries = sorted(str(path) for path in state_dir.rglob("*") if "rootfs" not in path.parts)
    return observer.descriptors(), launcher.num_fds(), len(launcher.children()), entries


@pytest.mark.slow
async def test_timed_out_commands_leave_no_zombie(sandbox: Sandbox) -> None:
    """Report 12: a hundred of them, five at a time."""

    async def time_out() -> None:
        for _ in range(20):
            result = await sandbox.run("sleep 300 & sleep 300", limits=Limits(wall_time_s=0.01))
            assert result.exit_reason is ExitReason.WALL_TIME

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(time_out)

    await observer.wait_no_workload(sandbox)
    assert [] == observer.zombies()


async def test_descriptors_return_to_the_baseline(state_dir: Path) -> None:
    """A supervisor that is closed has given back every one, whatever happened in it."""
    async with open_supervisor(state_dir=state_dir) as supervisor, supervisor.open_sandbox():
        pass
    before = observer.descriptors()
    async with open_supervisor(state_dir=state_dir) as supervisor:
        async with supervisor.open_sandbox(terminal=True) as sandbox, supervisor.open_sandbox() as other:
            await sandbox.run("echo x; sleep 300 &", stdin=b"x")
            await other.write_file("/tmp/x", b"x")
            with trio.move_on_after(0.05):
                await other.run("exec sleep 300")

    assert before == observer.descriptors()


async def test_more_commands_at_once_than_a_sandbox_serves(sandbox: Sandbox) -> None:
    """256 run side by side; the one too many is told that the sandbox is busy, and harms no other."""
    commands = [observer.Running() for _ in range(RUNS_MAX + 1)]

    async with trio.open_nursery() as nursery:
        for command in commands:
            nursery.start_soon(command.run, sandbox, ["sleep", "300"], {})
        await observer.wait_until(lambda: any(command.ended.is_set() for command in commands), trio.lowlevel.checkpoint)
        ended = [command.error for command in commands if command.ended.is_set()]
        nursery.cancel_scope.cancel()

    assert [BusyError] == [type(error) for error in ended]


async def test_killing_everything_inside_reaches_nobody_else(supervisor: Supervisor) -> None:
    """Report 51: `kill -9 -1` as root of one sandbox; its init, its sibling, the launcher and this process live on."""
    async with supervisor.open_sandbox() as bad, supervisor.open_sandbox() as good, trio.open_nursery() as nursery:
        victim = await observer.start(nursery, bad, "echo on; exec sleep 300")
        sibling = await observer.start(nursery, good, "echo on; exec sleep 300")
        init_pids = [init.pid for init in observer.inits()]
        await bad.run("pkill -9 -f .; kill -9 -1; kill -9 1; kill -9 0")
        await victim.wait()
        again = await bad.run(["echo", "alive"])
        lives = not sibling.ended.is_set()
        nursery.cancel_scope.cancel()

    assert victim.result is not None and victim.result.signal == 9
    assert (b"alive\n", True) == (again.stdout, lives)
    assert all(psutil.pid_exists(pid) for pid in [os.getpid(), observer.launcher().pid])
    assert len(init_pids) == 2
