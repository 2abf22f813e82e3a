"""Writes the tree of a layer entry by entry, as whoever describes it says, and never outside of its top directory.

Names come from archives that nobody vouches for. Each component of a path is opened by itself, relative to the
directory before it and without following a link, so that no name, link or order of entries leads out. What a sandbox
cannot have is left out and recorded, or refused. It runs as root, on a directory that nobody else can reach.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from minisandbox.images.entry import DEFAULT_MTIME_NS, Attributes, RefusedError, is_safe_xattr, quoted
from minisandbox.images.layer import Layer
from minisandbox.images.overlay import Parts, is_whiteout, look_below, make_opaque, make_whiteout, remove_entry
from minisandbox.images.owner import give_to, keeps_owners
from minisandbox.images.pieces import write_pieces
from minisandbox.images.stream import Bounds

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY_AT_FAULT = {
    getattr(errno, name) for name in "E2BIG EILSEQ EINVAL ELOOP EMLINK ENAMETOOLONG ENOENT ERANGE".split()
}
"""Errors that come of what an entry says, not of the disk that it is written to."""


class TreeWriter:
    """Writes into the empty directory `top`. Call `finish` at the end, `close` in any case.

    `below` are the layers that it will lie on, top first: directories that no entry describes are as they are there.
    """

    def __init__(
        self, top: Path, bounds: Bounds, below: Sequence[Layer] = (), on_entry: Callable[[], object] = int
    ) -> None:
        self.files = self.content_bytes = 0
        self.skipped: Counter[str] = Counter()
        """How many entries were left out, by what they were."""
        self._bounds, self._below, self._on_entry = bounds, below, on_entry
        self._top_fd = os.open(top, _DIRECTORY)
        self._here: Parts = ()
        self._here_fd = os.dup(self._top_fd)
        self._hidden: set[Parts] = set()  # what the layers below have there, and below it, does not show
        self._mtimes: dict[Parts, int] = {(): DEFAULT_MTIME_NS}

    def __enter__(self) -> TreeWriter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._here_fd)
        os.close(self._top_fd)

    def add_directory(self, parts: Parts, attributes: Attributes) -> None:
        """Make a directory, or give one that is there these attributes."""
        with _blamed_on_entry():
            if parts:
                parent_fd = self._open_parent(parts)
                status = _status(parts[-1], parent_fd)
                if status is None or not stat.S_ISDIR(status.st_mode):
                    self._replace(parts, status)
                    if status is not None and self._below:
                        self._hidden.add(parts)
                    self._make_directory(parts, parent_fd)
            directory_fd = self._open(parts)
            self._apply(directory_fd, attributes)
            self._mtimes[parts] = attributes.mtime_ns

    def add_file(self, parts: Parts, attributes: Attributes, size: int, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Make a regular file of pieces, each with its place in it; where there is none is a hole."""
        _check_placed(parts)
        self._count_content(size)
        with _blamed_on_entry():
            fd = self._create(parts)
            try:
                write_pieces(fd, size, pieces)
                self._apply(fd, attributes)
                os.utime(fd, ns=(attributes.mtime_ns, attributes.mtime_ns))
            finally:
                os.close(fd)

    def add_symlink(self, parts: Parts, attributes: Attributes, target: bytes) -> None:
        """Make a symbolic link. Its target is text: nothing here ever follows it."""
        _check_placed(parts)
        if not target or b"\0" in target:
            raise RefusedError(f"the target {target!r} of this link is no path")
        with _blamed_on_entry():
            parent_fd = self._make_way(parts)
            os.symlink(target, parts[-1], dir_fd=parent_fd)
            give_to(parts[-1], attributes.uid, attributes.gid, parent_fd)
            times = (attributes.mtime_ns, attributes.mtime_ns)
            os.utime(parts[-1], ns=times, dir_fd=parent_fd, follow_symlinks=False)
        self.skipped["xattr"] += len(attributes.xattrs)

    def add_hard_link(self, parts: Parts, target: Parts) -> None:
        """Make another name of a file that this tree has already."""
        _check_placed(parts)
        with _blamed_on_entry():
            source_fd = os.dup(self._open_existing(target[:-1], target))
            try:
                status = _status(target[-1], source_fd) if target else None
                if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                    raise RefusedError(f"it is a hard link to {_quoted(target)}, which is no file of this tree so far")
                if parts == target:
                    return
                parent_fd = self._make_way(parts)
                os.link(target[-1], parts[-1], src_dir_fd=source_fd, dst_dir_fd=parent_fd, follow_symlinks=False)
            finally:
                os.close(source_fd)

    def skip(self, parts: Parts, what: str) -> None:
        """Record that something is left out. What the layers below have in its place is hidden all the same."""
        _check_placed(parts)
        self.skipped[what] += 1
        with _blamed_on_entry():
            self._replace(parts, _status(parts[-1], self._open_parent(parts)))
        if self._below:
            self.hide(parts)

    def hide(self, parts: Parts) -> None:
        """Hide what the layers below have by this name. What this tree has by it, now or later, stays."""
        _check_placed(parts)
        self._hidden.add(parts)
        with _blamed_on_entry():
            parent_fd = self._open_parent(parts)
            status = _status(parts[-1], parent_fd)
            if status is None:
                self._count_entry()
                make_whiteout(parent_fd, parts[-1])
            elif stat.S_ISDIR(status.st_mode):
                make_opaque(self._open(parts))

    def hide_all_in(self, parts: Parts) -> None:
        """Hide all that the layers below have in this directory."""
        with _blamed_on_entry():
            make_opaque(self._open(parts))
        self._hidden.add(parts)

    def finish(self) -> None:
        """Set the times of directories, which change with every entry in them."""
        for parts, mtime_ns in sorted(self._mtimes.items()):
            with suppress(RefusedError):  # one that something else has replaced since
                os.utime(self._open_existing(parts, parts), ns=(mtime_ns, mtime_ns))

    def _open_parent(self, parts: Parts) -> int:
        return self._open(parts[:-1])

    def _open(self, parts: Parts) -> int:
        """Return a descriptor, good until the next call, of a directory, which is made like its parents if need be."""
        if parts != self._here:
            self._walk_to(parts, self._imply)
        return self._here_fd

    def _open_existing(self, parts: Parts, wanted: Parts) -> int:
        def refuse(place: Parts, _: int) -> None:
            raise RefusedError(f"there is no {_quoted(wanted)} in this tree so far")

        if parts != self._here:
            self._walk_to(parts, refuse)
        return self._here_fd

    def _walk_to(self, parts: Parts, on_missing: Callable[[Parts, int], None]) -> None:
        shared = len(self._here) if parts[: len(self._here)] == self._here else 0
        fd = os.dup(self._here_fd if shared else self._top_fd)
        try:
            for number in range(shared, len(parts)):
                try:
                    inner = os.open(parts[number], _DIRECTORY, dir_fd=fd)
                except (FileNotFoundError, NotADirectoryError):  # the latter for a link too
                    on_missing(parts[: number + 1], fd)
                    inner = os.open(parts[number], _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = inner
        except BaseException:
            os.close(fd)
            raise
        os.close(self._here_fd)
        self._here, self._here_fd = parts, fd

    def _imply(self, parts: Parts, parent_fd: int) -> None:
        """Make a directory that entries lie in but none has described so far."""
        there = _status(parts[-1], parent_fd)
        if there is not None and not is_whiteout(there):
            raise RefusedError(f"it lies below {_quoted(parts)}, which is no directory")
        is_hidden = any(parts[:number] in self._hidden for number in range(len(parts) + 1))
        lower = None if is_hidden else look_below(self._below, parts)
        if lower is not None and not stat.S_ISDIR(lower.st_mode):
            raise RefusedError(f"it lies below {_quoted(parts)}, which in the layers below is no directory")
        if there is not None:
            os.unlink(parts[-1], dir_fd=parent_fd)
        self._make_directory(parts, parent_fd)
        attributes = Attributes()
        if lower is not None:
            attributes = Attributes(stat.S_IMODE(lower.st_mode), lower.st_uid, lower.st_gid, lower.st_mtime_ns)
        fd = os.open(parts[-1], _DIRECTORY, dir_fd=parent_fd)
        try:
            self._apply(fd, attributes)
        finally:
            os.close(fd)
        self._mtimes[parts] = attributes.mtime_ns

    def _make_directory(self, parts: Parts, parent_fd: int) -> None:
        self._count_entry()
        os.mkdir(parts[-1], 0o700, dir_fd=parent_fd)
        if parts in self._hidden:
            fd = os.open(parts[-1], _DIRECTORY, dir_fd=parent_fd)
            try:
                make_opaque(fd)
            finally:
                os.close(fd)

    def _create(self, parts: Parts) -> int:
        """Make an empty file in place of whatever is there."""
        self._count_entry()
        parent_fd = self._open_parent(parts)
        try:
            return os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=parent_fd)
        except FileExistsError:
            self._replace(parts, _status(parts[-1], parent_fd))
            return os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=parent_fd)

    def _make_way(self, parts: Parts) -> int:
        """Count an entry, remove what is in its place and return the directory that it goes into."""
        self._count_entry()
        parent_fd = self._open_parent(parts)
        self._replace(parts, _status(parts[-1], parent_fd))
        return parent_fd

    def _replace(self, parts: Parts, status: os.stat_result | None) -> None:
        """Remove what is there, from the parent that was just opened."""
        if status is not None:
            remove_entry(self._here_fd, parts[-1], status)

    def _apply(self, fd: int, attributes: Attributes) -> None:
        give_to(fd, attributes.uid, attributes.gid)
        os.fchmod(fd, attributes.mode)  # after chown(2), which clears setuid and setgid
        for name, value in attributes.xattrs.items():
            if not is_safe_xattr(name) or not (keeps_owners() or name.startswith(b"user.")):
                self.skipped["xattr"] += 1
                continue
            try:
                os.setxattr(fd, name, value)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT) and os.fstatvfs(fd).f_bavail == 0:
                    raise
                message = f"its attribute {os.fsdecode(name)} of {len(value)} bytes cannot be kept: {error.strerror}"
                raise RefusedError(message) from error

    def _count_entry(self) -> None:
        self.files += 1
        if self.files > self._bounds.max_files:
            raise RefusedError(f"it is beyond the {self._bounds.max_files} files that were allowed (max_files)")
        self._on_entry()

    def _count_content(self, size: int) -> None:
        self.content_bytes += size
        if self.content_bytes > self._bounds.max_bytes:
            raise RefusedError(f"it is beyond the {self._bounds.max_bytes} bytes that were allowed (max_bytes)")


def _check_placed(parts: Parts) -> None:
    if not parts:
        raise RefusedError("it is in place of the top directory, but is none")


@contextmanager
def _blamed_on_entry() -> Iterator[None]:
    """Turn errors of the block that an entry itself causes into a RefusedError."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ENTRY_AT_FAULT:
            raise
        raise RefusedError(f"it cannot be made: {error.strerror}") from error


def _status(name: bytes, directory_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _quoted(parts: Parts) -> str:
    return quoted(b"/".join(parts))
