"""Writes the tree of a layer step by step, and so copies one layer, or several merged into one.

The steps come parents first, as walks yield them. The directory that is written to is the only one open, and its
entries are new, so nothing that a tree says can lead out of it. What cannot be kept is an error, never left out.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from minisandbox.errors import HostError
from minisandbox.images.entry import quoted
from minisandbox.images.marks import Marks
from minisandbox.images.merged import Found, Inode, MergedWalk
from minisandbox.images.pieces import write_pieces
from minisandbox.images.progress import Meter
from minisandbox.images.snapshot_record import Owners, Recorder, kept_mtime_ns
from minisandbox.images.sparse import Segments
from minisandbox.images.tree import TOP, Step

CHUNK_BYTES = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file has besides content: ids as a sandbox sees them."""

    mode: int
    """With the type (inode(7))."""
    uid: int
    gid: int
    mtime_ns: int
    xattrs: dict[bytes, bytes]


class LayerWriter:
    """Writes into the empty directory `top_fd`, which is borrowed. Call `finish` at the end, `close` in any case."""

    def __init__(self, top_fd: int, marks: Marks, owners: Owners) -> None:
        self._marks, self._owners = marks, owners
        self._here_fd = os.open(TOP, _DIRECTORY, dir_fd=top_fd)
        self._top_fd = os.open(TOP, _DIRECTORY, dir_fd=top_fd)
        self._entered: list[FileFacts] = []
        # Further names of a file are made of one in here, which is found however deep and long the others are.
        self._shelf = b".shared-" + secrets.token_hex(8).encode()
        self._shelf_fd = -1

    def __enter__(self) -> LayerWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._here_fd, self._top_fd, self._shelf_fd):
            if fd >= 0:
                os.close(fd)

    @property
    def depth(self) -> int:
        """How many directories lie around the next entry, the top one included."""
        return len(self._entered)

    def enter(self, name: bytes, facts: FileFacts, *, is_opaque: bool) -> None:
        """Make a directory, and go into it; the top one, by the name `TOP`, is there already."""
        if name != TOP:
            os.mkdir(name, 0o700, dir_fd=self._here_fd)
            self._move(name)
        if is_opaque:
            self._marks.make_opaque(self._here_fd)
        self._entered.append(facts)

    def leave(self) -> None:
        """Give the directory its attributes, now that nothing changes its time any more, and go out of it."""
        facts = self._entered.pop()
        if not self._entered:
            self._drop_shelf()
        self._describe(self._here_fd, TOP, facts)
        os.utime(self._here_fd, ns=(facts.mtime_ns, facts.mtime_ns))
        if self._entered:
            self._move(b"..")

    def add_file(self, name: bytes, facts: FileFacts, size: int, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Make a regular file of pieces, each with its place in it; where there is none is a hole."""
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=self._here_fd)
        try:
            write_pieces(fd, size, pieces)
            self._describe(fd, name, facts)
            os.utime(fd, ns=(facts.mtime_ns, facts.mtime_ns))
        finally:
            os.close(fd)

    def add_symlink(self, name: bytes, facts: FileFacts, target: bytes) -> None:
        """Make a symbolic link. Nothing here ever follows it."""
        os.symlink(target, name, dir_fd=self._here_fd)
        self._describe_by_name(name, facts)

    def add_special(self, name: bytes, facts: FileFacts) -> None:
        """Make a FIFO or a socket."""
        os.mknod(name, stat.S_IFMT(facts.mode) | 0o600, dir_fd=self._here_fd)
        self._describe_by_name(name, facts)

    def add_whiteout(self, name: bytes) -> None:
        """Hide what the layers below have by this name."""
        self._marks.make_whiteout(self._here_fd, name)

    def share(self, name: bytes, number: int) -> None:
        """Keep the file that was just made at hand for `add_shared`."""
        if self._shelf_fd < 0:
            os.mkdir(self._shelf, 0o700, dir_fd=self._top_fd)
            self._shelf_fd = os.open(self._shelf, _DIRECTORY, dir_fd=self._top_fd)
        self._link(name, self._here_fd, b"%d" % number, self._shelf_fd)

    def add_shared(self, name: bytes, number: int) -> None:
        """Make one more name of a file that was shared."""
        self._link(b"%d" % number, self._shelf_fd, name, self._here_fd)

    def _drop_shelf(self) -> None:
        if self._shelf_fd < 0:
            return
        for name in os.listdir(self._shelf_fd):
            os.unlink(name, dir_fd=self._shelf_fd)
        os.rmdir(self._shelf, dir_fd=self._top_fd)

    def _link(self, name: bytes, source_fd: int, new_name: bytes, target_fd: int) -> None:
        os.link(name, new_name, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)

    def _move(self, name: bytes) -> None:
        fd = os.open(name, _DIRECTORY, dir_fd=self._here_fd)
        os.close(self._here_fd)
        self._here_fd = fd

    def _outer(self, facts: FileFacts) -> tuple[int, int]:
        return facts.uid or self._owners.uid, facts.gid or self._owners.gid

    def _describe(self, fd: int, name: bytes, facts: FileFacts) -> None:
        """Set owner, mode and attributes, in this order: chown(2) drops the setuid bit and capabilities."""
        with _keeping(name, facts):
            os.fchown(fd, *self._outer(facts))
        os.fchmod(fd, stat.S_IMODE(facts.mode))
        for xattr, value in facts.xattrs.items():
            os.setxattr(fd, xattr, value)

    def _describe_by_name(self, name: bytes, facts: FileFacts) -> None:
        with _keeping(name, facts):
            os.chown(name, *self._outer(facts), dir_fd=self._here_fd, follow_symlinks=False)
        path = b"/proc/self/fd/%d/%s" % (self._here_fd, name)
        if not stat.S_ISLNK(facts.mode):
            os.chmod(path, stat.S_IMODE(facts.mode))
        for xattr, value in facts.xattrs.items():
            os.setxattr(path, xattr, value, follow_symlinks=False)
        os.utime(name, ns=(facts.mtime_ns, facts.mtime_ns), dir_fd=self._here_fd, follow_symlinks=False)


def copy_layers(steps: Iterable[Found], recorder: Recorder, writer: LayerWriter, meter: Meter) -> None:
    """Write what a walk yields, whiteouts and opaque directories only where they can hide something."""
    shared: dict[Inode, int] = {}
    for found in steps:
        if found.step is Step.LEAVE:
            writer.leave()
        elif found.step is Step.ENTER:
            is_opaque = found.is_hiding and not found.is_in_hiding
            writer.enter(found.name, facts_of(found, recorder), is_opaque=is_opaque)
        elif not found.is_whiteout:
            _copy_file(found, recorder, writer, shared, meter)
        elif not found.is_in_hiding:
            writer.add_whiteout(found.name)
        meter.add_file()


def facts_of(found: Found, recorder: Recorder) -> FileFacts:
    """Return what a file has besides its content."""
    uid, gid = recorder.owners.inner(found.status)
    xattrs = recorder.marks.read_xattrs(found.path)
    return FileFacts(found.status.st_mode, uid, gid, kept_mtime_ns(found.status), xattrs)


def _copy_file(found: Found, recorder: Recorder, writer: LayerWriter, shared: dict[Inode, int], meter: Meter) -> None:
    if found.inode in shared:
        writer.add_shared(found.name, shared[found.inode])
        return
    facts = facts_of(found, recorder)
    match stat.S_IFMT(found.status.st_mode):
        case stat.S_IFREG:
            writer.add_file(
                found.name, facts, found.status.st_size, _counted(read_pieces(found, segments_of(found)), meter)
            )
        case stat.S_IFLNK:
            writer.add_symlink(found.name, facts, os.readlink(found.name, dir_fd=found.directory_fd))
        case stat.S_IFIFO | stat.S_IFSOCK:
            writer.add_special(found.name, facts)
        case _:
            raise HostError(f"{quoted(found.name)} is a device, which no layer can have")
    if found.status.st_nlink > 1:
        shared[found.inode] = len(shared)
        writer.share(found.name, shared[found.inode])


def read_pieces(found: Found, segments: Segments) -> Iterator[tuple[int, bytes]]:
    """Yield what a regular file has at these places."""
    fd = os.open(found.name, _READ_FILE, dir_fd=found.directory_fd)
    try:
        for place, length in segments:
            end = place + length
            while place < end and (data := os.pread(fd, min(CHUNK_BYTES, end - place), place)):
                yield place, data
                place += len(data)
    finally:
        os.close(fd)


def segments_of(found: Found) -> Segments:
    """Return place and length of each piece of a regular file that is no hole (lseek(2), SEEK_DATA)."""
    segments = []
    fd = os.open(found.name, _READ_FILE, dir_fd=found.directory_fd)
    end = 0
    try:
        while end < found.status.st_size:
            place = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, place, os.SEEK_HOLE)
            segments.append((place, end - place))
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole from there to the end
            raise
    finally:
        os.close(fd)
    return segments


def _counted(pieces: Iterator[tuple[int, bytes]], meter: Meter) -> Iterator[tuple[int, bytes]]:
    for place, data in pieces:
        meter.add_bytes(len(data))
        yield place, data


@contextmanager
def _keeping(name: bytes, facts: FileFacts) -> Iterator[None]:
    """Say whose fault it is when a user cannot write files of others."""
    try:
        yield
    except PermissionError as error:
        raise HostError(
            f"cannot keep that {quoted(name)} belongs to uid {facts.uid} and gid {facts.gid}: this user may not give "
            f"files away; use a state directory of root"
        ) from error


def flatten_layers(
    layer_fds: Sequence[int], target_fd: int, recorder: Recorder | None = None, meter: Meter | None = None
) -> None:
    """Write into an empty directory the one layer that shows and hides what these, top first, do together.

    Raises HostError when something in them cannot be kept, OSError when it cannot be read or written. What was written
    by then stays.
    """
    recorder, meter = recorder or Recorder(), meter or Meter()
    with (
        MergedWalk(layer_fds, recorder.marks) as walk,
        LayerWriter(target_fd, recorder.marks, recorder.owners) as writer,
    ):
        copy_layers(walk, recorder, writer, meter)
