"""How snapshots, forks, restores and look-ups grow: with what is held, with depth, with layers, with siblings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from unittest import mock

import minisandbox
from bench.state_report import Curve
from bench.tools import BenchError
from minisandbox.runtime import copying

LOOKUPS = r"""
import os, sys, time
turn = sys.argv[1]
def timed(call, names):
    begun = time.perf_counter()
    for name in names:
        call(name)
    print((time.perf_counter() - begun) / len(names) * 1000)
def gone(name):
    try:
        os.stat(name)
    except FileNotFoundError:
        pass
timed(gone, [f"/d/none-{turn}-{number}" for number in range(2000)])
timed(gone, [f"/d/none-{turn}-{number}" for number in range(2000)])
timed(os.stat, [f"/d/a/b/c/{number}" for number in range(500)])
timed(os.listdir, [f"/d/many/{number}" for number in range(100)])
"""
"""Names are asked for once each, as what was found, or not, is remembered; the second line asks once more."""

OPENED = 3
"""So often is each snapshot of a chain opened."""

MAKE = (
    "mkdir -p /d/a/b/c; cd /d/a/b/c; seq 0 499 | xargs touch;"
    " for i in $(seq 0 99); do mkdir -p /d/many/$i; touch /d/many/$i/x; done"
)
AGAIN = "echo {at} >/d/{at}; touch /d/a/b/c/own-{at}; for i in $(seq 0 99); do touch /d/many/$i/{at}; done"


async def write(sandbox: minisandbox.Sandbox, count: int) -> None:
    """Have so many bytes written to one file."""
    await done(sandbox, f"head -c {count} /dev/zero >/big")


async def done(sandbox: minisandbox.Sandbox, command: str) -> str:
    """Run what must succeed, and return what it says."""
    result = await sandbox.run(command)
    if not result.ok:
        raise BenchError(f"{command!r} failed: {result.stderr.decode(errors='replace')}")
    return result.stdout.decode()


def roomy(held_bytes: int) -> minisandbox.Limits:
    """Return limits for sandboxes that hold so much."""
    return minisandbox.Limits(disk_bytes=held_bytes * 2, memory_bytes=held_bytes * 2 + (1 << 28), wall_time_s=120)


async def by_size(supervisor: minisandbox.Supervisor, sizes: Sequence[int], rounds: int) -> dict[str, Curve]:
    """Seal, fork and restore sandboxes that hold several sizes."""
    labels = {
        "snapshot": "snapshot, until the sandbox answers again",
        "fork": "fork, until the sibling is there",
        "restore": "restore in place",
    }
    curves = {key: Curve(label=label, seconds={size: [] for size in sizes}) for key, label in labels.items()}
    for size in sizes:
        for _ in range(rounds):
            taken = await _one_size(supervisor, size)
            for key, seconds in taken.items():
                curves[key].seconds[size].append(seconds)
    return curves


async def _one_size(supervisor: minisandbox.Supervisor, size: int) -> dict[str, float]:
    taken = {}
    async with supervisor.open_sandbox(limits=roomy(size)) as sandbox:
        await write(sandbox, size)
        begun = time.perf_counter()
        snapshot = await sandbox.snapshot()
        await sandbox.settled()
        taken["snapshot"] = time.perf_counter() - begun
        await done(sandbox, "echo >/small")
        begun = time.perf_counter()
        async with sandbox.fork(1):
            taken["fork"] = time.perf_counter() - begun
        await done(sandbox, "echo >/small")
        begun = time.perf_counter()
        await sandbox.restore(snapshot)
        taken["restore"] = time.perf_counter() - begun
    await snapshot.close()
    return taken


async def by_depth(supervisor: minisandbox.Supervisor, depths: Sequence[int], rounds: int) -> dict[str, Curve]:
    """Take one snapshot after the other, and open some of them. Long chains are flattened meanwhile."""
    opened = Curve(label="open a sandbox upon them", seconds={depth: [] for depth in depths})
    sealed = Curve(label="take the last one, until the sandbox answers again", seconds={depth: [] for depth in depths})
    for _ in range(rounds):
        await _one_chain(supervisor, opened, sealed)
    return {"open": opened, "snapshot": sealed}


async def _one_chain(supervisor: minisandbox.Supervisor, opened: Curve, sealed: Curve) -> None:
    async with contextlib.AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(supervisor.open_sandbox())
        for depth in range(1, max(opened.seconds) + 1):
            await done(sandbox, f"mkdir -p /d; echo {depth} >/d/{depth}")
            begun = time.perf_counter()
            snapshot = await stack.enter_async_context(await sandbox.snapshot())
            await sandbox.settled()
            if depth in opened.seconds:
                sealed.seconds[depth].append(time.perf_counter() - begun)
                opened.seconds[depth] += [await _opened(supervisor, snapshot) for _ in range(OPENED)]


async def _opened(supervisor: minisandbox.Supervisor, snapshot: minisandbox.Snapshot) -> float:
    begun = time.perf_counter()
    async with supervisor.open_sandbox(snapshot=snapshot):
        return time.perf_counter() - begun


@contextlib.contextmanager
def never_flattened() -> Iterator[None]:
    """Leave chains as long as they are for the block."""
    with mock.patch.object(copying, "FLATTEN_AT", 1 << 30):
        yield


async def by_layers(supervisor: minisandbox.Supervisor, layers: Sequence[int], rounds: int) -> dict[str, Curve]:
    """Look for names in chains of so many layers, each of which has all directories."""
    labels = {
        "missing": "stat of a name that is not there",
        "again": "the same once more",
        "deep": "stat of a file four directories deep, in the lowest",
        "list": "listdir of a directory with an entry in each",
    }
    curves = {key: Curve(label=label, seconds={at: [] for at in layers}) for key, label in labels.items()}
    with never_flattened():
        async with contextlib.AsyncExitStack() as stack:
            sandbox = await stack.enter_async_context(supervisor.open_sandbox())
            await done(sandbox, MAKE)
            for at in range(1, max(layers) + 1):
                snapshot = await stack.enter_async_context(await sandbox.snapshot())
                for turn in range(rounds if at in layers else 0):
                    async with supervisor.open_sandbox(snapshot=snapshot) as reader:
                        said = await reader.run(["/usr/bin/python3", "-c", LOOKUPS, str(turn)])
                        if not said.ok:
                            raise BenchError(f"looking for names failed: {said.stderr.decode(errors='replace')}")
                        for curve, seconds in zip(curves.values(), said.stdout.split(), strict=True):
                            curve.seconds[at].append(float(seconds))
                await done(sandbox, AGAIN.format(at=at))
    return curves


async def by_siblings(supervisor: minisandbox.Supervisor, counts: Sequence[int], rounds: int) -> dict[str, Curve]:
    """Fork one sandbox into several at once."""
    opened = Curve(label="fork, until all are there", seconds={count: [] for count in counts})
    each = Curve(label="fork, for each of them", seconds={count: [] for count in counts})
    closed = Curve(label="close all", seconds={count: [] for count in counts})
    async with supervisor.open_sandbox() as sandbox:
        await write(sandbox, 1 << 20)
        for count in counts:
            for _ in range(rounds):
                begun = time.perf_counter()
                async with sandbox.fork(count):
                    ready = time.perf_counter()
                    opened.seconds[count].append(ready - begun)
                    each.seconds[count].append((ready - begun) / count)
                    ready = time.perf_counter()
                closed.seconds[count].append(time.perf_counter() - ready)
    return {"fork": opened, "each": each, "close": closed}
