"""What a test sees of running sandboxes from outside: their processes and control groups; and how it waits for them.

It looks with the host's eyes (/proc, the cgroup file systems), never through the code under test, and never sleeps.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import trio

from minisandbox.errors import SandboxError
from minisandbox.kernel.cgroup import detect_layout
from minisandbox.kernel.cgroup_layout import SUPERVISOR_LEAF
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import Result

LAUNCHER_NAME = "minisandbox-l"
PATIENCE_S = 20.0
"""How long a test waits for what takes milliseconds on an idle machine."""


def launcher(parent: int | None = None) -> psutil.Process:
    """Return the one launcher of a process, of this one by default."""
    (found,) = (child for child in psutil.Process(parent).children() if name_of(child) == LAUNCHER_NAME)
    return found


def inits(parent: int | None = None) -> list[psutil.Process]:
    """Return the init of every sandbox of a process, the oldest first."""
    return sorted(launcher(parent).children(), key=lambda process: process.pid)


def workload(parent: int | None = None) -> list[psutil.Process]:
    """Return every process inside the sandboxes of a process, the inits excepted."""
    return [each for init in inits(parent) for each in descendants(init)]


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return the descendants of a process, none when it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def name_of(process: psutil.Process) -> str:
    """Return the name of a process, empty when it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def zombies() -> list[psutil.Process]:
    """Return those descendants of this process that ended and were not waited for."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextlib.contextmanager
def watched(processes: Sequence[psutil.Process]) -> Iterator[list[int]]:
    """Hold a pidfd of each process that lives, so that its end can be waited for."""
    pidfds: list[int] = []
    try:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                pidfds.append(os.pidfd_open(process.pid))
        yield pidfds
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def ended(pidfds: Sequence[int]) -> list[bool]:
    """Return of each process whether it has ended by now."""
    waiting = select.poll()
    for pidfd in pidfds:
        waiting.register(pidfd, select.POLLIN)
    over = {pidfd for pidfd, _ in waiting.poll(0)}
    return [pidfd in over for pidfd in pidfds]


async def wait_ended(pidfds: Sequence[int], seconds: float = PATIENCE_S) -> None:
    """Wait until all these processes ended. Raises TooSlowError when one lives on."""
    with trio.fail_after(seconds):
        for pidfd in pidfds:
            await trio.lowlevel.wait_readable(pidfd)


def descriptors() -> list[str]:
    """Return what each open descriptor of this process refers to, but for the directory that is read to find out."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(re.sub(r":\[\d+\]", "", os.readlink(f"/proc/self/fd/{number}")))
    return sorted(names)


@contextlib.asynccontextmanager
async def mounted(kind: str, place: Path, options: str = "") -> AsyncIterator[None]:
    """Mount a new file system on the host for the block."""
    await trio.run_process(["mount", "-t", kind, *(["-o", options] if options else []), "for-a-test", str(place)])
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.run_process(["umount", str(place)])


def leaf_of(process: psutil.Process) -> Path | None:
    """Return the directory of a process's control group in the unified hierarchy; None on pure v1 hosts."""
    own = detect_layout().unified
    if own is None:
        return None
    (path,) = _unified_paths(process.pid)
    (ours,) = _unified_paths(os.getpid())
    return own / os.path.relpath(path, ours.removesuffix(f"/{SUPERVISOR_LEAF}") or "/")


def _unified_paths(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return [line.removeprefix("0::") for line in lines if line.startswith("0::")]


class Running:
    """A command that runs beside the test. `result` or `error` is there when it ended."""

    def __init__(self) -> None:
        self.printed = trio.Event()
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        self.result: Result | None = None
        self.error: SandboxError | None = None

    async def run(self, sandbox: Sandbox, command: Sequence[str] | str, options: dict[str, Any]) -> None:
        """Run the command to its end and keep what came of it."""
        watcher = options.pop("on_stdout", bytes)

        def on_stdout(chunk: bytes) -> object:
            self.printed.set()
            return watcher(chunk)

        with self.scope:
            try:
                self.result = await sandbox.run(command, on_stdout=on_stdout, **options)
            except SandboxError as error:
                self.error = error
        self.printed.set()
        self.ended.set()

    async def wait(self, seconds: float = PATIENCE_S) -> Running:
        """Wait for the end of the command and return this."""
        with trio.fail_after(seconds):
            await self.ended.wait()
        return self


async def start(nursery: trio.Nursery, sandbox: Sandbox, command: Sequence[str] | str, **options: Any) -> Running:
    """Start a command and return when it printed something, or ended."""
    running = Running()
    nursery.start_soon(running.run, sandbox, command, options)
    with trio.fail_after(PATIENCE_S):
        await running.printed.wait()
    return running


async def wait_until(changed: Callable[[], bool], tick: Callable[[], Any]) -> None:
    """Do `tick` until the condition holds; each tick is real work that takes its time, such as running a command."""
    with trio.fail_after(PATIENCE_S):
        while not changed():
            await tick()


async def wait_no_workload(sandbox: Sandbox) -> None:
    """Wait until no process but inits is left in any sandbox, by running commands that leave none."""
    await wait_until(lambda: not workload(), lambda: sandbox.run(["true"]))
