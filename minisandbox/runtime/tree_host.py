"""A directory of the host as the source of a tree, or as what is made of one: by descriptors, never through a link.

Blocks, so it is used in a thread. What it makes appears under its name when it is whole, and not before.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from minisandbox.errors import UsageError
from minisandbox.runtime.tree_stream import DEPTH_MAX, PATH_MAX_BYTES, SHORTER, Entry, Kind, special_name

CHUNK_BYTES = 1 << 18
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Omission = tuple[str, str]
"""A path, and why it was left out."""


class HostSource:
    """The entries of a directory, each directory before what is in it, names in order."""

    def __init__(self, path: Path) -> None:
        try:
            self._root_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"cannot read the directory {path}: {error.strerror}") from error
        self.omitted: list[Omission] = []
        self._files: dict[tuple[int, int], str] = {}

    def close(self) -> None:
        """Close the directory."""
        os.close(self._root_fd)

    def entries(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Yield each entry and its content, which must be taken before the next one is asked for."""
        pending = [("", os.dup(self._root_fd))]
        with contextlib.ExitStack() as opened:
            opened.callback(_close_all, pending)
            names = [sorted(os.listdir(self._root_fd), reverse=True)]
            while pending:
                if not names[-1]:
                    names.pop()
                    os.close(pending.pop()[1])
                    continue
                parent, parent_fd = pending[-1]
                name = names[-1].pop()
                path = f"{parent}/{name}" if parent else name
                try:
                    found = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        if len(pending) >= DEPTH_MAX or len(os.fsencode(path)) > PATH_MAX_BYTES - 256:
                            self.omitted.append((path, "is too deep"))
                            continue
                        pending.append((path, os.open(name, _DIRECTORY, dir_fd=parent_fd)))
                        names.append(sorted(os.listdir(pending[-1][1]), reverse=True))
                        yield _entry(Kind.DIRECTORY, path, found), iter(())
                    else:
                        yield from self._leaf(path, name, parent_fd, found)
                except OSError as error:
                    self.omitted.append((path, os.strerror(error.errno or 0)))
                    if len(pending) > len(names):
                        os.close(pending.pop()[1])

    def _leaf(
        self, path: str, name: str, parent_fd: int, found: os.stat_result
    ) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(name, dir_fd=parent_fd)
            yield _entry(Kind.SYMLINK, path, found)._replace(target=target), iter(())
            return
        if not stat.S_ISREG(found.st_mode):
            self.omitted.append((path, f"is a {special_name(found.st_mode)}"))
            return
        fd = os.open(name, _READ, dir_fd=parent_fd)
        try:
            found = os.fstat(fd)
            first = self._files.setdefault((found.st_dev, found.st_ino), path) if found.st_nlink > 1 else path
            if first != path:
                yield _entry(Kind.LINK, path, found)._replace(target=first), iter(())
            elif stat.S_ISREG(found.st_mode):
                yield (
                    _entry(Kind.FILE, path, found)._replace(size=found.st_size),
                    self._content(path, fd, found.st_size),
                )
        finally:
            os.close(fd)

    def _content(self, path: str, fd: int, size: int) -> Iterator[bytes]:
        """Yield exactly as many bytes as the entry said before."""
        left, ended = size, False
        while left:
            chunk = b""
            if not ended:
                try:
                    chunk = os.read(fd, min(left, CHUNK_BYTES))
                    why = SHORTER
                except OSError as error:
                    why = f"{os.strerror(error.errno or 0)}; zeros stand for the rest"
                if not chunk:
                    ended = True
                    self.omitted.append((path, why))
            chunk = chunk or bytes(min(left, CHUNK_BYTES))
            left -= len(chunk)
            yield chunk


def _close_all(directories: list[tuple[str, int]]) -> None:
    for _path, fd in directories:
        os.close(fd)


def _entry(kind: Kind, path: str, found: os.stat_result) -> Entry:
    return Entry(kind, path, mode=stat.S_IMODE(found.st_mode), mtime=max(0, int(found.st_mtime)))


def _write_sparsely(fd: int, chunk: bytes) -> None:
    """Write a chunk, or leave a hole where it is all zeros: no file takes more room here than it did inside."""
    if not chunk.lstrip(b"\0"):
        os.lseek(fd, len(chunk), os.SEEK_CUR)
        return
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]


