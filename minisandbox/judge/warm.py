"""What a judge of many submissions keeps warm: Pythons that have imported the shim, by environment, or our programs.

Nothing of a submission or a task is in them; each cell gets a fork in a sandbox of its own. Where there is none, and
where none can be made, programs are started cold, and decide the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import trio

from minisandbox.binds import Bind
from minisandbox.errors import BusyError, SandboxError
from minisandbox.images.rootfs import Rootfs
from minisandbox.judge import frames
from minisandbox.judge.toolbox import cell_policy, command, importing, package_bind, python, toolbox
from minisandbox.runtime.process import Process
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template
from minisandbox.spec import Limits

MOST_TEMPLATES = 4
"""How many Pythons are kept warm. Each holds memory and the place of a sandbox."""

OFTEN = 3
"""An environment that is asked for so often is worth a warm Python."""

PROGRAMS = ("driver_program", "ingest_program")
"""Our own, which read what strangers wrote."""

_KEY = tuple[str, tuple[tuple[str, str], ...]]
_FRAMES = Path(frames.__file__)
_SHIM = Path(__file__).with_name("shim.py")


class Warm:
    """Templates, each opened when it is worth it. `open_warm` makes it and closes it."""

    def __init__(self, supervisor: Supervisor, stack: contextlib.AsyncExitStack, often: int) -> None:
        self._supervisor, self._stack, self._often = supervisor, stack, often
        self._opening = trio.Lock()
        self._asked: Counter[_KEY] = Counter()
        self._templates: dict[_KEY, Template | None] = {}

    async def programs(self) -> Template | None:
        """Return the template of our own programs."""
        key = ("our own programs", ())
        if key not in self._templates:
            rootfs = await toolbox(self._supervisor)
            preload = "\n".join(importing(program) for program in PROGRAMS)
            await self._open(key, rootfs, preload, python(), {}, (package_bind(),))
        return self._templates.get(key)

    async def shim(self, rootfs: Rootfs, variables: Mapping[str, str]) -> Template | None:
        """Return the template of calls in an environment; `shim:main` of it serves them."""
        key = (rootfs.digest, tuple(sorted(variables.items())))
        self._asked[key] += 1
        if key not in self._templates and self._asked[key] >= self._often:
            await self._open(key, rootfs, _shim_source(), "python3", variables, ())
        return self._templates.get(key)

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
            if key in self._templates or len(self._templates) >= MOST_TEMPLATES:
                return
            template = self._supervisor.open_template(
                rootfs, preload=preload, python=program, env=variables, hash_seed=0, binds=binds
            )
            try:
                self._templates[key] = await self._stack.enter_async_context(template)
            except BusyError:  # another time, perhaps
                return
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
async def open_warm(supervisor: Supervisor, often: int = OFTEN) -> AsyncIterator[Warm]:
    """Keep Pythons warm for the block, of environments that are asked for so often."""
    async with contextlib.AsyncExitStack() as stack:
        yield Warm(supervisor, stack, often)


@contextlib.asynccontextmanager
async def open_program(
    program: str, limits: Limits, supervisor: Supervisor, warm: Warm | None
) -> AsyncIterator[Process]:
    """Run one of our own programs for the block, in a sandbox with nothing else, warm where that can be."""
    template = await warm.programs() if warm is not None else None
    async with supervisor.open_sandbox(
        rootfs=await toolbox(supervisor) if template is None else None,
        template=template,
        policy=cell_policy(),
        limits=limits,
        binds=[package_bind()] if template is None else (),
        hostname="judge",
    ) as sandbox:
        if template is None:
            starting = sandbox.start(command(program))
        else:
            starting = sandbox.start_warm(call=f"minisandbox.judge.{program}:main")
        async with await starting as process:
            yield process
