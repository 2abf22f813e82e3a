"""Failures of the kernel at each step: the step is named, nothing runs with less protection, and nothing is left.

A child process asks the kernel, by a seccomp filter that its launcher inherits, to refuse one system call. It opens a
sandbox, runs a command and reports what came of it.
"""

from __future__ import annotations

import errno
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

state_dir, call = Path(sys.argv[1]), sys.argv[2]
index, value, number = map(int, sys.argv[3:])

def refuse():
    refusing = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refusing.set_attr(pyseccomp.Attr.CTL_NNP, 0)
    conditions = [pyseccomp.Arg(index, pyseccomp.EQ, value)] if index >= 0 else []
    refusing.add_rule(pyseccomp.ERRNO(number), call, *conditions)
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


TYPED = {name for name, thing in vars(minisandbox).items() if isinstance(thing, type) and issubclass(thing, Exception)}


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
    number: int = errno.EPERM


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
    Fault("clone3", "none", number=errno.EAGAIN),
    Fault("clone3", "none", number=errno.ENOMEM),
    Fault("fsmount", "launcher_root", number=errno.ENOSPC),
    Fault("fsmount", "launcher_root", number=errno.ENOMEM),
    Fault("open_tree", "layer", number=errno.EMFILE),
    Fault("unshare", "slot_netns", 0, CLONE_NEWNET, errno.ENOSPC),
    Fault("unshare", "slot_userns", 0, CLONE_NEWUSER, errno.ENOSPC),
]


def run_child(state_dir: Path, fault: Fault) -> Outcome:
    """Return what a child reports that lives with the fault."""
    numbers = map(str, (fault.index, fault.value, fault.number))
    words = [sys.executable, "-c", CHILD, str(state_dir), fault.call, *numbers]
    done = subprocess.run(words, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
    return msgspec.json.decode(done.stdout, type=Outcome)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.call}-{fault.stage}")
def test_a_step_that_fails_is_named_and_nothing_runs(state_dir: Path, fault: Fault) -> None:
    """Tool reports 9, 33: no step's failure is only noted; no command runs without it, and no process is left."""
    outcome = run_child(state_dir, fault)

    assert (False, 0) == (outcome.ran, outcome.left)
    assert ("StartError", fault.stage) == (outcome.error, outcome.stage), outcome.message
    assert os.strerror(fault.number) in outcome.message


@pytest.mark.parametrize(
    "call", ["mount_setattr", "move_mount", "open_tree", "fsopen", "fsmount", "umount2", "close_range"]
)
def test_a_mount_or_descriptor_call_that_fails_ends_the_start(state_dir: Path, call: str) -> None:
    """Tool report 10: wherever it is used first, it is a failed start, and never a sandbox without nosuid or nodev."""
    outcome = run_child(state_dir, Fault(call, ""))

    assert (False, 0, "StartError") == (outcome.ran, outcome.left, outcome.error), outcome.message
    assert outcome.stage


EXHAUSTED = (errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EAGAIN)
START_CALLS = (
    *("clone3", "unshare", "setns", "open_tree", "mount_setattr", "fsopen", "fsconfig", "fsmount", "move_mount"),
    *(
        "umount2",
        "chroot",
        "fchdir",
        "mkdirat",
        "symlinkat",
        "sethostname",
        "keyctl",
        "capset",
        "setresuid",
        "setgroups",
    ),
    *("seccomp", "prctl", "close_range", "dup3", "signalfd4", "setsid", "execve"),
)


