"""What a judge of many submissions keeps warm: Pythons that have imported the shim, by environment, or our programs.

Nothing of a submission or a task is in them; each cell gets a fork in a sandbox of its own. Where there is none, and
where none can be made, programs are started cold, and decide the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from minisandbox.images.rootfs import Rootfs
from minisandbox.judge import frames
from minisandbox.judge.toolbox import cell_policy, command, importing, package_bind, python, toolbox
from minisandbox.runtime.process import Process
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template
from minisandbox.runtime.template_pool import TemplatePool
from minisandbox.spec import Limits

OFTEN = 3
"""An environment that is asked for so often is worth a warm Python."""

PROGRAMS = ("driver_program", "ingest_program")
"""Our own, which read what strangers wrote."""

_KEY = tuple[str, tuple[tuple[str, str], ...]]
_FRAMES = Path(frames.__file__)
_SHIM = Path(__file__).with_name("shim.py")


class Warm:
    """Templates, each opened when it is worth it. `open_warm` makes it and closes it."""

    def __init__(self, supervisor: Supervisor, pool: TemplatePool, often: int) -> None:
        self._supervisor, self._pool, self._often = supervisor, pool, often
        self._asked: Counter[_KEY] = Counter()

    async def programs(self) -> Template | None:
        """Return the template of our own programs."""
        return await self._pool.find("our own programs", self._open_programs)

    async def shim(self, rootfs: Rootfs, variables: Mapping[str, str]) -> Template | None:
        """Return the template of calls in an environment; `shim:main` of it serves them."""
        key = (rootfs.digest, tuple(sorted(variables.items())))
        self._asked[key] += 1
        if self._asked[key] < self._often:
            return None
        return await self._pool.find(key, partial(self._open_shim, rootfs, variables))

    @contextlib.asynccontextmanager
    async def _open_programs(self) -> AsyncIterator[Template]:
        preload = "\n".join(importing(program) for program in PROGRAMS)
        async with self._supervisor.open_template(
            await toolbox(self._supervisor), preload=preload, python=python(), hash_seed=0, binds=(package_bind(),)
        ) as template:
            yield template

    def _open_shim(self, rootfs: Rootfs, variables: Mapping[str, str]) -> AbstractAsyncContextManager[Template]:
        return self._supervisor.open_template(rootfs, preload=_shim_source(), env=variables, hash_seed=0)


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
        yield Warm(supervisor, TemplatePool(stack), often)


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