class HostTarget:
    """Makes a directory. `commit` gives it its name, `discard` removes all that was made.

    Raises UsageError when there is something at the name but an empty directory, OSError when an entry cannot be made.
    """

    def __init__(self, path: Path, *, keep_owners: bool) -> None:
        self._keep_owners = keep_owners
        self._name = path.name
        self._partial = f".{path.name}.partial-{secrets.token_hex(4)}"
        if path.is_symlink() or (path.exists() and not (path.is_dir() and not os.listdir(path))):
            raise UsageError(f"{path} is there already; give a new directory or an empty one")
        try:
            self._above_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.mkdir(self._partial, 0o700, dir_fd=self._above_fd)
        except OSError as error:
            raise UsageError(f"cannot make a directory in {path.parent}: {error.strerror}") from error
        self._root_fd = os.open(self._partial, _DIRECTORY, dir_fd=self._above_fd)
        # where the last entry was: those of one directory mostly come together
        self._at: tuple[str, ...] = ()
        self._at_fd = os.dup(self._root_fd)

    def directory(self, entry: Entry) -> None:
        """Make a directory. Its owner can always use it, so that it can be removed again."""
        if entry.path == ".":
            self._dress(self._root_fd, entry, entry.mode & 0o777 | 0o700)
            return
        parent_fd, name = self._enter(entry.path)
        os.mkdir(name, 0o700, dir_fd=parent_fd)
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
        try:
            self._dress(fd, entry, entry.mode & 0o1777 | 0o700)
        finally:
            os.close(fd)

    def file(self, entry: Entry, chunks: Iterator[bytes]) -> None:
        """Make a file."""
        parent_fd, name = self._enter(entry.path)
        fd = os.open(name, _MAKE, 0o600, dir_fd=parent_fd)
        try:
            for chunk in chunks:
                _write_sparsely(fd, chunk)
            os.ftruncate(fd, entry.size)
            self._dress(fd, entry, entry.mode & 0o777)
            os.utime(fd, (entry.mtime, entry.mtime))
        finally:
            os.close(fd)

    def link(self, entry: Entry, first: str) -> None:
        """Make another name of a file that was made here."""
        first_fd, first_name = self._enter(first)
        first_fd = os.dup(first_fd)
        try:
            parent_fd, name = self._enter(entry.path)
            os.link(first_name, name, src_dir_fd=first_fd, dst_dir_fd=parent_fd, follow_symlinks=False)
        finally:
            os.close(first_fd)

    def symlink(self, entry: Entry) -> None:
        """Make a symbolic link."""
        parent_fd, name = self._enter(entry.path)
        os.symlink(entry.target, name, dir_fd=parent_fd)
        if self._keep_owners:
            os.chown(name, entry.uid, entry.gid, dir_fd=parent_fd, follow_symlinks=False)

    def commit(self) -> None:
        """Let the directory appear."""
        os.rename(self._partial, self._name, src_dir_fd=self._above_fd, dst_dir_fd=self._above_fd)

    def discard(self) -> None:
        """Remove what was made."""
        shutil.rmtree(self._partial, dir_fd=self._above_fd)

    def close(self) -> None:
        """Close every descriptor."""
        for fd in (self._at_fd, self._root_fd, self._above_fd):
            os.close(fd)

    def _dress(self, fd: int, entry: Entry, mode: int) -> None:
        if self._keep_owners:
            os.chown(fd, entry.uid, entry.gid)
        os.chmod(fd, mode)  # after the owner: that takes bits away

    def _enter(self, path: str) -> tuple[int, str]:
        """Return a descriptor of the directory that a path is in, valid until the next call, and the name in it."""
        *directories, name = path.split("/")
        wanted = tuple(directories)
        if wanted != self._at:
            known = len(self._at) if wanted[: len(self._at)] == self._at else 0
            fd = os.dup(self._at_fd if known else self._root_fd)
            for each in wanted[known:]:
                try:
                    below_fd = os.open(each, _DIRECTORY, dir_fd=fd)
                finally:
                    os.close(fd)
                fd = below_fd
            os.close(self._at_fd)
            self._at, self._at_fd = wanted, fd
        return self._at_fd, name
