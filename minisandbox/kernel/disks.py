"""Disks of sandboxes, as the launcher deals with them once they are written: sealed, and copied into new ones."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence

import trio

from minisandbox.errors import BusyError, StartError
from minisandbox.kernel.launcher import Launcher, step_deadline
from minisandbox.kernel.protocol import RecordKind, Request, stage_name

_ENDING_S, _AGAIN_S = 5.0, 0.002
"""How long the end of a process that copied may take, and how often it is looked for."""

_COPIES = itertools.count(1 << 31)
"""Numbers of copies. Sandboxes have lower ones for a long time."""


def _nothing() -> None: ...


async def seal_disk(
    launcher: Launcher, slot: int, sandbox: int, disk_fd: int, on_asked: Callable[[], None] = _nothing
) -> int:
    """Make the disk of a sandbox, or a copy, read-only for good (`disk_fd` is borrowed). Shielded, with a deadline.

    The launcher does one thing after the other: what is sent to it from `on_asked` on finds the disk sealed, or fails
    with this.
    Returns a descriptor of the mount namespace without which it cannot be a layer before Linux 6.15, else -1.
    Raises BusyError when something there is open for writing.
    """
    sealed = launcher.expect(RecordKind.SEALED, sandbox)
    request = Request("seal").option("slot", slot).option("id", sandbox).descriptor("disk", disk_fd)
    with trio.CancelScope(shield=True), step_deadline(f"the disk of sandbox {sandbox} to be sealed"):
        await launcher.send(request)
        on_asked()
        await sealed.wait()
    record = launcher.answer(RecordKind.SEALED, sandbox)
    if record.error == errno.EBUSY:
        raise BusyError("a file of this sandbox is still open for writing, by a process that is not in it")
    if record.kind == RecordKind.FAILED:
        raise StartError("cannot seal the disk of a sandbox", stage_name(record.stage), record.error)
    return launcher.take_opened(sandbox)


async def copy_layers(
    launcher: Launcher, layer_fds: Sequence[int], join_fds: Sequence[int], deadline_s: float
) -> tuple[int, int]:
    """Return a mount of a new file system in memory with a copy of layers (top first) merged into one, sealed.

    Beside it what `seal_disk` returns.

    The process that copies writes "0" to `join_fds` first (all borrowed). It is not stopped when this is cancelled, nor
    at the deadline. Raises StartError, DeadlineError.
    """
    number = next(_COPIES)
    opened = launcher.expect(RecordKind.OPENED, number)
    request = Request("copy").option("id", number)
    for fd in layer_fds:
        request.descriptor("layer", fd)
    for fd in join_fds:
        request.descriptor("inits", fd)
    try:
        await launcher.send(request)
        with step_deadline("a copy of what a sandbox wrote", deadline_s):
            await opened.wait()
    finally:
        launcher.forget(RecordKind.OPENED, number)
    record = launcher.answer(RecordKind.OPENED, number)
    if record.kind == RecordKind.FAILED:
        raise StartError("cannot copy what a sandbox wrote", stage_name(record.stage), record.error)
    disk_fd = launcher.take_opened(number)
    try:
        return disk_fd, await _seal_copy(launcher, number, disk_fd)
    except BaseException:
        os.close(disk_fd)
        raise


async def _seal_copy(launcher: Launcher, number: int, disk_fd: int) -> int:
    """Do as `seal_disk` for a copy: what keeps it busy is the process that made it, which is ending."""
    patience = trio.current_time() + _ENDING_S
    while True:
        try:
            return await seal_disk(launcher, 0, number, disk_fd)
        except BusyError:
            if trio.current_time() > patience:
                raise
            await trio.sleep(_AGAIN_S)