@pytest.mark.slow
@pytest.mark.parametrize("number", EXHAUSTED, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", START_CALLS)
def test_whatever_a_host_is_out_of_is_a_typed_error_or_does_not_matter(state_dir: Path, call: str, number: int) -> None:
    """Each call of launcher, init and command, with each kind of exhaustion; and nothing is left."""
    outcome = run_child(state_dir, Fault(call, "", number=number))

    assert 0 == outcome.left
    assert outcome.ran or outcome.error in TYPED, (outcome.error, outcome.message)


def test_without_a_fault_it_runs(state_dir: Path) -> None:
    """The same child with a filter that refuses nothing it needs: so it is the fault that the others show."""
    outcome = run_child(state_dir, Fault("swapon", ""))

    assert (True, "", 0) == (outcome.ran, outcome.error, outcome.left)


# ---- a supervisor without descriptors

DESCRIPTORS_CHILD = """
import json, os, resource, sys
from pathlib import Path
import trio
import minisandbox

def count():
    return len(os.listdir("/proc/self/fd")) - 1

async def use(supervisor):
    async with supervisor.open_sandbox() as sandbox:
        await sandbox.run(["true"], stdin=b"x")
        await sandbox.write_file("/tmp/x", b"1")
        async with await sandbox.start(["true"]) as process:
            await process.wait()
        await sandbox.read_file("/tmp/x")

async def main():
    outcomes = []
    async with minisandbox.open_supervisor(
        state_dir=Path(sys.argv[1]), self_test=False, max_parked=0, admission=minisandbox.Admission(free_descriptors=0)
    ) as supervisor:  # else it would not even be tried
        await use(supervisor)
        before = count()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for free in range(-4, 24):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + free, hard))
            try:
                with trio.fail_after(20):
                    await use(supervisor)
                outcomes.append("ok")
            except minisandbox.SandboxError as error:
                outcomes.append(type(error).__name__)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await use(supervisor)
        left = [supervisor.live, len(supervisor.quarantined)]
    print(json.dumps([outcomes, left]))

trio.run(main)
"""


@pytest.mark.slow
def test_a_supervisor_without_descriptors_says_so_and_goes_on(state_dir: Path) -> None:
    """EMFILE at each descriptor of a start, a command and a transfer: a typed error, and the next request is served."""
    words = [sys.executable, "-c", DESCRIPTORS_CHILD, str(state_dir)]
    done = subprocess.run(words, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, timeout=120)
    assert (0, "") == (done.returncode, done.stderr)
    outcomes, left = msgspec.json.decode(done.stdout)

    assert "ok" == outcomes[-1]
    assert {"StartError", "CgroupError", "ok"} == set(outcomes)
    assert [0, 0] == left


# ---- each step of the supervisor's own

STEPS_CHILD = """
import errno, json, os, socket, sys
from pathlib import Path
import trio
import minisandbox

CALLS = ("open", "mkdir", "rmdir", "write", "read", "pipe2", "chown", "fchmod", "memfd_create")
ERRORS = (errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO)
left, hit, outcomes = -1, "", []

def failing(name, call):
    def fail(*arguments, **options):
        global left, hit
        if left >= 0:
            left -= 1
            if left < 0:
                hit = name
                number = ERRORS[len(outcomes) % len(ERRORS)]
                raise OSError(number, os.strerror(number))
        return call(*arguments, **options)
    return fail

for name in CALLS:
    setattr(os, name, failing(name, getattr(os, name)))
socket.socketpair = failing("socketpair", socket.socketpair)

async def use(supervisor):
    limits = minisandbox.Limits(memory_bytes=64 << 20, processes=20 + len(outcomes) % 2)
    async with supervisor.open_sandbox(limits=limits) as sandbox:
        await sandbox.run(["true", "x" * 40000], stdin=b"x")
        await sandbox.write_file("/tmp/x", b"1")
        await sandbox.read_file("/tmp/x")
    handles = supervisor.handles  # filters are made again at each use
    for fds in handles._filters.values():
        for fd in fds:
            os.close(fd)
    handles._filters.clear()

async def main():
    global left, hit
    async with minisandbox.open_supervisor(
        state_dir=Path(sys.argv[1]), self_test=False, max_parked=0, admission=minisandbox.Admission(free_descriptors=0)
    ) as supervisor:  # else it would not even be tried
        await use(supervisor)
        while left < 0:
            left, hit = len(outcomes), ""
            try:
                with trio.fail_after(20):
                    await use(supervisor)
                outcome = "ok"
            except minisandbox.SandboxError as error:
                outcome = type(error).__name__
            if left < 0:
                outcomes.append((hit, outcome))
                await use(supervisor)
        left = -1
        rest = [supervisor.live, len(supervisor.quarantined)]
    print(json.dumps([outcomes, rest]))

trio.run(main)
"""


@pytest.mark.slow
def test_each_step_of_a_supervisor_may_fail(state_dir: Path) -> None:
    """One system call after another of a start, a command, transfers and an end: ENOSPC, EMFILE, ENOMEM, EAGAIN, EIO.

    Whichever it is, the error is typed, nothing is left, and the next request is served.
    """
    words = [sys.executable, "-c", STEPS_CHILD, str(state_dir)]
    done = subprocess.run(words, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, timeout=120)
    assert (0, "") == (done.returncode, done.stderr)
    outcomes, rest = msgspec.json.decode(done.stdout)

    assert [0, 0] == rest
    assert len(outcomes) > 40
    assert {"open", "mkdir", "write", "read", "pipe2", "fchmod", "memfd_create"} <= {hit for hit, _ in outcomes}
    assert {"ok", "CgroupError", "StartError", "PolicyError"} == {outcome for _, outcome in outcomes}
