"""What a judge of many submissions keeps warm: Pythons that have imported the shim, by environment, and a driver's.

Nothing of a submission or a task is in them; each cell gets a fork in a sandbox of its own. Where there is none, and
where none can be made, programs are started cold, and decide the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import trio

from minisandbox.binds import Bind
from minisandbox.errors import SandboxError
from minisandbox.images.rootfs import Rootfs
from minisandbox.judge import frames
from minisandbox.judge.toolbox import importing, package_bind, python, toolbox
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template

MOST_TEMPLATES = 8
"""How many environments are kept warm; each holds a Python in memory."""

_KEY = tuple[str, tuple[tuple[str, str], ...]]
_FRAMES = Path(frames.__file__)
_SHIM = Path(__file__).with_name("shim.py")


class Warm:
    """Templates, each opened when it is first wanted. `open_warm` makes it and closes it."""

    def __init__(self, supervisor: Supervisor, stack: contextlib.AsyncExitStack) -> None:
        self._supervisor, self._stack = supervisor, stack
        self._opening = trio.Lock()
        self._templates: dict[_KEY, Template | None] = {}

    async def driver(self) -> Template | None:
        """Return the template of drivers."""
        key = ("the driver", ())
        if key not in self._templates:
            rootfs = await toolbox(self._supervisor)
            await self._open(key, rootfs, importing("driver_program"), python(), {}, (package_bind(),))
        return self._templates[key]

    async def shim(self, rootfs: Rootfs, variables: Mapping[str, str]) -> Template | None:
        """Return the template of calls in an environment; `shim:main` of it serves them."""
        key = (rootfs.digest, tuple(sorted(variables.items())))
        if key not in self._templates:
            await self._open(key, rootfs, _shim_source(), "python3", variables, ())
        return self._templates[key]

    async def _open(
        self,
        key: _KEY,
        rootfs: Rootfs,
        preload: str,
        program: str,
        variables: Mapping[str, str],
        binds: Sequence[Bind],
    ) -> None:
        async with self._opening:
            if key in self._templates:
                return
            if len(self._templates) >= MOST_TEMPLATES:
                self._templates[key] = None
                return
            template = self._supervisor.open_template(
                rootfs, preload=preload, python=program, env=variables, hash_seed=0, binds=binds
            )
            try:
                self._templates[key] = await self._stack.enter_async_context(template)
            except SandboxError:  # no Python there, say: cells find the same, and tell it
                self._templates[key] = None


def _shim_source() -> str:
    """Return code that makes the modules `frames` and `shim`."""
    modules = {"frames": _FRAMES.read_text(), "shim": _SHIM.read_text()}
    made = (
        f"module = sys.modules[{name!r}] = types.ModuleType({name!r})\nexec({source!r}, module.__dict__)\n"
        for name, source in modules.items()
    )
    return "import sys, types\n" + "".join(made)


@contextlib.asynccontextmanager
async def open_warm(supervisor: Supervisor) -> AsyncIterator[Warm]:
    """Keep Pythons warm for the block."""
    async with contextlib.AsyncExitStack() as stack:
        yield Warm(supervisor, stack)
