"""The warm Pythons of a run's tasks: one template for all episodes of the same root file system, variables and imports.

Nothing of a task's files or an episode is in them. Where there is none, and where none can be made, episodes are played
cold: what they see is the same, and the records of the run say why, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from functools import partial
from typing import Any

from minisandbox.rollout.spec import EpisodeKey
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template
from minisandbox.runtime.template_pool import MOST_TEMPLATES, TemplatePool
from minisandbox.tasks.environment import open_warm_python, variables_of
from minisandbox.tasks.task import Task

Note = Callable[[str, EpisodeKey | None, dict[str, Any]], Awaitable[None]]
"""As `Recorder.event`."""


class WarmTasks:
    """Finds the template of a task. `open_warm_tasks` makes it and closes all templates."""

    def __init__(self, supervisor: Supervisor, pool: TemplatePool, note: Note, sandboxes: int) -> None:
        self._supervisor, self._pool, self._note, self._sandboxes = supervisor, pool, note, sandboxes
        self._noted: set[Hashable] = set()

    async def template(self, task: Task) -> Template | None:
        """Return the template of a task; None where it asks for none, or none can be had. Raises as `find_rootfs`."""
        if task.agent.warm is None:
            return None
        rootfs = await self._supervisor.find_rootfs(task.assignment.environment.rootfs)
        key = (rootfs.digest, tuple(sorted(variables_of(task).items())), task.agent.warm)
        opened = partial(open_warm_python, self._supervisor, task, self._sandboxes)
        template = await self._pool.find(key, opened)
        if template is None and key not in self._noted:
            self._noted.add(key)
            error = self._pool.failures.get(key)
            why = f"{MOST_TEMPLATES} are open already" if error is None else f"{type(error).__name__}: {error}"
            await self._note("cold", None, {"task": task.name, "why": why[:1000]})
        return template


@contextlib.asynccontextmanager
async def open_warm_tasks(supervisor: Supervisor, note: Note, sandboxes: int) -> AsyncIterator[WarmTasks]:
    """Keep Pythons warm for the block, each for at most so many sandboxes at once."""
    async with contextlib.AsyncExitStack() as stack:
        yield WarmTasks(supervisor, TemplatePool(stack), note, sandboxes)
