"""Processes of ours that die or hang: the launcher, an init, a whole supervisor. Errors are typed, nothing survives."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
import trio

from minisandbox import BrokenError, DeadlineError, Limits, Sandbox, Supervisor, open_supervisor
from minisandbox.kernel.launcher import Launcher
from tests import observer
from tests.census import groups_of, own_cgroups
from tests.crash import CHECKOUT, child_that_is_ready

PROMPT_S = 10.0
SURVIVAL_S = 5.0
"""The longest that anything may outlive its supervisor."""

HANGING_OWNER = """
import sys, trio
from pathlib import Path
from minisandbox import open_supervisor

async def main():
    options = {"max_lifetime_s": 2.0} if sys.argv[2] == "supervisor" else {}
    async with open_supervisor(state_dir=Path(sys.argv[1]), self_test=False, **options) as supervisor:
        lifetime_s = None if options else 2.0
        async with supervisor.open_sandbox(lifetime_s=lifetime_s) as sandbox:
            script = "setsid sleep 300 & echo on; exec sleep 300"
            await sandbox.run(script, on_stdout=lambda _: print("ready", flush=True))

trio.run(main)
"""

OWNER = """
import contextlib, sys, trio
from pathlib import Path
from minisandbox import open_supervisor

async def main():
    async with contextlib.AsyncExitStack() as stack:
        supervisor = await stack.enter_async_context(open_supervisor(state_dir=Path(sys.argv[1])))
        for _ in range(int(sys.argv[2])):
            sandbox = await stack.enter_async_context(supervisor.open_sandbox())
            await sandbox.run("exec >/dev/null 2>&1; setsid sleep 300 & sleep 300 &")
        await sandbox.run("echo on; exec sleep 300", on_stdout=lambda _: print("ready", flush=True))

trio.run(main)
"""


def owner(state_dir: Path, sandboxes: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A process of its own with a supervisor and sandboxes in which something runs."""
    return child_that_is_ready(OWNER, str(state_dir), str(sandboxes))


def everything_of(owner: int) -> list[psutil.Process]:
    """Return the launcher, the inits and the commands of a process."""
    return [observer.launcher(owner), *observer.inits(owner), *observer.workload(owner)]


# ---- a whole supervisor


@pytest.mark.parametrize("sandboxes", [1, pytest.param(50, marks=pytest.mark.slow)])
async def test_nothing_survives_a_killed_supervisor(state_dir: Path, sandboxes: int) -> None:
    """Reports 7, 8, tool report 55: within 5 s no process lives; the next start removes its control groups."""
    async with open_supervisor(state_dir=state_dir) as supervisor, supervisor.open_sandbox():
        pass
    entries, mounts = sorted(os.listdir(state_dir / "instances")), Path("/proc/self/mounts").read_text()
    with contextlib.ExitStack() as stack:
        with owner(state_dir, sandboxes) as process:
            alive = everything_of(process.pid)
            groups = groups_of(alive[-1])
            pidfds = stack.enter_context(observer.watched(alive))
            process.kill()
            await observer.wait_ended(pidfds, SURVIVAL_S)
    async with open_supervisor(state_dir=state_dir):
        left = [group for group in groups if group.exists()]

    assert len(pidfds) >= 1 + 3 * sandboxes
    assert groups
    assert [] == left
    assert (entries, mounts) == (sorted(os.listdir(state_dir / "instances")), Path("/proc/self/mounts").read_text())


@pytest.mark.enforces("control-groups")
async def test_a_live_supervisor_is_not_swept(state_dir: Path, tmp_path: Path) -> None:
    """Report 41: neither by one with the same state directory nor by one with another."""
    with owner(state_dir, 1) as process:
        before = everything_of(process.pid)
        for state in (state_dir, tmp_path):
            async with open_supervisor(state_dir=state):
                pass
        after = everything_of(process.pid)

    assert before == after


@pytest.mark.requires_root
async def test_two_supervisors_have_nothing_in_common(state_dir: Path) -> None:
    """Tool report 38: of one state directory, each has ids, control groups and limits of its own."""
    async with open_supervisor(state_dir=state_dir) as one, open_supervisor(state_dir=state_dir) as two:
        async with one.open_sandbox(limits=Limits(processes=10)) as first, two.open_sandbox() as second:
            ids = [await sandbox.run(["cat", "/proc/self/uid_map"]) for sandbox in (first, second)]
            script = "i=0; while [ $i -lt 30 ]; do sleep 300 & i=$((i+1)); done"
            reasons = [(await sandbox.run(script)).exit_reason.value for sandbox in (first, second)]

    assert ids[0].stdout.split()[1] != ids[1].stdout.split()[1]
    assert ["processes", "exited"] == reasons


@pytest.mark.enforces("control-groups")
async def test_the_tree_is_below_our_own_group(sandbox: Sandbox) -> None:
    """Tool report 3: a limit that holds for this process holds for its sandboxes as well."""
    async with trio.open_nursery() as nursery:
        await observer.start(nursery, sandbox, "echo on; exec sleep 300")
        groups = groups_of(observer.workload()[0])
        nursery.cancel_scope.cancel()

    assert {group.parent for group in groups} <= set(own_cgroups())
    assert groups


# ---- the launcher


