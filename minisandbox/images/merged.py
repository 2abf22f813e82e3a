"""Walks through several layers as overlayfs merges them, without mounting anything, however deep they are.

Each layer has one descriptor open, in the deepest of its directories that is part of the merged directory the walk is
in; nothing recurses, no symbolic link is followed and no mount is entered. It never changes a layer.
Whiteouts are yielded, as files: for whoever looks at layers that lie on others they are content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from minisandbox.images.marks import TRUSTED, Marks
from minisandbox.images.overlay import is_whiteout
from minisandbox.images.tree import TOP, Step, Visit, mount_id

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Inode = tuple[int, int]
"""Device and inode number: what a file is while it is there."""


@dataclass(frozen=True, slots=True)
class Found(Visit):
    """One step: what shows by a name, in the directory of the layer that it is in."""

    layers: tuple[int, ...] = ()
    """The numbers of the layers that are merged in a directory, top first; of another file, the one that has it."""
    merged: tuple[Inode, ...] = ()
    """The directories that these have there."""
    is_opaque: bool = False
    """Whether the topmost of these says of itself that it hides what lies below."""
    is_hiding: bool = False
    """Whether nothing of layers below all of these can show in a directory."""
    is_in_hiding: bool = False
    """The same of the directory that it is in."""

    @property
    def is_whiteout(self) -> bool:
        """Whether it says that there is no such file."""
        return self.step is Step.FILE and is_whiteout(self.status)

    @property
    def inode(self) -> Inode:
        """Device and inode number."""
        return self.status.st_dev, self.status.st_ino


@dataclass(slots=True)
class _Level:
    found: Found
    statuses: dict[int, os.stat_result]
    unseen: list[tuple[bytes, int]] = field(default_factory=list)


class MergedWalk(Iterator[Found]):
    """An iterator over what layers, given as descriptors of their top directories, top first, show together.

    As `tree.walk`: sorted by name, parents before children. The descriptors are borrowed. Close it at the end.
    Raises OSError, EXDEV when a file system is mounted on a directory below, ESTALE when directories were moved.
    """

    def __init__(self, top_fds: Sequence[int], marks: Marks = TRUSTED) -> None:
        self._marks = marks
        self._fds: list[int] = []
        try:
            for fd in top_fds:
                self._fds.append(os.open(TOP, _DIRECTORY, dir_fd=fd))
        except BaseException:
            self.close()
            raise
        self._mounts = [mount_id(fd) for fd in self._fds]
        self._levels: list[_Level] = []
        self._entering: _Level | None = None
        self._begun = False

    def __enter__(self) -> MergedWalk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all descriptors."""
        while self._fds:
            os.close(self._fds.pop())

    def prune(self) -> None:
        """Pass over what is in the directory that was just entered: its LEAVE comes next."""
        assert self._entering is not None
        self._entering.unseen.clear()
        self._entering.statuses.clear()

    def __next__(self) -> Found:
        if not self._begun:
            self._begun = True
            return self._enter(self._top())
        if self._entering is not None:
            self._open_entered()
        if not self._levels:
            raise StopIteration
        if not self._levels[-1].unseen:
            return self._leave()
        name, layer = self._levels[-1].unseen.pop()
        status = os.stat(name, dir_fd=self._fds[layer], follow_symlinks=False)
        hiding = self._levels[-1].found.is_hiding
        if not stat.S_ISDIR(status.st_mode):
            return Found(Step.FILE, name, status, self._fds[layer], layers=(layer,), is_in_hiding=hiding)
        return self._enter(self._directory(name, layer, status))

    def _enter(self, level: _Level) -> Found:
        self._entering = level
        return level.found

    def _top(self) -> _Level:
        statuses = {layer: os.fstat(fd) for layer, fd in enumerate(self._fds)}
        # The kernel does not heed the attribute on the top directory of a layer.
        found = Found(Step.ENTER, TOP, statuses[0], self._fds[0], tuple(statuses), _inodes(statuses))
        return _Level(found, statuses)

    def _directory(self, name: bytes, first: int, status: os.stat_result) -> _Level:
        """Find out which layers are merged in a directory that the first one has."""
        parent = self._levels[-1].found
        statuses = {first: status}
        is_hiding = is_opaque = self._is_opaque(name, first)
        for layer in parent.layers[parent.layers.index(first) + 1 :] if not is_hiding else ():
            try:
                below = os.stat(name, dir_fd=self._fds[layer], follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(below.st_mode):
                is_hiding = True
                break
            statuses[layer] = below
            if self._is_opaque(name, layer):
                is_hiding = True
                break
        is_hiding = is_hiding or parent.is_hiding
        found = Found(
            Step.ENTER,
            name,
            status,
            self._fds[first],
            tuple(statuses),
            _inodes(statuses),
            is_opaque,
            is_hiding,
            parent.is_hiding,
        )
        return _Level(found, statuses)

    def _is_opaque(self, name: bytes, layer: int) -> bool:
        return self._marks.is_opaque(b"/proc/self/fd/%d/%s" % (self._fds[layer], name))

    def _open_entered(self) -> None:
        level, self._entering = self._entering, None
        assert level is not None
        self._levels.append(level)
        names: dict[bytes, int] = {}
        for layer in level.statuses:
            if level.found.name != TOP:
                self._move(layer, level.found.name)
            if mount_id(self._fds[layer]) != self._mounts[layer]:
                shown = os.fsdecode(level.found.name)
                raise OSError(errno.EXDEV, "a file system is mounted inside the tree", shown)
            for name in map(os.fsencode, os.listdir(self._fds[layer])):
                names.setdefault(name, layer)
        level.unseen = sorted(names.items(), reverse=True)

    def _leave(self) -> Found:
        level = self._levels.pop()
        found = level.found
        if self._levels:
            for layer in level.statuses:
                self._move(layer, b"..")
                if not os.path.samestat(os.fstat(self._fds[layer]), self._levels[-1].statuses[layer]):
                    raise OSError(errno.ESTALE, "the tree changed during the walk", os.fsdecode(found.name))
        return Found(
            Step.LEAVE,
            found.name,
            found.status,
            self._fds[found.layers[0]],
            found.layers,
            found.merged,
            found.is_opaque,
            found.is_hiding,
            found.is_in_hiding,
        )

    def _move(self, layer: int, name: bytes) -> None:
        inner = os.open(name, _DIRECTORY, dir_fd=self._fds[layer])
        os.close(self._fds[layer])
        self._fds[layer] = inner


def _inodes(statuses: dict[int, os.stat_result]) -> tuple[Inode, ...]:
    return tuple((status.st_dev, status.st_ino) for status in statuses.values())
