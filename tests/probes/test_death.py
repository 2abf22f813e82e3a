"""The end of the supervisor, however it comes: the whole tree of every sandbox dies, whatever it does against it."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from minisandbox import open_supervisor
from tests import observer
from tests.census import groups_of
from tests.crash import child_that_is_ready
from tests.probes.lab import IGNORE_SIGNALS

pytestmark = pytest.mark.requires_root

SURVIVAL_S = 5.0

OWNER = """
import sys, trio
from pathlib import Path
from minisandbox import open_supervisor
async def main():
    async with open_supervisor(state_dir=Path(sys.argv[1])) as supervisor, supervisor.open_sandbox() as sandbox:
        while True:
            await sandbox.run(["python3", "-c", sys.argv[2]], on_stdout=lambda _: print("ready", flush=True))
trio.run(main)
"""
"""A process of its own with a supervisor and a sandbox in which something runs, again when it reached a limit."""

DEAF = f"""{IGNORE_SIGNALS}
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        break
"""
WORKLOADS = {
    "deaf": DEAF + "os.write(1, b'.')\ntime.sleep(600)",
    "stopped": DEAF + "os.write(1, b'.')\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(600)",
    "spinning": DEAF + "os.write(1, b'.')\nwhile True: pass",
    "forking": DEAF + "os.write(1, b'.')\nwhile True:\n if os.fork(): os._exit(0)",
    "writing": DEAF
    + "os.write(1, b'.')\nwhile True:\n with open(f'/tmp/{os.getpid()}', 'wb') as f: f.write(bytes(1 << 20))",
}


def owner(state_dir: Path, workload: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Start an owner and wait until its workload runs."""
    return child_that_is_ready(OWNER, str(state_dir), WORKLOADS[workload])


ENDS = [
    *((workload, signal.SIGKILL) for workload in WORKLOADS),
    *((workload, number) for workload in ("deaf", "forking") for number in (signal.SIGTERM, signal.SIGSEGV)),
]


@pytest.mark.parametrize(("workload", "number"), ENDS)
async def test_nothing_outlives_its_supervisor(state_dir: Path, workload: str, number: signal.Signals) -> None:
    """Row 54: neither what is deaf to signals, stopped, nor what forks away; and the next start sweeps the groups."""
    with owner(state_dir, workload) as process:
        (init,) = observer.inits(process.pid)[:1]
        groups = groups_of(init)
        with observer.watched([observer.launcher(process.pid), *observer.inits(process.pid)]) as pidfds:
            process.send_signal(number)
            await observer.wait_ended(pidfds, SURVIVAL_S)
        survivors = [p for group in groups for p in (group / "cgroup.procs").read_text().split()]
    async with open_supervisor(state_dir=state_dir):
        left = [group for group in groups if group.exists()]

    assert [] == survivors
    assert groups
    assert [] == left


def test_children_outlive_a_killed_parent_with_the_defence_off() -> None:
    """Row 54, defence off: the same workload as plain processes goes on when its parent is killed."""
    code = WORKLOADS["deaf"].replace("os.write(1, b'.')", "os.write(1, b'%d\\n' % os.getpid())")
    with subprocess.Popen(["python3", "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(5)]
        parent.kill()
        parent.wait()
        alive = [pid for pid in pids if pid != parent.pid and psutil.pid_exists(pid)]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)

    assert len(alive) >= 4
