"""The kind `directory`: a copy of a directory of the host, as one layer. Later changes of the directory do not show."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from minisandbox.errors import HostError, RootfsError, UsageError
from minisandbox.images.compression import CHUNK_BYTES
from minisandbox.images.entry import Attributes, RefusedError, is_safe_xattr, quoted
from minisandbox.images.overlay import Parts
from minisandbox.images.recipe import Building, LayerPlan, Plan, Recipe, Site
from minisandbox.images.stream import Bounds
from minisandbox.images.tree import Step, Visit, walk
from minisandbox.images.unpack import TreeWriter

_SPECIAL = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class DirectoryRecipe(Recipe, frozen=True, kw_only=True, tag="directory"):
    """A rootfs out of a directory."""

    path: str
    """The directory; relative to the recipe's file."""
    max_bytes: int = Bounds().max_bytes
    max_files: int = Bounds().max_files

    def plan(self, site: Site) -> Plan:
        """Return one layer. Raises UsageError when it is no directory, HostError when it cannot be read."""
        path = site.find(self.path)
        bounds = Bounds(max_bytes=self.max_bytes, max_files=self.max_files)
        return Plan(layers=(LayerPlan(directory_key(path, bounds), partial(_fill, path, bounds)),))


def directory_key(top: Path, bounds: Bounds) -> str:
    """Return a digest that changes whenever something in a directory does, without reading files (inode(7), ctime)."""
    if not top.is_dir():
        raise UsageError(f"{str(top)!r} is no directory")
    digest = hashlib.sha256(repr(str(top)).encode())
    files = 0
    for visit in _visits(top):
        s = visit.status
        facts = (s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        digest.update(repr((visit.step.value, visit.name, facts)).encode())
        files += visit.step is not Step.LEAVE
        if files > bounds.max_files:
            raise RootfsError(f"it holds more than the {bounds.max_files} files that were allowed (max_files)", top)
    return "sha256:" + digest.hexdigest()


def _fill(top: Path, bounds: Bounds, building: Building) -> None:
    building.meter.begin(f"copying {top.name}")
    with TreeWriter(building.top, bounds, on_entry=building.meter.add_file) as writer:
        copy_tree(top, writer)
    building.skipped.update(writer.skipped)


def copy_tree(top: Path, writer: TreeWriter) -> None:
    """Write everything that a directory holds, and finish the tree.

    Raises RootfsError that names what cannot be part of a layer, HostError when the directory cannot be read.
    """
    directories: list[bytes] = []
    linked: dict[tuple[int, int], Parts] = {}
    for visit in _visits(top):
        if visit.step is Step.LEAVE:
            directories.pop()
            continue
        parts = (*directories[1:], visit.name) if directories else ()
        try:
            _copy(visit, parts, linked, writer)
        except RefusedError as error:
            raise RootfsError(f"{quoted(b'/'.join(parts))}: {error}", top) from error
        if visit.step is Step.ENTER:
            directories.append(visit.name)
    writer.finish()


def _visits(top: Path) -> Iterator[Visit]:
    """Walk through a directory of the host. Raises HostError when it cannot be read."""
    with _reading(top):
        yield from walk(top)


@contextmanager
def _reading(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "; unmount what is mounted below it" if error.errno == errno.EXDEV else ""
        raise HostError(f"cannot read {place}: {error.strerror} ({error.filename!r}){advice}") from error


def _copy(visit: Visit, parts: Parts, linked: dict[tuple[int, int], Parts], writer: TreeWriter) -> None:
    status = visit.status
    kind = stat.S_IFMT(status.st_mode)
    if kind in _SPECIAL:
        writer.skip(parts, _SPECIAL[kind])
        return
    if kind != stat.S_IFDIR and status.st_nlink > 1:
        first = linked.setdefault((status.st_dev, status.st_ino), parts)
        if first != parts:
            writer.add_hard_link(parts, first)
            return
    mode, xattrs = stat.S_IMODE(status.st_mode), _read_xattrs(visit, writer)
    attributes = Attributes(mode, status.st_uid, status.st_gid, status.st_mtime_ns, xattrs)
    match kind:
        case stat.S_IFDIR:
            writer.add_directory(parts, attributes)
        case stat.S_IFLNK:
            writer.add_symlink(parts, attributes, os.readlink(visit.name, dir_fd=visit.directory_fd))
        case stat.S_IFREG:
            writer.add_file(parts, attributes, status.st_size, _read_pieces(visit))


def _read_pieces(visit: Visit) -> Iterator[tuple[int, bytes]]:
    """Yield what of a regular file is no hole, in pieces (lseek(2), SEEK_DATA)."""
    with _reading(Path(os.fsdecode(visit.name))):
        fd = os.open(visit.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=visit.directory_fd)
        place = 0
        try:
            while place < visit.status.st_size:
                place = os.lseek(fd, place, os.SEEK_DATA)
                end = os.lseek(fd, place, os.SEEK_HOLE)
                while place < end and (data := os.pread(fd, min(CHUNK_BYTES, end - place), place)):
                    yield place, data
                    place += len(data)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole from there to the end
                raise
        finally:
            os.close(fd)


def _read_xattrs(visit: Visit, writer: TreeWriter) -> dict[bytes, bytes]:
    """Return the attributes that a layer may have, and count the others."""
    with _reading(Path(os.fsdecode(visit.name))):
        try:
            names = [os.fsencode(name) for name in os.listxattr(visit.path, follow_symlinks=False)]
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return {}
        safe = list(filter(is_safe_xattr, names))
        writer.skipped["xattr"] += len(names) - len(safe)
        return {name: os.getxattr(visit.path, name, follow_symlinks=False) for name in safe}
