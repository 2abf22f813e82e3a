"""How a layer says that something below it is gone, in the words of overlayfs, and merging two layers into one.

A whiteout, a character device 0/0, hides what the layers below have by its name; a directory with the attribute
`OPAQUE` shows nothing of theirs (Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories").
This module never mounts: the kernel does the rest when a sandbox starts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from minisandbox.images.layer import Layer
from minisandbox.images.owner import give_to, keeps_owners
from minisandbox.images.tree import TOP, remove_tree

OPAQUE = "trusted.overlay.opaque"
"""The attribute of an opaque directory; its value is "y"."""

ORIGIN = "trusted.overlay.origin"
"""Set, even if empty, it makes overlayfs look for whiteouts in a directory that only one layer has.

Without it they would be listed there, by a name that does not exist (fs/overlayfs/inode.c, ovl_get_inode).
"""

Parts = tuple[bytes, ...]
"""A path inside a layer as its components; none for the top directory."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _mark(name: str) -> str:
    """Return what an attribute is called here: an ordinary user has those named user.* alone ("userxattr")."""
    return name if keeps_owners() else name.replace("trusted.", "user.", 1)


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether this is a whiteout."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(0, 0)


def make_whiteout(directory_fd: int, name: bytes) -> None:
    """Hide what the layers below have by a name that this directory does not have itself."""
    os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory_fd)
    os.setxattr(directory_fd, _mark(ORIGIN), b"")


def is_opaque(directory: int | Path) -> bool:
    """Return whether a directory, given by descriptor or path, is opaque."""
    try:
        return os.getxattr(directory, _mark(OPAQUE)) == b"y"
    except OSError:
        return False  # ENODATA; a file system without such attributes has no opaque directories either


def make_opaque(directory_fd: int) -> None:
    """Hide all that the layers below have in a directory."""
    os.setxattr(directory_fd, _mark(OPAQUE), b"y")


@contextmanager
def opened(top: Path, parts: Iterable[bytes]) -> Iterator[int]:
    """Open a directory inside a tree for the block, no component of the path being a link. Raises OSError."""
    fd = os.open(top, _DIRECTORY)
    try:
        for name in parts:
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def look_below(layers: Sequence[Layer], parts: Parts) -> os.stat_result | None:
    """Return what a mount of these layers, top first, has at a path, or None. Follows no link."""
    for layer in layers:
        found, goes_on = _look_in(layer.path, parts)
        if found is not None or not goes_on:
            return found
    return None


def _look_in(top: Path, parts: Parts) -> tuple[os.stat_result | None, bool]:
    """Return what one layer has at a path, and whether the layers below it count when it has nothing."""
    goes_on = True
    fd = os.open(top, _DIRECTORY)
    try:
        for number, name in enumerate(parts, 1):
            goes_on = goes_on and not is_opaque(fd)
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                return None, goes_on
            if number == len(parts):
                return (None, False) if is_whiteout(status) else (status, True)
            if not stat.S_ISDIR(status.st_mode):
                return None, False
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        return os.fstat(fd), True
    finally:
        os.close(fd)


def visible_layers(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers, top first, that a mount can show anything of.

    The kernel does not heed the attribute on the top directory of a layer, so what such a layer hides is left out.
    """
    visible: list[Layer] = []
    for layer in layers:
        visible.append(layer)
        if is_opaque(layer.path):
            break
    return tuple(visible)


def merge_trees(upper: Path, lower: Path) -> None:
    """Move all of one layer's tree into that of the layer below it, so that it hides and shows the same as the two."""
    waiting: list[Parts] = [()]
    while waiting:
        parts = waiting.pop()
        with opened(upper, parts) as upper_fd, opened(lower, parts) as lower_fd:
            if not parts and is_opaque(upper_fd):
                _empty(lower_fd)
            waiting += [
                (*parts, name) for name in map(os.fsencode, os.listdir(upper_fd)) if _move(name, upper_fd, lower_fd)
            ]
            _copy_attributes(upper_fd, lower_fd)


def _move(name: bytes, upper_fd: int, lower_fd: int) -> bool:
    """Put one entry in place of the lower one. Return True, with nothing done, when both are to be merged."""
    above = os.stat(name, dir_fd=upper_fd, follow_symlinks=False)
    below = _stat(name, lower_fd)
    if below is not None and stat.S_ISDIR(above.st_mode):
        with opened(_path(upper_fd, name), ()) as directory_fd:
            if stat.S_ISDIR(below.st_mode) and not is_opaque(directory_fd):
                return True
            # What lies lower still, and was hidden by the entry that goes, must not come to light.
            make_opaque(directory_fd)
    if below is not None:
        remove_entry(lower_fd, name, below)
    os.rename(name, name, src_dir_fd=upper_fd, dst_dir_fd=lower_fd)
    if is_whiteout(above):
        os.setxattr(lower_fd, _mark(ORIGIN), b"")
    return False


def remove_entry(directory_fd: int, name: bytes, status: os.stat_result) -> None:
    """Remove what a directory has by a name, and all below it."""
    if stat.S_ISDIR(status.st_mode):
        remove_tree(_path(directory_fd, name))
    else:
        os.unlink(name, dir_fd=directory_fd)


def _empty(directory_fd: int) -> None:
    for name in map(os.fsencode, os.listdir(directory_fd)):
        remove_entry(directory_fd, name, os.stat(name, dir_fd=directory_fd, follow_symlinks=False))


def _copy_attributes(upper_fd: int, lower_fd: int) -> None:
    """Give the merged directory what the upper one has; marks of overlayfs on either stay."""
    status = os.fstat(upper_fd)
    theirs, ours = (set(filter(_is_content, os.listxattr(fd))) for fd in (upper_fd, lower_fd))
    for name in ours - theirs - {_mark(OPAQUE), _mark(ORIGIN)}:
        os.removexattr(lower_fd, name)
    for name in theirs:
        os.setxattr(lower_fd, name, os.getxattr(upper_fd, name))
    give_to(lower_fd, status.st_uid, status.st_gid)
    os.fchmod(lower_fd, stat.S_IMODE(status.st_mode))
    os.utime(lower_fd, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _is_content(xattr: str) -> bool:
    """Return whether an attribute is one of those that a layer can have; others are the host's security modules'."""
    return xattr.startswith(("user.", "trusted.overlay."))


def _stat(name: bytes, directory_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _path(directory_fd: int, name: bytes) -> Path:
    """Return a path to an entry that is good while the directory stays open."""
    assert name != TOP
    return Path(f"/proc/self/fd/{directory_fd}/{os.fsdecode(name)}")
