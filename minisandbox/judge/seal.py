"""SEAL: nothing of the submission runs any more; and then, what of it is read, unparsed, on its way to the ingest.

A submission is a sandbox of an episode, or a directory of the host, which may be as hostile.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import trio

from minisandbox.errors import DeadlineError, FileTransferError
from minisandbox.judge.assignment import Declared
from minisandbox.judge.ingest import Feed, Send
from minisandbox.judge.ingest_program import CHUNK_BYTES
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.slots import configure
from minisandbox.runtime.tree_host import HostSource
from minisandbox.runtime.tree_pump import Tally, send
from minisandbox.runtime.tree_stream import Entry
from minisandbox.runtime.trees import stream_tree

SEAL_DEADLINE_S = 30.0
POLL_S = 0.002
ROOM_BYTES = 64 << 20
"""What is added to the memory of a sealed sandbox: whoever filled it must not be able to keep it from being read."""


async def seal(sandbox: Sandbox) -> bool:
    """Kill every process of a sandbox, wait until none is left, and return whether any ran.

    It can be read then, however full it is, and should not be used otherwise. Raises DeadlineError when one is left.
    """
    await sandbox.drop_standing()  # nothing of the submission
    alive = any(command.leaf.is_populated() for command in [*sandbox.commands.values(), *sandbox.leftover])
    await sandbox.kill_all()
    with trio.move_on_after(SEAL_DEADLINE_S) as scope:
        while any(command.leaf.is_populated() for command in sandbox.leftover):  # noqa: ASYNC110 - v1 has no event for it
            await trio.sleep(POLL_S)
    if scope.cancelled_caught:
        raise DeadlineError(f"processes of a submission were still there {SEAL_DEADLINE_S:g} s after their kill")
    if sandbox.limits.memory_bytes is not None:
        memory_bytes = sandbox.limits.memory_bytes + ROOM_BYTES
        configure(sandbox.slot, msgspec.structs.replace(sandbox.limits, memory_bytes=memory_bytes))
    return alive


def feed_directory(path: Path, declared: Declared) -> Feed:
    """Return what sends the declared paths of a directory of the host."""

    async def feed(tell: Send) -> None:
        source = _Filtered(path, declared.paths)
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        with contextlib.closing(source):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, _pack, source, write_fd)
                await trio.to_thread.run_sync(_relay_and_close, read_fd, tell)
            await tell(b"")
            for omitted, _ in source.omitted:
                await tell(["forbidden", os.fsencode(omitted).decode(errors="backslashreplace")])
            for missing in source.missing():
                await tell(["missing", missing])

    return feed


class _Filtered(HostSource):
    """The entries of a directory that were declared."""

    def __init__(self, path: Path, wanted: tuple[str, ...]) -> None:
        super().__init__(path)
        self._wanted = wanted
        self._seen = {"."}

    def missing(self) -> list[str]:
        """Return what was declared and not there, once all entries were read."""
        left_out = {os.fsdecode(omitted) for omitted, _ in self.omitted}
        return [root for root in self._wanted if root not in self._seen | left_out]

    def entries(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Yield what was declared."""
        for entry, chunks in super().entries():
            within = {root for root in self._wanted if root == "." or f"{entry.path}/".startswith(f"{root}/")}
            self._seen |= within
            if within:
                yield entry, chunks


def _pack(source: HostSource, fd: int) -> None:
    try:
        with contextlib.suppress(BrokenPipeError):  # nobody wants the rest
            send(source, fd, Tally(None))
    finally:
        os.close(fd)


def _relay_and_close(fd: int, tell: Send) -> None:
    try:
        _relay(fd, lambda value: trio.from_thread.run(tell, value), ["tree", ""])
    finally:
        os.close(fd)


def feed_sandbox(sandbox: Sandbox, declared: Declared, *, alive: bool = False) -> Feed:
    """Return what sends the declared paths of a sandbox that was sealed; `alive` is what `seal` returned."""

    async def feed(tell: Send) -> None:
        if alive:
            await tell(["alive", "(processes)"])
        for path in declared.paths:
            inner = os.path.normpath(os.path.join(declared.root, path))
            prefix = "" if path == "." else path
            if not await _send_tree(sandbox, inner, prefix, tell):
                await _send_file(sandbox, inner, prefix, tell, declared.max_file_bytes)

    return feed


async def _send_tree(sandbox: Sandbox, inner: str, prefix: str, tell: Send) -> bool:
    """Send a directory; False when there is none of that name."""
    begun = False

    def consume(fd: int) -> None:
        nonlocal begun
        begun = _relay(fd, lambda value: trio.from_thread.run(tell, value), ["tree", prefix])

    try:
        await stream_tree(sandbox, inner, consume)
    except FileTransferError as error:
        if begun:
            await tell(b"")
        if error.errno not in (errno.ENOTDIR, errno.ENOENT, errno.ELOOP) or begun:
            raise
        return False
    await tell(b"")
    return True


def _relay(fd: int, tell: Callable[[object], object], head: list[str]) -> bool:
    """Send what comes out of a pipe in chunks, a head before the first; return whether anything came."""
    begun = False
    while chunk := os.read(fd, CHUNK_BYTES):
        if not begun:
            tell(head)
            begun = True
        tell(chunk)
    return begun


async def _send_file(sandbox: Sandbox, inner: str, path: str, tell: Send, max_bytes: int) -> None:
    try:
        content = await sandbox.read_file(inner, max_bytes=max_bytes)
    except FileTransferError as error:
        if error.errno == errno.ENOENT:
            await tell(["missing", path])
            return
        await tell(["over" if error.errno == errno.EFBIG else "forbidden", path])
        return
    await tell(["file", path])
    for at in range(0, len(content), CHUNK_BYTES):
        await tell(content[at : at + CHUNK_BYTES])
    await tell(b"")
