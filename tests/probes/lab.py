"""Where a probe runs: in sandboxes with more or less of a defence, or on the host in throw-away namespaces."""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from minisandbox import Bind, Policy, Rootfs, Sandbox, Supervisor, build_rootfs, load_policy
from minisandbox.images.layer import Layer
from minisandbox.policy import CAPABILITIES

PROBE = "/probe/probe"
"""Where the probe program is inside."""

OUTSIDE = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--uts", "--net", "--cgroup")
"""Runs a command as the host's root whom nothing holds back but that his namespaces are not the host's."""

AS_OWN_ROOT = ("--user", "--map-root-user")
"""What an ordinary user adds to that: he is root of a user namespace of his own, which is less than the host's root."""

ATTEMPT = """
import errno, os, sys
def attempt(name, act):
    try:
        act()
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""
"""What a program begins with that says of each attempt how the kernel answered; `parse` reads it."""

IGNORE_SIGNALS = """
import os, signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
"""
"""What a program begins with that no signal but those of the kernel ends."""

_DENIED = frozenset({"EPERM", "EACCES", "ENOSYS", "EROFS"})


class Defence(enum.Enum):
    """How much stands between a probe and what it is after."""

    DEFAULT = "default"
    STRICT = "strict"
    PRIVILEGED = "privileged"
    """The filters of the default policy, and every capability that there is."""
    UNFILTERED = "unfiltered"
    """Every capability and no filter: what is left are namespaces, ids and modes."""
    OFF = "off"
    """No sandbox: root on the host, in namespaces of his own so that nothing comes of it."""


FILTERED = (Defence.DEFAULT, Defence.STRICT, Defence.PRIVILEGED)
SANDBOXED = (*FILTERED, Defence.UNFILTERED)


def policy_of(defence: Defence) -> Policy:
    """Return the policy of a sandbox with so much of a defence."""
    if defence is Defence.STRICT:
        return load_policy("strict")
    policy = load_policy("default")
    if defence in (Defence.PRIVILEGED, Defence.UNFILTERED):
        policy = msgspec.structs.replace(policy, capabilities=frozenset(CAPABILITIES))
    if defence is Defence.UNFILTERED:
        policy = msgspec.structs.replace(policy, seccomp=())
    return policy


def probe_bind(probe_dir: Path) -> Bind:
    """Return the bind that shows the probe program as `PROBE`."""
    return Bind(source=probe_dir, target=str(Path(PROBE).parent))


@contextlib.asynccontextmanager
async def open_successor(supervisor: Supervisor, slot: int, policy: Policy, *binds: Bind) -> AsyncIterator[Sandbox]:
    """Open the next sandbox in a slot. While that one cools, others are opened and kept."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(64):
            sandbox = await stack.enter_async_context(supervisor.open_sandbox(policy=policy, binds=binds))
            if sandbox.slot.number == slot:
                yield sandbox
                return
    pytest.fail(f"slot {slot} was not used again")


def host_pid_of_init(sandbox: Sandbox) -> int:
    """Return the pid of a sandbox's init as the host counts: it is the only process of the slot's warden."""
    wardens = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.uids().real == sandbox.slot.warden_uid:
                wardens.append(process.pid)
    (pid,) = wardens
    return pid


def with_layer(supervisor: Supervisor, layer: Path) -> Rootfs:
    """Return the `host` rootfs with one more layer, a directory, on top."""
    host = build_rootfs(supervisor.state, "host")
    top = Layer(digest=f"sha256:{secrets.token_hex(32)}", path=layer)
    return Rootfs(name="probed", layers=(top, *host.layers), binds=host.binds, env=host.env)


def run_outside(command: Sequence[str | Path], cwd: Path) -> str:
    """Run a command with the defence off and return what it printed."""
    program, *namespaces = OUTSIDE
    own = AS_OWN_ROOT if os.geteuid() != 0 else ()
    words = [program, *own, *namespaces, *map(str, command)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True, timeout=30).stdout


def parse(output: str) -> dict[str, str]:
    """Return the outcome of each attempt by its name, from what the probe program printed."""
    return dict(line.split(" ", 1) for line in output.splitlines() if line)


def is_denied(outcome: str) -> bool:
    """Return whether the kernel refused to look at what was asked for."""
    return outcome in _DENIED


def is_reached(outcome: str) -> bool:
    """Return whether the kernel did what was asked for, or would have if the arguments had made sense."""
    return outcome not in _DENIED and not outcome.startswith("SIG")


def skip_without_capability(*names: str) -> None:
    """Skip the test where the host's own root lacks one of these, and so cannot do what a sandbox shall not."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    held = int(status["CapEff"], 16)
    for name in names:
        if not held >> CAPABILITIES[name] & 1:
            pytest.skip(f"root of this host has no {name}")
