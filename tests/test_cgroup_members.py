"""The members of a leaf, one by one: who they are, killing some of them, and letting no new ones in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from minisandbox.kernel.cgroup import CgroupLayout, SlotCgroup
from tests.cgroup_lab import Start, layout, slot, spawn_program, start, tree

__all__ = ["layout", "slot", "spawn_program", "start", "tree"]  # fixtures, which tests ask for by name

pytestmark = pytest.mark.requires_root

PARENT_PROGRAM = """
import os, subprocess
children = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
print("up", os.getpid(), *(child.pid for child in children), sep="\\n", flush=True)
for child in children:
    child.wait()
print("alone", flush=True)
subprocess.run(["sleep", "100"])
"""
PARENT = (sys.executable, "-c", PARENT_PROGRAM)
FORKER = ("sh", "-c", "echo up; while :; do /bin/true || echo refused; done 2>&1")


def numbers(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the numbers of the parent and its two children, as they say."""
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(3)]


def test_members_are_all_processes_of_the_leaf(slot: SlotCgroup, start: Start) -> None:
    """They have the numbers by which we can signal them, and nobody else is among them."""
    run = slot.open_run(os.geteuid())
    process = start(run, *PARENT, until=b"up\n")

    assert set(numbers(process)) == run.members()


def test_some_members_are_killed_and_the_others_live(slot: SlotCgroup, start: Start) -> None:
    """Whoever is not named goes on, and sees the others end."""
    run = slot.open_run(os.geteuid())
    process = start(run, *PARENT, until=b"up\n")
    parent, *children = numbers(process)
    run.kill_members(children)
    assert process.stdout is not None

    assert b"alone\n" == process.stdout.readline()
    assert parent in run.members()


def test_a_number_of_a_process_elsewhere_is_never_hit(slot: SlotCgroup, start: Start) -> None:
    """Row 55: what got the number of a member since it was listed is not signalled, whoever it belongs to."""
    run = slot.open_run(os.geteuid())
    start(run, *PARENT, until=b"up\n")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as bystander:
        run.kill_members([bystander.pid, 2**22 - 1])
        ended = bystander.poll()
        assert bystander.stdin is not None
        bystander.stdin.close()

    assert ended is None
    assert 0 == bystander.returncode
    assert 3 == len(run.members())


def test_a_number_of_a_process_elsewhere_is_hit_where_it_is_trusted() -> None:
    """Row 55, defence off: who signals a number signals whoever has it."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as bystander:
        os.kill(bystander.pid, signal.SIGKILL)

    assert -signal.SIGKILL == bystander.returncode


def test_no_process_is_made_while_that_is_asked_for(slot: SlotCgroup, start: Start, layout: CgroupLayout) -> None:
    """Forks fail for the length of the block and work again after it."""
    if "pids" not in {*layout.v1, *layout.unified_controllers}:
        pytest.skip("no controller of pids")
    run = slot.open_run(os.geteuid())
    process = start(run, *FORKER, until=b"up\n")
    assert process.stdout is not None
    with run.no_new_processes():
        said = process.stdout.readline()
    run.kill()
    process.wait(timeout=20)
    again = start(slot.open_run(os.geteuid()), "sh", "-c", "/bin/true && echo works", until=b"works\n")

    assert b"refused" in said or b"ork" in said
    assert 0 == again.wait(timeout=20)
