"""Killing and removing the leaves of commands on the real kernel: nothing escapes, nothing is removed too early."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox.errors import CgroupError
from minisandbox.kernel.cgroup import CgroupLayout, CgroupTree, RunCgroup, SlotCgroup
from minisandbox.spec import Limits
from tests.cgroup_lab import Start, layout, slot, spawn_program, start, tree

__all__ = ["layout", "slot", "spawn_program", "start", "tree"]  # fixtures, which tests ask for by name

SLEEPER = ("sh", "-c", "echo up; exec sleep 100")
DAEMON = ("sh", "-c", "trap '' TERM HUP; setsid sh -c \"trap '' TERM; (sleep 100 & sleep 100) & echo up; wait\" & wait")
BOMB = """
import os
print("up", flush=True)
while True:
    try:
        os.fork()
    except BlockingIOError:
        pass
"""


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a command and all its descendants; return its exit code."""
    return process.wait(timeout=20)


@pytest.mark.parametrize("way", ["running", "stopped", "frozen"])
@pytest.mark.parametrize("by", ["run", "slot"])
def test_kill_reaches_a_daemon_that_ignores_signals(
    slot: SlotCgroup, start: Start, layout: CgroupLayout, tree: CgroupTree, way: str, by: str
) -> None:
    """A tree in its own session that ignores SIGTERM is gone after a kill, also stopped or frozen."""
    slot.configure(Limits(processes=50))
    run = slot.open_run(os.geteuid())
    process = start(run, *DAEMON, until=b"up\n")
    directory = leaf_directory(layout, tree, run)
    if way == "stopped":
        for pid in (directory / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGSTOP)
    if way == "frozen":
        if layout.unified is None:
            pytest.skip("v1 freezes through a hierarchy of its own, which is not used")
        (directory / "cgroup.freeze").write_text("1")
    assert run.is_populated()
    (run if by == "run" else slot).kill()

    assert 128 + signal.SIGKILL == wait(process)
    assert (False, False) == (run.is_populated(), slot.is_populated())
    assert (True, True) == (run.remove(), slot.is_clean())


def leaf_directory(layout: CgroupLayout, tree: CgroupTree, run: RunCgroup) -> Path:
    """Return where the processes of a run are listed."""
    return (layout.unified or layout.v1["pids"]) / f"minisandbox-{tree.instance}" / run.name


def test_kill_ends_a_fork_bomb(slot: SlotCgroup, start: Start) -> None:
    """Processes that fork as fast as they can are all gone after one kill, and the slot can be used again."""
    slot.configure(Limits(processes=40))
    run = slot.open_run(os.geteuid())
    process = start(run, sys.executable, "-Sc", BOMB, until=b"up\n")
    while run.processes_refused() == 0:
        pass
    run.kill()
    wait(process)
    after = slot.open_run(os.geteuid())

    assert (False, True) == (run.is_populated(), run.remove())
    assert 0 == wait(start(after, "sh", "-c", "true & wait"))
    assert 0 == after.processes_refused()


def test_kill_of_the_slot_keeps_its_limits(slot: SlotCgroup, start: Start) -> None:
    """After the kill, the slot allows as many processes as before, not fewer and not more."""
    slot.configure(Limits(processes=3))
    process = start(slot.open_run(os.geteuid()), *SLEEPER, until=b"up\n")
    slot.kill()
    wait(process)
    run = slot.open_run(os.geteuid(), 100)
    assert 0 == wait(start(run, "sh", "-c", "sleep 0.1 & sleep 0.1 & wait"))
    within = run.processes_refused()
    assert 0 != wait(start(run, "sh", "-c", "sleep 0.1 & sleep 0.1 & sleep 0.1 & wait"))

    assert (0, True) == (within, run.processes_refused() > 0)


def test_command_after_a_kill_of_the_slot_lives(slot: SlotCgroup, start: Start) -> None:
    """The leaf that was ready for the next command before the kill does not kill what is started in it."""
    slot.prepare_spare(os.geteuid())
    slot.kill()

    assert 0 == wait(start(slot.open_run(os.geteuid()), "true"))


def test_what_a_kill_refuses_is_not_the_doing_of_the_command(slot: SlotCgroup, start: Start) -> None:
    """Without cgroup.kill, a kill stops forks by the limit; that is not reported as the command's limit."""
    run = slot.open_run(os.geteuid())
    forks = "for i in $(seq 30); do (while :; do (:); done) & done; echo up; wait"
    process = start(run, "sh", "-c", f"exec 2> /dev/null; {forks}", until=b"up\n")
    run.kill()
    wait(process)

    assert 0 == run.processes_refused()


def test_leaf_is_removed_only_when_it_is_empty(slot: SlotCgroup, start: Start) -> None:
    """`remove` says no while a process is inside, and can be called again."""
    run = slot.open_run(os.geteuid())
    process = start(run, *SLEEPER, until=b"up\n")
    waiting_fd = run.open_populated_fd()
    refused = (run.remove(), slot.remove())
    run.kill()
    wait(process)
    if waiting_fd >= 0:
        waiting = select.poll()
        waiting.register(waiting_fd, select.POLLPRI)
        assert waiting.poll(5000)
        os.close(waiting_fd)

    assert (False, False) == refused
    assert (True, True, True) == (run.remove(), run.remove(), slot.remove())
    with pytest.raises(CgroupError, match=r"s1/r1/.*no such file"):
        run.cpu_time_s()
