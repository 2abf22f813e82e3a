"""Advisory locks on files and directories (flock(2)): who builds, and who still lives.

A lock belongs to an open file description: it goes when the last descriptor of it is closed, in whichever process,
and two opens of one file exclude each other even in one process. This module never removes a file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def take_lock(path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Wait for the lock of a file or directory that exists, and return the descriptor that holds it."""
    fd = os.open(path, _OPEN)
    try:
        fcntl.flock(fd, kind)
    except BaseException:
        os.close(fd)
        raise
    return fd


def take_lock_if_free(path: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Return the descriptor that holds the lock, or None when another one does or the file is gone."""
    try:
        return take_lock(path, kind | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return None


@contextmanager
def locked(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the lock of a file or directory for the block, waiting for it first."""
    fd = take_lock(path, kind)
    try:
        yield
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Return whether anybody holds the lock of a file. One that is not there is not held."""
    try:
        # Shared, so that two who ask at once do not take each other for the owner.
        os.close(take_lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file for the block, making it first; whoever holds it may remove the file."""
    while True:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        try:
            fd = take_lock(path)
        except FileNotFoundError:
            continue
        if is_still_at(fd, path):
            break
        os.close(fd)
    try:
        yield
    finally:
        os.close(fd)


def is_still_at(fd: int, path: Path) -> bool:
    """Return whether an open file or directory is what has this path now."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
