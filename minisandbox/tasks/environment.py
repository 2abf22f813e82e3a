"""What whoever solves a task finds: a sandbox with the task's files where it is worked on, under the agent's limits.

It owns no sandbox beyond a block.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import TaskFile
from minisandbox.judge.bench import PINNED
from minisandbox.judge.layout import TaskArchive
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.snapshot import Snapshot
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template
from minisandbox.spec import Limits
from minisandbox.tasks.task import Files, Task

AGENT_LIMITS = Limits(wall_time_s=600.0, memory_bytes=2 << 30, processes=512, disk_bytes=1 << 30)
"""What a sandbox gets that a task says nothing about."""


def limits_of(task: Task) -> Limits:
    """Return the limits of a sandbox in which a task is worked on."""
    if task.agent.memory_bytes is None:
        return AGENT_LIMITS
    return msgspec.structs.replace(AGENT_LIMITS, memory_bytes=task.agent.memory_bytes)


def variables_of(task: Task) -> dict[str, str]:
    """Return the variables of a sandbox in which a task is worked on."""
    return {**PINNED, **task.assignment.environment.variables}


@contextlib.asynccontextmanager
async def open_environment(
    supervisor: Supervisor, task: Task, template: Template | None = None
) -> AsyncIterator[Sandbox]:
    """Open a sandbox for the block, as whoever solves the task finds it; of a template that was opened for the task.

    Raises what `open_sandbox` raises.
    """
    async with _opened(supervisor, task, template=template) as sandbox:
        await _lay_out(sandbox, task)
        yield sandbox


@contextlib.asynccontextmanager
async def open_prepared(supervisor: Supervisor, task: Task, snapshot: Snapshot) -> AsyncIterator[Sandbox]:
    """Open a sandbox for the block from a snapshot of one that was opened for the same task."""
    async with _opened(supervisor, task, snapshot=snapshot) as sandbox:
        yield sandbox


def open_warm_python(supervisor: Supervisor, task: Task, sandboxes: int) -> AbstractAsyncContextManager[Template]:
    """Open a template for the block, for at most so many sandboxes of a task at once, whose modules are imported.

    Raises what `open_template` raises.
    """
    return supervisor.open_template(
        task.assignment.environment.rootfs,
        preload=task.agent.warm or (),
        env=variables_of(task),
        limits=Limits(memory_bytes=AGENT_LIMITS.memory_bytes, processes=AGENT_LIMITS.processes),
        max_sandboxes=sandboxes,
    )


async def put_files(sandbox: Sandbox, files: Files, root: str) -> None:
    """Put files of a task into a directory of a sandbox, which is made if it is not there."""
    if files:
        laid = (
            TaskFile(path=path, content=file.content, executable=file.executable)
            for path, file in sorted(files.items())
        )
        await sandbox.put_tree(TaskArchive(laid), root)


@contextlib.asynccontextmanager
async def _opened(
    supervisor: Supervisor, task: Task, *, snapshot: Snapshot | None = None, template: Template | None = None
) -> AsyncIterator[Sandbox]:
    async with supervisor.open_sandbox(
        rootfs=task.assignment.environment.rootfs if snapshot is None and template is None else None,
        template=template,
        snapshot=snapshot,
        limits=limits_of(task),
        env=variables_of(task),
    ) as sandbox:
        yield sandbox


async def _lay_out(sandbox: Sandbox, task: Task) -> None:
    root = task.assignment.declared.root
    made = await sandbox.run(["mkdir", "-p", root], user="root")
    if not made.ok:
        said = made.stderr[-300:].decode(errors="backslashreplace").strip()
        raise UsageError(f"task {task.name}: {root} cannot be made in its sandbox: {said or made.exit_reason.value}")
    await put_files(sandbox, task.files, root)