async def test_a_killed_launcher_breaks_what_it_started(supervisor: Supervisor) -> None:
    """Report 19, tool report 16: running commands and later calls get BrokenError; the next start works."""
    async with trio.open_nursery() as nursery:
        with contextlib.ExitStack() as stack:
            async with supervisor.open_sandbox() as sandbox:
                running = await observer.start(nursery, sandbox, "setsid sleep 300 & echo on; exec sleep 300")
                launcher = observer.launcher()
                pidfds = stack.enter_context(observer.watched([launcher, *observer.inits(), *observer.workload()]))
                launcher.send_signal(signal.SIGKILL)
                await running.wait(PROMPT_S)
                await observer.wait_ended(pidfds, SURVIVAL_S)
                with pytest.raises(BrokenError, match="launcher is gone"):
                    await sandbox.run(["true"])
                with pytest.raises(BrokenError):
                    await sandbox.read_file("/etc/passwd")
            with trio.fail_after(PROMPT_S):
                async with supervisor.open_sandbox() as sandbox:
                    again = await sandbox.run(["echo", "alive"])

    assert (b"alive\n", 1, 0) == (again.stdout, supervisor.telemetry.launchers_lost, len(supervisor.quarantined))
    assert launcher != observer.launcher()
    assert isinstance(running.error, BrokenError)
    assert running.error.retryable


async def test_a_stopped_launcher_is_not_waited_for_without_end(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tool report 40: open sandboxes go on without it; closing one has a deadline and takes its slot out of use."""
    monkeypatch.setattr(Launcher.end, "__defaults__", (0.3,))
    launcher = observer.launcher()
    with trio.fail_after(PROMPT_S), pytest.raises(DeadlineError, match="waited"):
        async with supervisor.open_sandbox() as sandbox:
            launcher.suspend()
            result = await sandbox.run(["echo", "alive"])
    quarantined = supervisor.quarantined
    launcher.resume()
    async with supervisor.open_sandbox() as sandbox:
        again = await sandbox.run(["echo", "alive"])

    assert (b"alive\n", b"alive\n", 1) == (result.stdout, again.stdout, len(quarantined))


# ---- an init


async def test_a_killed_init_breaks_its_sandbox_alone(supervisor: Supervisor) -> None:
    """Its command ends with BrokenError, closing is prompt and no error, the other sandbox and the slot are fine."""
    async with supervisor.open_sandbox() as other, trio.open_nursery() as nursery:
        with trio.fail_after(PROMPT_S):
            async with supervisor.open_sandbox() as sandbox:
                running = await observer.start(nursery, sandbox, "echo on; exec sleep 300")
                observer.inits()[-1].kill()
                await running.wait(PROMPT_S)
                with pytest.raises(BrokenError, match="gone"):
                    await sandbox.run(["true"])
        alive = await other.run(["echo", "alive"])
        for _ in range(3):
            async with supervisor.open_sandbox() as sandbox:
                alive = await sandbox.run(["echo", "alive"])

    assert isinstance(running.error, BrokenError)
    assert (b"alive\n", ()) == (alive.stdout, supervisor.quarantined)


async def test_a_sandbox_ends_with_its_lifetime(supervisor: Supervisor) -> None:
    """Report 10: init ends by itself, whatever its owner does; a command that ran gets BrokenError."""
    async with trio.open_nursery() as nursery:
        with contextlib.ExitStack() as stack, trio.fail_after(PROMPT_S):
            async with supervisor.open_sandbox(lifetime_s=0.5) as sandbox:
                running = await observer.start(nursery, sandbox, "setsid sleep 300 & echo on; exec sleep 300")
                pidfds = stack.enter_context(observer.watched([*observer.inits(), *observer.workload()]))
                await observer.wait_ended(pidfds)
                await running.wait()

    assert len(pidfds) == 3
    assert isinstance(running.error, BrokenError)
    assert supervisor.quarantined == ()


@pytest.mark.enforces("control-groups", "single-id")
@pytest.mark.parametrize("whose", ["sandbox", "supervisor"])
async def test_a_lifetime_ends_though_the_owner_hangs(state_dir: Path, whose: str) -> None:
    """Stopped by a signal it can close nothing: init ends by itself, be the lifetime its own or that of all."""
    command = [sys.executable, "-c", HANGING_OWNER, str(state_dir), whose]
    with (
        subprocess.Popen(command, env={"PYTHONPATH": str(CHECKOUT)}, stdout=subprocess.PIPE) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        pidfds = stack.enter_context(observer.watched([*observer.inits(process.pid), *observer.workload(process.pid)]))
        process.send_signal(signal.SIGSTOP)
        await observer.wait_ended(pidfds, PROMPT_S)

    assert 3 == len(pidfds)


async def test_a_stopped_init_cannot_hold_anything_up(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Giving up on a command has a deadline, and closing kills such an init as any other."""
    monkeypatch.setattr("minisandbox.runtime.sandbox.KILL_DEADLINE_S", 0.3)
    with trio.fail_after(PROMPT_S):
        async with supervisor.open_sandbox() as sandbox:
            (init,) = observer.inits()
            init.suspend()
            with trio.move_on_after(0.1) as scope:
                await sandbox.write_file("/tmp/x", b"x")
    async with supervisor.open_sandbox() as sandbox:
        again = await sandbox.run(["echo", "alive"])

    assert scope.cancelled_caught
    assert (b"alive\n", ()) == (again.stdout, supervisor.quarantined)
