"""Kills supervisors, launchers, or both, at random points with sandboxes live, and looks at what is left.

Each round has an owner, a process of its own that holds sandboxes in which something runs and opens and closes others
all the time. A bystander, the supervisor of this process, must never notice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import trio

import minisandbox
from minisandbox import SandboxError
from minisandbox.images.lock import locked
from minisandbox.images.state import StateDir
from minisandbox.kernel.cgroup import CgroupTree, detect_layout

TARGETS = ("supervisor", "launcher", "both")
SURVIVAL_S = 5.0
"""The longest that anything may outlive its supervisor."""

CHECKOUT = Path(__file__).parents[1]


@dataclass(slots=True)
class Kills:
    """What came of the rounds."""

    rounds: int = 0
    killed: dict[str, int] = field(default_factory=dict)
    processes: int = 0
    """Of the owners' sandboxes, that were alive when they were killed."""
    slowest_s: float = 0.0
    """From a kill until the last process was gone."""


class LeftBehind(Exception):
    """Something outlived its owner, or a bystander was hit."""


async def own(state_dir: Path, sandboxes: int) -> None:
    """Be an owner until killed: keep sandboxes that are busy, and open others; go on when the launcher dies."""
    async with minisandbox.open_supervisor(state_dir=state_dir, self_test=False) as supervisor:
        print("open", flush=True)
        while True:
            with contextlib.suppress(SandboxError):
                async with contextlib.AsyncExitStack() as stack:
                    for _ in range(sandboxes):
                        sandbox = await stack.enter_async_context(supervisor.open_sandbox())
                        await sandbox.run("exec >/dev/null 2>&1; setsid sleep 300 & sleep 300 &")
                    print("full", flush=True)
                    while True:
                        async with supervisor.open_sandbox() as other:
                            await other.run(["true"])
                        await sandbox.run(["true"])  # the other one may have a new launcher; this one has not


@contextlib.contextmanager
def owner(state_dir: Path, sandboxes: int) -> Iterator[subprocess.Popen[str]]:
    """Start one for the block."""
    words = [sys.executable, "-m", "bench.soak", "--own", str(sandboxes), "--state-dir", str(state_dir)]
    with subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def wait_line(process: subprocess.Popen[str], wanted: str) -> None:
    """Wait until an owner says so."""
    assert process.stdout is not None
    line = ""
    with trio.fail_after(120):
        while line.strip() != wanted:
            line = await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
            if not line:
                raise LeftBehind("an owner ended by itself")


async def kill_rounds(state_dir: Path, rounds: int, sandboxes: int, seed: int = 0) -> Kills:
    """Kill so many owners, with so many sandboxes each. Raises LeftBehind."""
    chance = random.Random(seed)
    kills = Kills()
    async with (
        minisandbox.open_supervisor(state_dir=state_dir) as bystander,
        bystander.open_sandbox() as witness,
    ):
        await witness.run("exec >/dev/null 2>&1; sleep 1000 &")
        for number in range(rounds):
            await _round(state_dir, TARGETS[number % len(TARGETS)], sandboxes, chance, kills)
            result = await witness.run("kill -0 $(pidof sleep) && echo here")
            if result.stdout != b"here\n":
                raise LeftBehind(f"the bystander of round {number} was hit")
    return kills


async def _round(state_dir: Path, target: str, sandboxes: int, chance: random.Random, kills: Kills) -> None:
    before = instances(state_dir)
    with owner(state_dir, sandboxes) as process:
        await wait_line(process, "open")
        # in the midst of starts, or with all of them live and others coming and going
        if chance.random() < 0.5:
            await wait_line(process, "full")
        await trio.sleep(chance.uniform(0, 0.2))
        (instance,) = instances(state_dir) - before
        launcher = psutil.Process(process.pid).children()[0]
        served = launcher.children(recursive=True)
        if target != "supervisor":
            launcher.kill()
        if target != "launcher":
            process.kill()
        lasted_s = await _wait_gone([*served, launcher])
        if target == "launcher":
            await wait_line(process, "full")  # its next starts are served by another one
    kills.rounds += 1
    kills.killed[target] = kills.killed.get(target, 0) + 1
    kills.processes += len(served)
    kills.slowest_s = max(kills.slowest_s, lasted_s, await _wait_empty(layout_paths(instance)))
    await _wait_dead(state_dir, instance)
    await _sweep(state_dir, instance)


def instances(state_dir: Path) -> set[str]:
    """Return the instances of a state directory that have control groups."""
    prefix = StateDir.open(state_dir).id
    return {name for name in CgroupTree.instances(detect_layout()) if name.startswith(prefix)}


async def _wait_gone(processes: list[psutil.Process]) -> float:
    begun = time.monotonic()
    for process in processes:
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            with trio.fail_after(SURVIVAL_S):
                await trio.lowlevel.wait_readable(pidfd)
        except trio.TooSlowError as error:
            raise LeftBehind(f"{process} lives {SURVIVAL_S:g} s after its owner") from error
        finally:
            os.close(pidfd)
    return time.monotonic() - begun


def layout_paths(instance: str) -> list[Path]:
    """Return the control groups of an instance, in every hierarchy."""
    layout = detect_layout()
    own = {*([layout.unified] if layout.unified else []), *layout.v1.values()}
    return [path for each in own if (path := each / f"minisandbox-{instance}").exists()]


def members(groups: list[Path]) -> list[int]:
    """Return every process below these groups."""
    found = []
    for group in groups:
        for procs in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in procs.read_text().split()]
    return found


async def _wait_empty(groups: list[Path]) -> float:
    """Wait until no process is in these groups: also what was started after we looked is found there."""
    begun = time.monotonic()
    while left := members(groups):
        if time.monotonic() - begun > SURVIVAL_S:
            raise LeftBehind(f"processes {left} live {SURVIVAL_S:g} s after their owner")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                select.select([pidfd], [], [], 0.1)
                os.close(pidfd)
        await trio.lowlevel.checkpoint()
    return time.monotonic() - begun


async def _wait_dead(state_dir: Path, instance: str) -> None:
    """Wait until nobody holds the lock of an instance: a launcher that was just being spawned is in no group yet."""
    lock = state_dir / "instances" / instance

    def wait() -> None:
        with contextlib.suppress(FileNotFoundError), locked(lock, fcntl.LOCK_SH):
            pass

    with trio.move_on_after(SURVIVAL_S) as scope:
        await trio.to_thread.run_sync(wait, abandon_on_cancel=True)
    if scope.cancelled_caught:
        raise LeftBehind(f"the lock of instance {instance} is held {SURVIVAL_S:g} s after its owner")


async def _sweep(state_dir: Path, instance: str) -> None:
    """Open another supervisor, which removes what a dead one left."""
    async with minisandbox.open_supervisor(state_dir=state_dir, self_test=False):
        pass
    left = [str(path) for path in layout_paths(instance)]
    left += [str(path) for path in (StateDir.open(state_dir).path / "instances").iterdir() if instance in path.name]
    if left:
        raise LeftBehind(f"the next start did not remove {', '.join(left)}")
