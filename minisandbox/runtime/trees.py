"""Directories in and out of a sandbox, as streams through a pipe: nothing is held in memory, nothing is an argument.

Theory of operation. A process inside, under the limits of a command, makes the stream of a tree or a tree of a stream
(`launcher/pack.c`, `unpack.c`), and a thread of ours does the other half (`tree_pump`). So what is read and written
inside is so with the sandbox's ids and charged to it. What leaves the sandbox is data: it is checked entry by entry and
made anew below one directory of the host, through descriptors. No name from inside is ever looked up anywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from minisandbox.errors import FileTransferError, HostError, SandboxError
from minisandbox.kernel.descriptors import open_pipe
from minisandbox.kernel.protocol import Stage, stage_name
from minisandbox.runtime.command import Command, common_request
from minisandbox.runtime.files import ROOT_CAPABILITIES, resolve_user
from minisandbox.runtime.supervision import supervise
from minisandbox.runtime.text import check_path
from minisandbox.runtime.tree_archive import ArchiveSource, ArchiveTarget, Reader, Writer
from minisandbox.runtime.tree_host import HostSource, HostTarget
from minisandbox.runtime.tree_pump import (
    PIPE_BYTES,
    Progress,
    Source,
    Tally,
    Target,
    TreeBounds,
    TreeReport,
    receive,
    send,
)
from minisandbox.spec import Limits

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

HostPath = str | os.PathLike[str]

_LIMITS = Limits(wall_time_s=6 * 3600.0)

_ADVICE = {
    (Stage.FILE_OPEN, errno.ENOENT): "make the directory that it is in before",
    (Stage.FILE_OPEN, errno.ENOTDIR): "it is no directory, or a link; name a directory itself",
    (Stage.FILE_OPEN, errno.ELOOP): "it is a link; name a directory itself",
    (Stage.FILE_OPEN, errno.EROFS): "that part of the sandbox is read-only",
    (Stage.FILE_TYPE, errno.EINVAL): "a directory of the kernel's making cannot be transferred",
    (Stage.FILE_WRITE, errno.ENOSPC): "the sandbox's disk limit is reached",
    (Stage.FILE_WRITE, errno.ENOTDIR): "something else than a directory is in its place",
    (Stage.FILE_WRITE, errno.ELOOP): "a link is in the place of a directory",
    (Stage.FILE_WRITE, errno.EISDIR): "a directory is in its place",
}


async def put_tree(
    sandbox: Sandbox, source: HostPath | Reader, path: str, user: str | int, progress: Progress | None
) -> TreeReport:
    """Put a directory of the host, or an archive, into a directory inside."""
    check_path("path", path)
    await sandbox.settled()
    uid, gid = await resolve_user(sandbox, user)
    opened: Source
    opened = HostSource(Path(source)) if isinstance(source, str | os.PathLike) else ArchiveSource(source)
    tally = Tally(progress)
    with contextlib.closing(opened):
        transfer = _Transfer(sandbox, "put the tree", path, tally)
        await transfer.run("unpack", (uid, gid), lambda fd: send(opened, fd, tally))
    return tally.report()


async def get_tree(
    sandbox: Sandbox,
    path: str,
    target: HostPath | Writer,
    bounds: TreeBounds,
    progress: Progress | None,
    *,
    keep_owners: bool,
) -> TreeReport:
    """Get a directory from inside as a new directory of the host, or as an archive."""
    check_path("path", path)
    await sandbox.settled()
    tally = Tally(progress)
    made: Target
    if isinstance(target, str | os.PathLike):
        made = await trio.to_thread.run_sync(lambda: HostTarget(Path(target), keep_owners=keep_owners))
    else:
        made = ArchiveTarget(target, keep_owners=keep_owners)
    with contextlib.closing(made):
        try:
            transfer = _Transfer(sandbox, "get the tree", path, tally)
            await transfer.run("pack", (0, 0), lambda fd: receive(fd, made, tally, bounds, path))
            await trio.to_thread.run_sync(_commit, made)
        except BaseException:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(made.discard)
            raise
    return tally.report()


async def stream_tree(sandbox: Sandbox, path: str, consume: Callable[[int], None]) -> None:
    """Have a directory inside packed, and let `consume` read the stream, in a thread, from the pipe that it is given.

    Nothing of the stream is looked at here. Raises FileTransferError when the directory cannot be read.
    """
    check_path("path", path)
    await _Transfer(sandbox, "read the tree", path, Tally(None)).run("pack", (0, 0), consume)


def _commit(made: Target) -> None:
    try:
        made.commit()
    except OSError as error:
        raise HostError(f"cannot make the directory of a tree: {error.strerror}") from error


class _Transfer:
    """One process inside and one thread here, with a pipe between."""

    def __init__(self, sandbox: Sandbox, tried: str, path: str, tally: Tally) -> None:
        self._sandbox, self._tried, self._path, self._tally = sandbox, tried, path, tally
        self._command: Command = sandbox.new_command(_LIMITS)
        self._error: Exception | None = None

    async def run(self, verb: str, ids: tuple[int, int], work: Callable[[int], None]) -> None:
        """Run both to their end. Raises what explains best why it failed. Cancelled: both have ended."""
        try:
            ours = await self._start(verb, ids)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                await self._work(work, ours)
        except BaseException:
            await self._sandbox.abandon(self._command)
            raise
        self._sandbox.finish(self._command)
        self._raise_failure()

    async def _start(self, verb: str, ids: tuple[int, int]) -> int:
        """Have the process started, and return our end of its pipe."""
        fds = open_pipe()
        with contextlib.suppress(PermissionError):  # beyond what a user may have in pipes (pipe(7))
            fcntl.fcntl(fds[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        ours, theirs = fds if verb == "pack" else reversed(fds)
        request = common_request(verb, self._command, [theirs, theirs]).option("path", self._path)
        request.option("uid", ids[0]).option("gid", ids[1]).option("capabilities", ROOT_CAPABILITIES)
        try:
            await self._sandbox.start_command(self._command, request)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return ours

    async def _watch(self) -> None:
        try:
            await supervise(self._command, _LIMITS)
        except SandboxError as error:
            self._error = error
        except trio.Cancelled:
            self._command.leaf.kill()  # so that the thread, which cannot be cancelled, finds the end of the pipe
            raise

    async def _work(self, work: Callable[[int], None], ours: int) -> None:
        try:
            await trio.to_thread.run_sync(work, ours)
        except Exception as error:  # noqa: BLE001 - told below, when it is known how the process inside ended
            self._error = self._error or error
            if not isinstance(error, EOFError | BrokenPipeError):
                self._command.leaf.kill()
        finally:
            os.close(ours)

    def _raise_failure(self) -> None:
        command, error, failure = self._command, self._error, self._command.outcome.failure
        early = isinstance(error, EOFError | BrokenPipeError)
        if error is not None and not early:
            if isinstance(error, OSError):
                at = self._tally.recent[-1] if self._tally.recent else ""
                raise HostError(f"cannot make {at!r} of a tree on the host: {error.strerror}") from error
            raise error
        if failure is not None:
            advice = _ADVICE.get((Stage(failure.stage), failure.error), f"at step {stage_name(failure.stage)}")
            entry = self._tally.path_of(failure.item) if failure.stage == Stage.FILE_WRITE else None
            path = self._path if entry is None else f"{self._path}/{entry}"
            raise FileTransferError(self._tried, path, failure.error, advice)
        if early or command.outcome.wait_status:
            why = f" ({command.stopped_for.value})" if command.stopped_for else "; memory limit?"
            raise FileTransferError(self._tried, self._path, errno.EINTR, f"the process inside was killed{why}")
