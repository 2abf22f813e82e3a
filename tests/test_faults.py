"""Failures of the kernel at each step: the step is named, nothing runs with less protection, and nothing is left.

A child process asks the kernel, by a seccomp filter that its launcher inherits, to refuse one system call. It opens a
sandbox, runs a command and reports what came of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import minisandbox

pytestmark = pytest.mark.requires_root

CHECKOUT = Path(minisandbox.__file__).parents[1]

CHILD = """
import json, sys
from pathlib import Path
import psutil, pyseccomp, trio
import minisandbox

state_dir, call, index, value = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def refuse():
    refusing = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refusing.set_attr(pyseccomp.Attr.CTL_NNP, 0)
    conditions = [pyseccomp.Arg(index, pyseccomp.EQ, value)] if index >= 0 else []
    refusing.add_rule(pyseccomp.ERRNO(1), call, *conditions)
    refusing.load()

async def main():
    outcome = {"error": "", "stage": "", "message": "", "ran": False}
    refuse()
    try:
        async with minisandbox.open_supervisor(state_dir=state_dir) as supervisor:
            try:
                async with supervisor.open_sandbox() as sandbox:
                    result = await sandbox.run(["true"])
                    outcome["ran"] = result.ok
            except minisandbox.SandboxError as error:
                outcome |= {"error": type(error).__name__, "stage": getattr(error, "stage", ""), "message": str(error)}
            launcher, = psutil.Process().children()
            outcome["left"] = len(launcher.children()) + len(supervisor.quarantined) + supervisor.live
    except minisandbox.SandboxError as error:
        outcome |= {"error": type(error).__name__, "stage": getattr(error, "stage", ""), "message": str(error)}
    print(json.dumps(outcome))

trio.run(main)
"""


class Outcome(msgspec.Struct, frozen=True):
    """What the child reports."""

    error: str
    stage: str
    message: str
    ran: bool
    left: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A system call that is refused, wholly or when one argument has a value; and the step that this must fail."""

    call: str
    stage: str
    index: int = -1
    value: int = 0


PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x2000000, 0x10000000, 0x40000000

FAULTS = [
    Fault("unshare", "launcher_namespace", 0, CLONE_NEWNS),
    Fault("pivot_root", "launcher_root"),
    Fault("unshare", "slot_netns", 0, CLONE_NEWNET),
    Fault("unshare", "slot_userns", 0, CLONE_NEWUSER),
    Fault("setns", "netns", 1, CLONE_NEWNET),
    Fault("sethostname", "hostname"),
    Fault("chroot", "root"),
    Fault("setgroups", "warden", 0, 1),
    Fault("prctl", "warden", 0, PR_SET_NO_NEW_PRIVS),
    Fault("prctl", "warden", 0, PR_SET_DUMPABLE),
    Fault("setns", "command_userns", 1, CLONE_NEWUSER),
    Fault("unshare", "command_cgroup", 0, CLONE_NEWCGROUP),
    Fault("prctl", "command_capabilities", 0, PR_CAPBSET_DROP),
    Fault("prlimit64", "command_rlimit", 1, 4),
    Fault("setgroups", "command_user", 0, 0),
    Fault("seccomp", "command_seccomp"),
]


def run_child(state_dir: Path, fault: Fault) -> Outcome:
    """Return what a child reports that lives with the fault."""
    words = [sys.executable, "-c", CHILD, str(state_dir), fault.call, str(fault.index), str(fault.value)]
    done = subprocess.run(words, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
    return msgspec.json.decode(done.stdout, type=Outcome)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.call}-{fault.stage}")
def test_a_step_that_fails_is_named_and_nothing_runs(state_dir: Path, fault: Fault) -> None:
    """Tool reports 9, 33: no step's failure is only noted; no command runs without it, and no process is left."""
    outcome = run_child(state_dir, fault)

    assert (False, 0) == (outcome.ran, outcome.left)
    assert ("StartError", fault.stage) == (outcome.error, outcome.stage), outcome.message
    assert os.strerror(1) in outcome.message


@pytest.mark.parametrize(
    "call", ["mount_setattr", "move_mount", "open_tree", "fsopen", "fsmount", "umount2", "close_range"]
)
def test_a_mount_or_descriptor_call_that_fails_ends_the_start(state_dir: Path, call: str) -> None:
    """Tool report 10: wherever it is used first, it is a failed start, and never a sandbox without nosuid or nodev."""
    outcome = run_child(state_dir, Fault(call, ""))

    assert (False, 0, "StartError") == (outcome.ran, outcome.left, outcome.error), outcome.message
    assert outcome.stage


def test_without_a_fault_it_runs(state_dir: Path) -> None:
    """The same child with a filter that refuses nothing it needs: so it is the fault that the others show."""
    outcome = run_child(state_dir, Fault("swapon", ""))

    assert (True, "", 0) == (outcome.ran, outcome.error, outcome.left)
