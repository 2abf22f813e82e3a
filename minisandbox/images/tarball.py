"""The kind `tar`: a root file system that somebody packed, compressed or not, as one layer."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from minisandbox.errors import RootfsError, UsageError
from minisandbox.images.entry import Attributes, RefusedError, quoted, split_path
from minisandbox.images.overlay import Parts
from minisandbox.images.recipe import Building, LayerPlan, Plan, Recipe, Site
from minisandbox.images.stream import Bounds, FileSlice, Source
from minisandbox.images.tar import Kind, Member, read_members
from minisandbox.images.unpack import TreeWriter

Special = Callable[[TreeWriter, Parts], bool]
"""Looks at a path that means more than a file in this kind of archive, does that, and returns whether it was one."""


class TarRecipe(Recipe, frozen=True, kw_only=True, tag="tar"):
    """A rootfs out of a tar archive."""

    path: str
    """The archive; relative to the recipe's file."""
    max_bytes: int = Bounds().max_bytes
    max_files: int = Bounds().max_files

    def plan(self, site: Site) -> Plan:
        """Return one layer. Raises UsageError when there is no such file."""
        path = site.find(self.path)
        bounds = Bounds(max_bytes=self.max_bytes, max_files=self.max_files)
        return Plan(layers=(LayerPlan(file_key("tar", path), partial(_fill, path, bounds)),))


def file_key(kind: str, path: Path) -> str:
    """Return a digest that changes whenever a regular file does, without reading it (inode(7), ctime)."""
    with open_regular(path) as fd:
        return "sha256:" + hashlib.sha256(repr((kind, str(path), file_identity(fd))).encode()).hexdigest()


def file_identity(fd: int) -> tuple[int, ...]:
    """Return numbers of an open file that change whenever its content may have changed (inode(7), ctime)."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """Open a regular file for the block. Raises UsageError when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot open the archive {str(path)!r}: {getattr(error, 'strerror', error)}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError(f"the archive {path} is no regular file")
        yield fd
    finally:
        os.close(fd)


def _fill(path: Path, bounds: Bounds, building: Building) -> None:
    with open_regular(path) as fd:
        building.meter.begin(f"unpacking {path.name}", os.fstat(fd).st_size)
        raw = building.meter.reading(FileSlice(fd))
        source = Source(raw, lambda message: RootfsError(message, path), bounds.max_bytes)
        with TreeWriter(building.top, bounds, on_entry=building.meter.add_file) as writer:
            unpack(source, writer)
        building.skipped.update(writer.skipped)


def unpack(source: Source, writer: TreeWriter, special: Special = lambda writer, parts: False) -> None:
    """Write all members of an archive, read it to its end and finish the tree.

    Raises RootfsError that names the archive, and the member that cannot be part of a layer.
    """
    for member in read_members(source):
        try:
            parts = split_path(member.name)
            if not special(writer, parts):
                write_member(writer, member, parts)
        except RefusedError as error:
            raise source.refuse(f"member {quoted(member.name)}: {error}") from error
    source.drain()
    writer.finish()


def write_member(writer: TreeWriter, member: Member, parts: Parts) -> None:
    """Write one member of an archive into a tree. Raises RefusedError when it cannot be part of one."""
    if member.kind is Kind.HARD_LINK:
        writer.add_hard_link(parts, split_path(member.target))
        return
    attributes = Attributes(member.mode, member.uid, member.gid, member.mtime_ns, member.xattrs)
    match member.kind:
        case Kind.DIRECTORY:
            writer.add_directory(parts, attributes)
        case Kind.FILE:
            writer.add_file(parts, attributes, member.size, member.read_pieces())
        case Kind.SYMBOLIC_LINK:
            writer.add_symlink(parts, attributes, member.target)
        case Kind.DEVICE | Kind.FIFO:
            writer.skip(parts, member.kind.value)
