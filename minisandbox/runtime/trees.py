"""Directories in and out of a sandbox, as streams through a pipe: nothing is held in memory, nothing is an argument.

Theory of operation. A process inside, under the limits of a command, makes the stream of a tree or a tree of a stream
(`launcher/pack.c`, `unpack.c`), and a thread of ours does the other half (`tree_pump`). So what is read and written inside
is so with the sandbox's ids and charged to it, and what leaves the sandbox is data: checked entry by entry and made anew
below one directory of the host, through descriptors. No name that the sandbox chose is ever looked up anywhere else.
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

from minisandbox.errors import BrokenError, FileTransferError, HostError, SandboxError
from minisandbox.kernel.protocol import Stage
from minisandbox.runtime.command import Command, common_request
from minisandbox.runtime.files import ROOT_CAPABILITIES, resolve_user
from minisandbox.runtime.supervision import supervise
from minisandbox.runtime.text import check_path
from minisandbox.runtime.tree_archive import ArchiveSource, ArchiveTarget, Reader, Writer
from minisandbox.runtime.tree_host import HostSource, HostTarget
from minisandbox.runtime.tree_pump import PIPE_BYTES, Progress, Source, Tally, Target, TreeBounds, TreeReport, receive, send
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
    tally = Tally(progress)
    made: Target
    if isinstance(target, str | os.PathLike):
        made = await trio.to_thread.run_sync(lambda: HostTarget(Path(target), keep_owners=keep_owners))
    else:
        made = ArchiveTarget(target, keep_owners=keep_owners)
    with contextlib.closing(made):
        transfer = _Transfer(sandbox, "get the tree", path, tally)
        try:
            await transfer.run("pack", (0, 0), lambda fd: receive(fd, made, tally, bounds, path))
        except BaseException:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(made.discard)
            raise
    return tally.report()


class _Transfer:
    """One process inside and one thread here, with a pipe between."""

    def __init__(self, sandbox: Sandbox, tried: str, path: str, tally: Tally) -> None:
        self._sandbox, self._tried, self._path, self._tally = sandbox, tried, path, tally
        self._command: Command = sandbox.new_command(_LIMITS)
        self._error: Exception | None = None

    async def run(self, verb: str, ids: tuple[int, int], work: Callable[[int], None]) -> None:
        """Run both to their end. Raises what explains best why it failed. Cancelled: both have ended."""
        command = self._command
        try:
            with _pipe() as (read_fd, write_fd):
                ours, theirs = (read_fd, write_fd) if verb == "pack" else (write_fd, read_fd)
                request = common_request(verb, command, [theirs, theirs]).option("path", self._path)
                request.option("uid", ids[0]).option("gid", ids[1]).option("capabilities", ROOT_CAPABILITIES)
                await self._sandbox.start_command(command, request)
                theirs.close()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch)
                    await self._work(work, ours)
        except BaseException:
            await self._sandbox.abandon(command)
            raise
        self._sandbox.finish(command)
        self._raise_failure()
