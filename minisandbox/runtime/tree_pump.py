"""The supervisor's half of moving a tree, run in a thread: from a source into a pipe, or from a pipe into a target.

What comes out of a pipe is hostile. An entry that fits nowhere is left out and told; a stream that is none ends it.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
import trio

from minisandbox.errors import FileTransferError
from minisandbox.runtime.tree_host import Omission
from minisandbox.runtime.tree_stream import (
    BLOCK,
    END,
    Entry,
    Kind,
    encode_entry,
    leads_out,
    padding,
    read_entries,
    why_omitted,
)

PIPE_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 18
_PROGRESS_S = 0.1
_RECENT = 2 * (PIPE_BYTES + _BUFFER_BYTES) // BLOCK
"""More entries than can be on their way when one fails; their names are kept for the message."""

_UNFIT = frozenset({errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
"""Errors of entries that do not fit together: of a tree that changed while it was packed, or of a forged stream."""

Progress = Callable[[int, int], object]
"""Called now and then with how many files and bytes went over so far."""


class TreeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much may come out of a sandbox at once."""

    max_bytes: int = 4 << 30
    max_entries: int = 2_000_000


class TreeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What went over."""

    files: int
    """Regular files; one with several names counts for each."""
    bytes: int
    """Of their content."""
    skipped: tuple[Omission, ...]
    """What did not, each with the reason why."""


class Source(Protocol):
    """Where a tree comes from."""

    omitted: list[Omission]

    def entries(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Yield entries, each with its content, a directory before what is in it."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Target(Protocol):
    """What is made of a tree. OSError when an entry cannot be made."""

    def directory(self, entry: Entry) -> None:
        """Make a directory."""
        ...

    def file(self, entry: Entry, chunks: Iterator[bytes]) -> None:
        """Make a file."""
        ...

    def link(self, entry: Entry, first: str) -> None:
        """Make another name of a file."""
        ...

    def symlink(self, entry: Entry) -> None:
        """Make a symbolic link."""
        ...

    def commit(self) -> None:
        """All of it was made."""
        ...

    def discard(self) -> None:
        """Not all of it will be made."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Tally:
    """Counts what goes over, tells it, and notices when nobody waits for it any more."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._told = time.monotonic()
        self.files = self.bytes = self.entries = 0
        self.omitted: list[Omission] = []
        self.recent: deque[str] = deque(maxlen=_RECENT)

    def count(self, entry: Entry) -> None:
        """Count an entry."""
        self.entries += 1
        self.recent.append(entry.path)
        if entry.kind in (Kind.FILE, Kind.LINK):
            self.files += 1

    def watched(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Pass on what goes over, count it, and tell how far it is now and then. Raises Cancelled when cancelled."""
        for chunk in chunks:
            self.bytes += len(chunk)
            yield chunk
            self.check()
        self.check()

    def check(self) -> None:
        """Tell how far it is, if that is some time ago. Raises Cancelled when the transfer was cancelled."""
        if time.monotonic() - self._told > _PROGRESS_S:
            self.tell()

    def tell(self) -> None:
        """Tell how far it is. Raises Cancelled when the transfer was cancelled."""
        trio.from_thread.check_cancelled()
        self._told = time.monotonic()
        if self._progress is not None:
            trio.from_thread.run_sync(self._progress, self.files, self.bytes)

    def path_of(self, index: int) -> str | None:
        """Return the path of an entry by its number, if it was counted lately."""
        at = index - (self.entries - len(self.recent))
        return self.recent[at] if 0 <= at < len(self.recent) else None

    def report(self) -> TreeReport:
        """Return what was counted."""
        return TreeReport(files=self.files, bytes=self.bytes, skipped=tuple(self.omitted))


def send(source: Source, pipe_fd: int, tally: Tally) -> None:
    """Write a source into a pipe. Raises BrokenPipeError when nobody reads it any more."""
    tally.omitted = source.omitted
    buffer = bytearray()
    for entry, chunks in source.entries():
        tally.count(entry)
        buffer += encode_entry(entry)
        for chunk in tally.watched(chunks):
            buffer += chunk
            if len(buffer) >= _BUFFER_BYTES:
                _write_all(pipe_fd, buffer)
        buffer += padding(entry.size)
        if len(buffer) >= _BUFFER_BYTES:
            _write_all(pipe_fd, buffer)
    buffer += END
    _write_all(pipe_fd, buffer)
    tally.tell()


def _write_all(fd: int, buffer: bytearray) -> None:
    with memoryview(buffer) as view:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:])
    buffer.clear()


def receive(pipe_fd: int, target: Target, tally: Tally, bounds: TreeBounds, inner_path: str) -> None:
    """Make a target of what comes out of a pipe.

    Raises EOFError when the stream ends early, ProtocolError when it is none, FileTransferError beyond `bounds`.
    """
    pipe = _Pipe(pipe_fd)
    first_names: dict[str, str] = {}
    for entry in read_entries(pipe.read):
        tally.count(entry)
        if tally.entries > bounds.max_entries or tally.bytes + entry.size > bounds.max_bytes:
            advice = f"it is larger than its bounds, {bounds.max_bytes} bytes and {bounds.max_entries} entries"
            raise FileTransferError("get the tree", inner_path, errno.EFBIG, advice)
        content = tally.watched(pipe.content(entry.size))
        try:
            _make(entry, content, target, first_names, tally)
        except OSError as error:
            if error.errno not in _UNFIT:
                raise
            tally.omitted.append((entry.path, f"does not fit in: {os.strerror(error.errno)}"))
        for _ in content:  # of a file that could not be made
            pass
    tally.tell()


def _make(entry: Entry, content: Iterator[bytes], target: Target, first_names: dict[str, str], tally: Tally) -> None:
    if entry.kind is Kind.OMITTED:
        tally.omitted.append((entry.path, why_omitted(entry)))
    elif entry.kind is Kind.DIRECTORY:
        target.directory(entry)
    elif entry.kind is Kind.SYMLINK:
        if leads_out(entry.path, entry.target):
            tally.omitted.append((entry.path, f"is a link that leads out of the tree: {entry.target}"))
        else:
            target.symlink(entry)
    elif entry.kind is Kind.LINK:
        if entry.inode in first_names:
            target.link(entry, first_names[entry.inode])
        else:
            tally.omitted.append((entry.path, "is another name of a file that is not there"))
    else:
        target.file(entry, content)
        if entry.inode:
            first_names.setdefault(entry.inode, entry.path)


class _Pipe:
    """Reads a pipe in large pieces and hands out small ones."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes."""
        while len(self._data) - self._at < size:
            more = os.read(self._fd, PIPE_BYTES)
            if not more:
                raise EOFError
            self._data = self._data[self._at :] + more
            self._at = 0
        self._at += size
        return self._data[self._at - size : self._at]

    def content(self, size: int) -> Iterator[bytes]:
        """Yield so many bytes in pieces, and take the padding behind them."""
        left = size
        while left:
            piece = self.read(min(left, max(len(self._data) - self._at, 1)))
            left -= len(piece)
            yield piece
        self.read(-size % BLOCK)
