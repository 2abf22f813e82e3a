"""What whoever solves a task finds: a sandbox with the task's files where it is worked on, under the agent's limits.

It owns no sandbox beyond a block.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import TaskFile
from minisandbox.judge.bench import PINNED
from minisandbox.judge.layout import TaskArchive
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.snapshot import Snapshot
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.spec import Limits
from minisandbox.tasks.task import Files, Task

AGENT_LIMITS = Limits(wall_time_s=600.0, memory_bytes=2 << 30, processes=512, disk_bytes=1 << 30)
"""What a sandbox gets that a task says nothing about."""


def limits_of(task: Task) -> Limits:
    """Return the limits of a sandbox in which a task is worked on."""
    if task.agent.memory_bytes is None:
        return AGENT_LIMITS
    return msgspec.structs.replace(AGENT_LIMITS, memory_bytes=task.agent.memory_bytes)


@contextlib.asynccontextmanager
async def open_environment(supervisor: Supervisor, task: Task) -> AsyncIterator[Sandbox]:
    """Open a sandbox for the block, as whoever solves the task finds it. Raises what `open_sandbox` raises."""
    async with _opened(supervisor, task, None) as sandbox:
        await _lay_out(sandbox, task)
        yield sandbox


@contextlib.asynccontextmanager
async def open_prepared(supervisor: Supervisor, task: Task, snapshot: Snapshot) -> AsyncIterator[Sandbox]:
    """Open a sandbox for the block from a snapshot of one that was opened for the same task."""
    async with _opened(supervisor, task, snapshot) as sandbox:
        yield sandbox


async def put_files(sandbox: Sandbox, files: Files, root: str) -> None:
    """Put files of a task into a directory of a sandbox, which is made if it is not there."""
    if files:
        laid = (
            TaskFile(path=path, content=file.content, executable=file.executable)
            for path, file in sorted(files.items())
        )
        await sandbox.put_tree(TaskArchive(laid), root)


@contextlib.asynccontextmanager
async def _opened(supervisor: Supervisor, task: Task, snapshot: Snapshot | None) -> AsyncIterator[Sandbox]:
    environment = task.assignment.environment
    async with supervisor.open_sandbox(
        rootfs=environment.rootfs if snapshot is None else None,
        snapshot=snapshot,
        limits=limits_of(task),
        env={**PINNED, **environment.variables},
    ) as sandbox:
        yield sandbox


async def _lay_out(sandbox: Sandbox, task: Task) -> None:
    root = task.assignment.declared.root
    made = await sandbox.run(["mkdir", "-p", root], user="root")
    if not made.ok:
        said = made.stderr[-300:].decode(errors="backslashreplace").strip()
        raise UsageError(f"task {task.name}: {root} cannot be made in its sandbox: {said or made.exit_reason.value}")
    await put_files(sandbox, task.files, root)
