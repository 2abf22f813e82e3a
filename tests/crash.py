"""Runs code in a child that is killed at a chosen moment, as by a power cut or `kill -9`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import minisandbox.images

CHECKOUT = Path(minisandbox.images.__file__).parents[2]

STEPS = frozenset({"os.mkdir", "os.rename", "os.remove", "os.rmdir"})
"""Audit events of changes of directories: between two of them what is on the disk may be half done."""

_CHILD = """
import os, signal, sys

def die_at(event, arguments, left=[int(sys.argv[1])]):
    if event in {steps!r}:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

{code_before}
sys.addaudithook(die_at)
{code}
"""


def crash_at_each_step(code: str, *arguments: str, steps: frozenset[str] = STEPS) -> Iterator[int]:
    """Run code in one child after another, killed before its step 0, 1, 2 and so on, until one comes to its end.

    Yields after each that was killed. The code finds its arguments in `sys.argv[2:]`.
    """
    imports = "from pathlib import Path\nfrom minisandbox.images import *"
    child = _CHILD.format(steps=set(steps), code_before=imports, code=code)
    for step in range(1000):
        command = [sys.executable, "-c", child, str(step), *arguments]
        ended = subprocess.run(command, env={"PYTHONPATH": str(CHECKOUT)}).returncode
        if ended == 0:
            return
        assert ended == -signal.SIGKILL
        yield step


def start_child(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start code that has all of minisandbox.images in a child with pipes on stdin and stdout."""
    imports = "import sys\nfrom pathlib import Path\nfrom minisandbox.images import *\n"
    command = [sys.executable, "-c", imports + code, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={"PYTHONPATH": str(CHECKOUT)}, stdin=pipe, stdout=pipe, text=True)


@contextlib.contextmanager
def child_that_is_ready(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start code in a child, go on when it has printed "ready", and kill it at the end of the block."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, env={"PYTHONPATH": str(CHECKOUT)}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"ready\n" == process.stdout.readline()
            yield process
        finally:
            process.kill()
