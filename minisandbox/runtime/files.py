"""Files in and out of a sandbox, one at a time: regular files only, size-capped, never blocking on what is inside.

A process inside opens the path with the sandbox's ids, so that whatever it leads to is the sandbox's own. To read, its
descriptor comes to us; to write, it copies from a pipe, so that what is written is charged to the sandbox.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import trio

from minisandbox.capabilities import capability_mask
from minisandbox.degradation import MISSING, Degradation
from minisandbox.errors import FileTransferError, UsageError
from minisandbox.kernel.descriptors import open_pipe
from minisandbox.kernel.protocol import WARDEN_ID, Record, Stage
from minisandbox.runtime.capture import Feed
from minisandbox.runtime.command import Command, common_request
from minisandbox.runtime.supervision import supervise
from minisandbox.runtime.text import check_path
from minisandbox.spec import ExitReason, Limits

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

DEFAULT_MAX_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_PASSWD_MAX_BYTES = 1 << 20
_TRANSFER_LIMITS = Limits(wall_time_s=600.0)

ROOT_CAPABILITIES = capability_mask(("CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER"))
"""Of what moves files and trees, towards the sandbox's own files (capabilities(7))."""

_ADVICE = {
    (Stage.FILE_TYPE, errno.EINVAL): "only regular files can be transferred",
    (Stage.FILE_OPEN, errno.ENXIO): "only regular files can be transferred",
    (Stage.FILE_OPEN, errno.EROFS): "that part of the sandbox is read-only",
    (Stage.FILE_TYPE, errno.EISDIR): "it is a directory",
    (Stage.FILE_OPEN, errno.ELOOP): "it is a link; name its target",
    (Stage.FILE_WRITE, errno.ENOSPC): "the sandbox's disk limit is reached",
}


async def read_file(sandbox: Sandbox, path: str, max_bytes: int) -> bytes:
    """Return the content of a regular file. Raises FileTransferError when it is none, or larger than `max_bytes`."""
    if max_bytes < 0:
        raise UsageError(f"max_bytes is {max_bytes}, it cannot be negative")
    command = await _transfer(sandbox, "read", path, "get", None)
    fd = command.outcome.opened_fd
    try:
        chunks: list[bytes] = []
        total = 0
        while chunk := os.pread(fd, min(_CHUNK_BYTES, max_bytes - total + 1), total):
            total += len(chunk)
            if total > max_bytes:
                raise FileTransferError("read", path, errno.EFBIG, f"it is larger than max_bytes, {max_bytes}")
            chunks.append(chunk)
            await trio.lowlevel.checkpoint()
    finally:
        os.close(fd)
    return b"".join(chunks)


async def write_file(sandbox: Sandbox, path: str, data: bytes, mode: int, user: str | int) -> None:
    """Make or replace a regular file. Raises FileTransferError unless all of it was written."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"the content of a file is bytes, not {type(data).__name__}; encode text first")
    if not 0 <= mode <= 0o777:
        raise UsageError(f"mode {mode:#o} is not one of permission bits; give 0 to 0o777")
    await _transfer(sandbox, "write", path, "put", data, mode=mode, user=user)


async def _transfer(
    sandbox: Sandbox, tried: str, path: str, verb: str, data: bytes | None, *, mode: int = 0, user: str | int = "root"
) -> Command:
    check_path("path", path)
    await sandbox.settled()
    uid, gid = await resolve_user(sandbox, user)
    command = sandbox.new_command(_TRANSFER_LIMITS)
    fds: list[int] = []
    try:
        if data is not None:
            read_fd, write_fd = open_pipe()
            fds.append(read_fd)
            command.feed = Feed(sandbox.reactor, write_fd, data)
        request = common_request(verb, command, fds).option("path", path).option("uid", uid).option("gid", gid)
        request.option("capabilities", ROOT_CAPABILITIES)
        if data is not None:
            request.option("mode", mode)
        await sandbox.start_command(command, request)
        _close_all(fds)
        await supervise(command, _TRANSFER_LIMITS)
    except BaseException:
        _close_all(fds)
        await sandbox.abandon(command)
        if command.outcome.opened_fd >= 0:
            os.close(command.outcome.opened_fd)
        raise
    killed = command.stopped_for or _killed_reason(command)
    sandbox.finish(command)
    if command.outcome.failure is not None:
        raise _failure_error(command.outcome.failure, tried, path)
    if killed is not None:
        raise FileTransferError(tried, path, errno.EINTR, f"the transfer was killed ({killed})")
    return command


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _killed_reason(command: Command) -> ExitReason | str | None:
    status = command.outcome.wait_status or 0
    if os.WIFSIGNALED(status):
        return f"by signal {os.WTERMSIG(status)}; memory limit?"
    # it could not even say why: that takes memory
    return "out of memory" if status and command.outcome.failure is None else None


def _failure_error(record: Record, tried: str, path: str) -> FileTransferError:
    try:
        advice = _ADVICE.get((Stage(record.stage), record.error), "")
    except ValueError:
        advice = f"step {record.stage}"
    return FileTransferError(tried, path, record.error, advice)


async def resolve_user(sandbox: Sandbox, user: str | int) -> tuple[int, int]:
    """Return the uid and gid of a user inside: root, a number, or a name in its /etc/passwd.

    Raises UsageError when there is no such user.
    """
    if user in ("root", 0, "0"):
        return 0, 0
    text = str(user)
    if text.isdecimal():
        uid = int(text)
        if uid >= WARDEN_ID:
            raise UsageError(f"user {uid} is beyond the {WARDEN_ID} ids of a sandbox")
        _check_single_id(sandbox, user)
        return uid, uid
    for line in (await read_file(sandbox, "/etc/passwd", _PASSWD_MAX_BYTES)).split(b"\n"):
        fields = line.decode("utf-8", "replace").split(":")
        if len(fields) >= 4 and fields[0] == text and fields[2].isdecimal() and fields[3].isdecimal():
            uid, gid = int(fields[2]), int(fields[3])
            if max(uid, gid) < WARDEN_ID:
                _check_single_id(sandbox, user)
                return uid, gid
    raise UsageError(f"user {text!r} does not exist in the sandbox's /etc/passwd; give a name from it, or a number")


def _check_single_id(sandbox: Sandbox, user: str | int) -> None:
    if Degradation.SINGLE_ID in sandbox.degraded:
        what, advice = MISSING[Degradation.SINGLE_ID]
        raise UsageError(f"user {user!r} cannot be had: root alone is in this sandbox, since {what}; {advice}")
