"""A Python forked from a warm one into a fresh sandbox, beside one that is started there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import trio

import minisandbox
from bench.state_report import Curve, Timed
from bench.tools import BenchError

PYTHON = "/usr/bin/python3"
PROGRAMS = {"print": ("print(1)", ()), "numpy": ("import numpy; print(numpy.pi)", ("numpy",))}
"""What is run, and what its template has imported."""

LABELS = {
    "cold_print": "Python, print(1): cold, whole life",
    "warm_print": "Python, print(1): warm, whole life",
    "cold_numpy": "Python with numpy: cold, whole life",
    "warm_numpy": "Python with numpy: warm, whole life",
}


class Warm:
    """Templates that are open, and what is measured with them. Each returns the seconds that it took."""

    def __init__(
        self, supervisor: minisandbox.Supervisor, rootfs: str, templates: Mapping[str, minisandbox.Template]
    ) -> None:
        self._supervisor, self._rootfs, self.templates = supervisor, rootfs, templates

    async def cold(self, name: str) -> float:
        """Open a sandbox, start a Python in it, and close it."""
        begun = time.perf_counter()
        async with self._supervisor.open_sandbox(rootfs=self._rootfs) as sandbox:
            _check(await sandbox.run([PYTHON, "-c", PROGRAMS[name][0]]))
        return time.perf_counter() - begun

    async def warm(self, name: str) -> float:
        """Open a sandbox, fork a Python into it, and close it."""
        begun = time.perf_counter()
        async with self._supervisor.open_sandbox(template=self.templates[name]) as sandbox:
            _check(await sandbox.run_warm(PROGRAMS[name][0]))
        return time.perf_counter() - begun

    async def at_once(self, count: int) -> float:
        """Do so with so many at once."""
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self.warm, "print")
        return time.perf_counter() - begun


def _check(result: minisandbox.Result) -> None:
    if not result.ok:
        raise BenchError(f"a Python failed: {result.stderr.decode(errors='replace')}")


@asynccontextmanager
async def open_warm(supervisor: minisandbox.Supervisor, rootfs: str, skipped: dict[str, str]) -> AsyncIterator[Warm]:
    """Open the templates for the block; what cannot be had is skipped, with the reason."""
    templates = {}
    async with AsyncExitStack() as stack:
        for name, (_, modules) in PROGRAMS.items():
            opened = supervisor.open_template(rootfs, python=PYTHON, preload=modules)
            try:
                templates[name] = await stack.enter_async_context(opened)
            except minisandbox.SandboxError as error:
                skipped[f"warm_{name}"] = skipped[f"cold_{name}"] = str(error).splitlines()[0]
        yield Warm(supervisor, rootfs, templates)


async def by_forks(warm: Warm, counts: tuple[int, ...], rounds: int) -> dict[str, Curve]:
    """Fork one template into several sandboxes at once."""
    if "print" not in warm.templates:
        return {}
    whole = Curve(label="warm print(1), until all are gone", seconds={})
    each = Curve(label="warm print(1), for each of them", seconds={})
    for count in counts:
        await warm.at_once(count)  # slots are made once
        whole.seconds[count] = [await warm.at_once(count) for _ in range(rounds)]
        each.seconds[count] = [seconds / count for seconds in whole.seconds[count]]
    return {"whole": whole, "each": each}


def warm_subjects(warm: Warm) -> dict[str, Timed]:
    """Return where times of what can be measured go."""
    return {key: Timed(label=label, seconds=[]) for key, label in LABELS.items() if key[5:] in warm.templates}
