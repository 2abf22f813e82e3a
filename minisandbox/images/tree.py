"""Walks and removes directory trees that somebody else filled, however deep they are.

One descriptor is open at a time, nothing recurses, no symbolic link is followed and no mount is entered.
It never changes a tree except by removing it.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOP = b"."
"""The name by which a walk calls the directory that it began with; no entry of a directory has it."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Step(enum.Enum):
    """What a walk has come to."""

    ENTER = "enter"
    """A directory. What it holds comes next, sorted by name, and then its `LEAVE`."""
    FILE = "file"
    """Anything that is not a directory."""
    LEAVE = "leave"
    """A directory, all of which was seen."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One step of a walk: `name` in the directory open as `directory_fd`, which is borrowed until the next step."""

    step: Step
    name: bytes
    status: os.stat_result
    directory_fd: int

    @property
    def path(self) -> bytes:
        """A path to the file itself that is good until the next step, for calls that take no directory descriptor."""
        return b"/proc/self/fd/%d/%s" % (self.directory_fd, self.name)


@dataclass(slots=True)
class _Level:
    name: bytes
    status: os.stat_result
    unseen: list[bytes]


def walk(top: Path) -> Iterator[Visit]:
    """Yield every file below `top`, which must stay as it is except for entries that were already seen.

    The first step enters `top` itself and the last leaves it, both by the name `TOP`.
    Raises OSError, EXDEV when a file system is mounted on a directory below, ESTALE when directories were moved.
    """
    here = os.open(top, _DIRECTORY)
    try:
        levels = [_Level(TOP, os.fstat(here), _names(here))]
        mount = mount_id(here)
        yield Visit(Step.ENTER, TOP, levels[0].status, here)
        while levels:
            if levels[-1].unseen:
                name = levels[-1].unseen.pop()
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    yield Visit(Step.FILE, name, status, here)
                    continue
                yield Visit(Step.ENTER, name, status, here)
                here = _replace(here, os.open(name, _DIRECTORY, dir_fd=here))
                if mount_id(here) != mount:
                    raise OSError(errno.EXDEV, "a file system is mounted inside the tree", os.fsdecode(name))
                levels.append(_Level(name, status, _names(here)))
                continue
            done = levels.pop()
            if levels:
                here = _replace(here, os.open("..", _DIRECTORY, dir_fd=here))
                if not os.path.samestat(os.fstat(here), levels[-1].status):
                    raise OSError(errno.ESTALE, "the tree changed during the walk", os.fsdecode(done.name))
            yield Visit(Step.LEAVE, done.name, done.status, here)
    finally:
        os.close(here)


def remove_tree(top: Path) -> None:
    """Remove `top` and all below. Raises OSError as `walk` does, with what was not removed yet still there."""
    for visit in walk(top):
        match visit.step:
            case Step.ENTER if visit.name != TOP and visit.status.st_mode & 0o700 != 0o700:
                # Its owner, where that is not root, could neither list nor empty it.
                os.chmod(visit.name, 0o700, dir_fd=visit.directory_fd)
            case Step.FILE:
                os.unlink(visit.name, dir_fd=visit.directory_fd)
            case Step.LEAVE if visit.name != TOP:
                os.rmdir(visit.name, dir_fd=visit.directory_fd)
    os.rmdir(top)


def _names(directory_fd: int) -> list[bytes]:
    """Return the names in a directory, last one first, so that they are taken from the end."""
    return sorted(map(os.fsencode, os.listdir(directory_fd)), reverse=True)


def _replace(old_fd: int, new_fd: int) -> int:
    os.close(old_fd)
    return new_fd


def mount_id(fd: int) -> int:
    """Return the mount that a descriptor is on: unlike st_dev, another for every bind (proc_pid_fdinfo(5))."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
        return next(int(line.removeprefix(b"mnt_id:")) for line in lines if line.startswith(b"mnt_id:"))
