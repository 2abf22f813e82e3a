"""What a policy's actions do in a sandbox, and what it sees of that. What it does wrong is no exception."""

from __future__ import annotations

import errno
import math
import os
import posixpath

import trio

from minisandbox.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    FileTransferError,
    TemplateError,
    UsageError,
)
from minisandbox.rollout.spec import Action, Edit, Outcome, Python, Read, Run, Submit, Write
from minisandbox.runtime.resolve import check_arguments
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import MAX_SECONDS, Limits, Result

FILE_MAX_BYTES = 4 << 20
"""How large a file may be that is read or edited; of a larger one, a command shows a part."""

_IS_EXECUTABLE = '[ -x "$1" ]'


async def perform(
    action: Action, sandbox: Sandbox, root: str, *, within_s: float | None, outcome_bytes: int
) -> Outcome:
    """Do what a policy says, where the task is worked on, and return what came of it.

    Raises SandboxError when we failed. Cancelled: what ran is killed.
    """
    if isinstance(action, Submit):
        return Outcome()
    try:
        if isinstance(action, Run):
            argv = ["/bin/sh", "-c", action.command]
            limits = _limits(action, within_s, outcome_bytes)
            return _outcome(await sandbox.run(argv, stdin=action.stdin, cwd=root, limits=limits), outcome_bytes)
        if isinstance(action, Python):
            limits = _limits(action, within_s, outcome_bytes)
            return _outcome(await _run_python(action, sandbox, root, limits), outcome_bytes)
        with trio.move_on_after(math.inf if within_s is None else within_s):
            return await _transfer(action, sandbox, root, outcome_bytes)
        return Outcome(error=f"not done within {within_s:g} s")
    except (UsageError, FileTransferError, CommandNotFoundError, CommandNotExecutableError) as error:
        return Outcome(error=str(error)[:1000])


def _limits(action: Run | Python, within_s: float | None, outcome_bytes: int) -> Limits:
    allowed = [each for each in (within_s, action.wall_time_s, MAX_SECONDS) if each is not None]
    return Limits(wall_time_s=min(allowed), output_kept_bytes=2 * outcome_bytes)


async def _run_python(action: Python, sandbox: Sandbox, root: str, limits: Limits) -> Result:
    """Run code warm where the sandbox has a template, and else cold, with the same result."""
    argv = ["python3", "-c", action.code]
    check_arguments(argv, (), root)  # what a new Python could not be given, a warm one is not given either
    if sandbox.options.template is not None:
        try:
            return await sandbox.run_warm(action.code, stdin=action.stdin, cwd=root, limits=limits)
        except TemplateError:  # there is no warm Python any more, and nothing was run
            pass
    return await sandbox.run(argv, stdin=action.stdin, cwd=root, limits=limits)


def _outcome(result: Result, outcome_bytes: int) -> Outcome:
    return Outcome(
        stdout=bounded(result.stdout, outcome_bytes),
        stderr=bounded(result.stderr, outcome_bytes),
        truncated=max(result.usage.stdout_bytes, result.usage.stderr_bytes) > outcome_bytes,
        exit_reason=result.exit_reason,
        exit_code=result.exit_code,
        signal=result.signal,
        usage=result.usage,
    )


async def _transfer(action: Read | Write | Edit, sandbox: Sandbox, root: str, outcome_bytes: int) -> Outcome:
    path = posixpath.join(root, action.path)
    match action:
        case Read():
            content = await sandbox.read_file(path, max_bytes=FILE_MAX_BYTES)
            return Outcome(stdout=bounded(content, outcome_bytes), truncated=len(content) > outcome_bytes)
        case Write():
            await _write(sandbox, path, action.content, 0o755 if action.executable else 0o644)
            return Outcome()
        case Edit():
            return await _edit(action, sandbox, path)


async def _write(sandbox: Sandbox, path: str, content: bytes, mode: int) -> None:
    """Write a file, in directories that are made where there are none."""
    try:
        await sandbox.write_file(path, content, mode=mode)
    except FileTransferError as error:
        if error.errno != errno.ENOENT:
            raise
        made = await sandbox.run(["mkdir", "-p", "--", os.path.dirname(path)])
        if not made.ok:
            raise
        await sandbox.write_file(path, content, mode=mode)


async def _edit(action: Edit, sandbox: Sandbox, path: str) -> Outcome:
    content = await sandbox.read_file(path, max_bytes=FILE_MAX_BYTES)
    old, new = action.old.encode(), action.new.encode()
    count = content.count(old) if old else 0
    if count != 1:
        return Outcome(error=f"the old text is in {action.path} {count} times; it must be there once")
    is_executable = (await sandbox.run(["/bin/sh", "-c", _IS_EXECUTABLE, "sh", path])).ok
    await sandbox.write_file(path, content.replace(old, new), mode=0o755 if is_executable else 0o644)
    return Outcome()


def bounded(data: bytes, most_bytes: int) -> bytes:
    """Return the first and the last half of what is too long."""
    if len(data) <= most_bytes:
        return data
    half = most_bytes // 2
    return data[: most_bytes - half] + data[len(data) - half :]
