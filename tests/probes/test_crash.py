"""A crash leaves nothing on the host: no core file, and nothing for a handler that the host may have."""

from __future__ import annotations

import resource
import signal
import subprocess
from pathlib import Path

import pytest

from minisandbox import ExitReason, Supervisor
from tests.probes.lab import FILTERED, SANDBOXED, Defence, policy_of

CRASH = """
import os, resource, signal
for limit in ((resource.RLIM_INFINITY,) * 2, (0, 0)):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, limit)
    except (OSError, ValueError):
        pass
print(*resource.getrlimit(resource.RLIMIT_CORE), flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""
"""Asks for as large a core as there is, then for none at all, and crashes."""


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_crash_leaves_no_core(supervisor: Supervisor, defence: Defence) -> None:
    """Row 29: in no directory of the sandbox, and its result says that it crashed."""
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        result = await sandbox.run(["python3", "-c", CRASH], cwd="/tmp")
        found = await sandbox.run("find / -xdev -name 'core*' -size +0 -type f")

    assert (ExitReason.SIGNALED, signal.SIGSEGV) == (result.exit_reason, result.signal)
    assert b"" == found.stdout


@pytest.mark.parametrize("defence", FILTERED, ids=lambda defence: defence.value)
async def test_crash_is_none_of_a_handlers_business(supervisor: Supervisor, defence: Defence) -> None:
    """Row 29: where core_pattern is a pipe, the kernel starts the host's handler for any limit but 1 (fs/coredump.c).

    So the limit is 1, and neither raised nor lowered from inside. There is one core_pattern for all of a host, so that
    no test sets up a handler.
    """
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        result = await sandbox.run(["python3", "-c", CRASH], cwd="/tmp")

    assert b"1 1\n" == result.stdout


async def test_limit_of_cores_can_be_lowered_without_filters(supervisor: Supervisor) -> None:
    """Row 29, defence off: the kernel lets a process lower its limit; that it is raised no filter need prevent."""
    async with supervisor.open_sandbox(policy=policy_of(Defence.UNFILTERED)) as sandbox:
        result = await sandbox.run(["python3", "-c", CRASH], cwd="/tmp")

    assert b"0 0\n" == result.stdout


def test_crash_leaves_a_core_with_the_defence_off(tmp_path: Path) -> None:
    """Row 29, defence off: the same crash outside, without a limit, leaves a core file."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")) or resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip(f"core_pattern of this host is {pattern}, or its limit 0: a core is not left in the directory")
    subprocess.run(["python3", "-c", CRASH.replace(", (0, 0)", ",")], cwd=tmp_path, capture_output=True, check=False)

    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("core")]
