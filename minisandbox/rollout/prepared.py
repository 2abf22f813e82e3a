"""The environment of one task, prepared once and opened as often as its episodes need it: from one snapshot of it.

Where the task asks for a warm Python it is opened from a template instead, and its files are laid out each time: there
are no snapshots of such sandboxes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio

from minisandbox.errors import BusyError, CgroupError, HostError
from minisandbox.rollout.warm import WarmTasks
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.snapshot import Snapshot
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.tasks.environment import open_environment, open_prepared
from minisandbox.tasks.task import Task


class Prepared:
    """Opens sandboxes for `uses` episodes of one task; after the last of them nothing of it is left.

    The first one lays the task's files out and takes a snapshot, from which all begin. Where this host cannot take
    snapshots, or there are no files to lay out, each one begins anew. Without `warm`, all are cold.
    """

    def __init__(self, supervisor: Supervisor, task: Task, uses: int, warm: WarmTasks | None = None) -> None:
        self._supervisor, self._task, self._warm = supervisor, task, warm
        self._left = uses
        self._worth = uses > 1 and bool(task.files)
        self._snapshot: Snapshot | None = None
        self._lock = trio.Lock()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Sandbox]:
        """Open a sandbox for the block, in which the task lies as at the beginning."""
        template = None if self._warm is None else await self._warm.template(self._task)
        snapshot = None if template is not None else await self._prepare()
        opened = (
            open_environment(self._supervisor, self._task, template)
            if snapshot is None
            else open_prepared(self._supervisor, self._task, snapshot)
        )
        async with opened as sandbox:
            yield sandbox

    async def _prepare(self) -> Snapshot | None:
        if not self._worth:
            return None
        async with self._lock:
            if self._worth and self._snapshot is None:
                async with open_environment(self._supervisor, self._task) as sandbox:
                    try:
                        self._snapshot = await sandbox.snapshot()
                    except (HostError, BusyError, CgroupError):
                        self._worth = False
        return self._snapshot

    async def used(self) -> None:
        """Take note that one of the episodes needs no more sandboxes."""
        self._left -= 1
        if self._left <= 0:
            await self.close()

    async def close(self) -> None:
        """Let the snapshot go. Shielded."""
        snapshot, self._snapshot, self._worth = self._snapshot, None, False
        if snapshot is not None:
            with trio.CancelScope(shield=True):
                await snapshot.close()
