"""A Python forked from a warm one into a fresh sandbox, beside one that is started there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import trio

import minisandbox
from bench.samples import Timed
from bench.state_report import Curve
from bench.tools import BenchError

PYTHON = "/usr/bin/python3"

PAUSE_S = 0.02
"""Between two subjects, for what the one before left to be taken apart."""

PROGRAMS = {"print": ("print(1)", ()), "numpy": ("import numpy; print(numpy.pi)", ("numpy",))}
"""What is run, and what its template has imported."""

LABELS = {
    "print": "Python, print(1)",
    "numpy": "Python with numpy",
}

ASKED = 4
"""So often is a kind of sandbox asked for before it is timed where some are started ahead (`OFTEN` in parking.py)."""


class Warm:
    """Templates that are open, and what is measured with them. Each returns the seconds that it took."""

    prefix, how = "", ""

    def __init__(
        self, supervisor: minisandbox.Supervisor, rootfs: str, templates: Mapping[str, minisandbox.Template]
    ) -> None:
        self._supervisor, self._rootfs, self.templates = supervisor, rootfs, templates

    def turns(self) -> dict[str, Callable[[], Awaitable[float]]]:
        """Return what can be measured, by the name of the subject."""
        turns: dict[str, Callable[[], Awaitable[float]]] = {}
        for name in self.templates:
            turns[f"{self.prefix}cold_{name}"] = partial(self.cold, name)
            turns[f"{self.prefix}warm_{name}"] = partial(self.warm, name)
        return turns

    def subjects(self) -> dict[str, Timed]:
        """Return where the times of that go."""
        labels = {
            f"{self.prefix}{kind}_{name}": f"{LABELS[name]}: {kind}, whole life{self.how}"
            for name in self.templates
            for kind in ("cold", "warm")
        }
        return {key: Timed(label=label, seconds=[]) for key, label in labels.items()}

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


class Ahead(Warm):
    """The same where kinds that are asked for often are started ahead, as it is by default.

    Outside of the clock each is asked for often, and it is waited until some are there, and again until the one that
    was used up is replaced, so that nobody is timed beside that.
    """

    prefix, how = "ahead_", ", started ahead"

    async def cold(self, name: str) -> float:
        """Do it with a sandbox that was started before; the Python is not."""
        await self._have_ahead(rootfs=self._rootfs)
        seconds = await super().cold(name)
        await self._supervisor.parking.filled()
        return seconds

    async def warm(self, name: str) -> float:
        """Do it with a sandbox that was started before, in which a fork stands by."""
        await self._have_ahead(template=self.templates[name])
        seconds = await super().warm(name)
        await self._supervisor.parking.filled()
        return seconds

    async def _have_ahead(self, **options: Any) -> None:
        for _ in range(ASKED):
            async with self._supervisor.open_sandbox(**options):
                pass
        await self._supervisor.parking.filled()
        await trio.sleep(PAUSE_S)


def _check(result: minisandbox.Result) -> None:
    if not result.ok:
        raise BenchError(f"a Python failed: {result.stderr.decode(errors='replace')}")


@asynccontextmanager
async def open_warm(
    kind: type[Warm], supervisor: minisandbox.Supervisor, rootfs: str, skipped: dict[str, str]
) -> AsyncIterator[Warm]:
    """Open the templates for the block; what cannot be had is skipped, with the reason."""
    templates = {}
    async with AsyncExitStack() as stack:
        for name, (_, modules) in PROGRAMS.items():
            opened = supervisor.open_template(rootfs, python=PYTHON, preload=modules)
            try:
                templates[name] = await stack.enter_async_context(opened)
            except minisandbox.SandboxError as error:
                for way in ("cold", "warm"):
                    skipped[f"{kind.prefix}{way}_{name}"] = str(error).splitlines()[0]
        yield kind(supervisor, rootfs, templates)


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
