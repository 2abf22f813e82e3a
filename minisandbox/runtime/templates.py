"""What users call to open a template, and the pods that templates need; `Supervisor` inherits it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from minisandbox.binds import Bind
from minisandbox.degradation import Degradation
from minisandbox.errors import BrokenError, ClosedError, HostError
from minisandbox.images.rootfs import Rootfs
from minisandbox.runtime.pod import Place, SpawnLauncher, open_pod
from minisandbox.runtime.template import Template, TemplateSpec, read_preload, warm_env
from minisandbox.runtime.warm_process import PRELOAD_DEADLINE_S, WarmSpec
from minisandbox.spec import Limits

if TYPE_CHECKING:
    from minisandbox.runtime.handles import Handles
    from minisandbox.runtime.options import Options
    from minisandbox.runtime.sandbox import Sandbox
    from minisandbox.runtime.supervisor import Supervisor


DEFAULT_SANDBOXES = 64


class Templated:
    """Templates of a supervisor."""

    templates: list[Template]
    spawn: SpawnLauncher
    handles: Handles
    _sandboxes: dict[int, Sandbox]
    _place: Place
    _numbers = 0
    _closed = False

    @contextlib.asynccontextmanager
    async def open_template(
        self,
        rootfs: str | Rootfs = "host",
        *,
        preload: str | Path | Sequence[str] = (),
        python: str = "python3",
        env: Mapping[str, str] | None = None,
        binds: Sequence[Bind] = (),
        hash_seed: int | None = None,
        limits: Limits | None = None,
        deadline_s: float = PRELOAD_DEADLINE_S,
        max_sandboxes: int = DEFAULT_SANDBOXES,
    ) -> AsyncIterator[Template]:
        """Open a template for the block: a Python of the rootfs that has done `preload` and waits to be forked.

        `preload` is code, a file of code (a Path), or names of modules; it is yours, never a workload's. All sandboxes
        of the template show `binds`. `hash_seed` pins what all forks share, and addresses. Raises TemplateError with
        the traceback when the preload fails, DeadlineError after `deadline_s`, HostError for a user without subordinate
        ids. At the end all its sandboxes are closed.
        """
        supervisor = cast("Supervisor", self)
        supervisor.check_open()
        if Degradation.SINGLE_ID in supervisor.degraded:
            raise HostError("templates need subordinate ids, which this user does not have (subuid(5)); or be root")
        found = await supervisor.find_rootfs(rootfs)
        wanted, variables = read_preload(preload), warm_env(found, env, hash_seed)
        warm = WarmSpec(python=python, preload=wanted, env=variables, limits=limits or Limits(), deadline_s=deadline_s)
        pods = partial(_open_pod, supervisor, found, tuple(binds), max_sandboxes)
        template = Template(TemplateSpec(rootfs=found, warm=warm), supervisor, pods)
        supervisor.templates.append(template)
        try:
            await template.ensure()
            yield template
        finally:
            supervisor.templates.remove(template)
            await template.aclose()

    def check_open(self) -> None:
        """Raise ClosedError unless sandboxes can be opened."""
        if self._closed:
            raise ClosedError("this supervisor is closed; open another")

    def next_number(self) -> int:
        """Return a number for a sandbox or a warm process that is not in use."""
        self._numbers = self._numbers % 0xFFFFFFFF + 1
        return self._numbers

    async def shown(self, options: Options) -> tuple[list[int], list[tuple[Bind, int]]]:
        """Return what a start needs of layers and binds of the rootfs: nothing in a pod, which has them."""
        if options.template is not None:
            return [], []
        await self.handles.open_rootfs(options.rootfs)
        layer_fds = [*(layer.fd for layer in options.layers), *self.handles.layer_fds(options.rootfs)]
        return layer_fds, self.handles.rootfs_binds(options.rootfs)

    def on_launcher_broken(self, place: Place) -> None:
        """Take note that a launcher is gone, with all that it started."""
        if place is self._place:  # whoever takes its place waits until no process is left
            self.kill_templates()
        for sandbox in self.sandboxes_in(place):
            sandbox.break_(BrokenError("the launcher is gone, and every sandbox it started with it"))

    def sandboxes_in(self, place: Place) -> list[Sandbox]:
        """Return the sandboxes that were started there."""
        return [sandbox for sandbox in self._sandboxes.values() if sandbox.place is place]

    async def close_templates(self) -> None:
        """Close all that are still open; their owners find them closed."""
        for template in list(self.templates):
            await template.aclose()

    def kill_templates(self) -> None:
        """Kill every pod. The next sandbox of each template is started in a new one."""
        for template in self.templates:
            template.kill()


@contextlib.asynccontextmanager
async def _open_pod(
    supervisor: Supervisor, rootfs: Rootfs, binds: Sequence[Bind], max_sandboxes: int
) -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        await supervisor.handles.open_rootfs(rootfs)
        async with supervisor.handles.bind_fds(binds) as bind_fds:
            layer_fds = supervisor.handles.layer_fds(rootfs)
            shown = [*supervisor.handles.rootfs_binds(rootfs), *bind_fds]
            pod = open_pod(supervisor._slots, supervisor.spawn, layer_fds, shown, max_sandboxes)
            place = await stack.enter_async_context(pod)
        yield place
