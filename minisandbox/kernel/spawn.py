"""Spawning the launcher: which descriptors it gets by which number. Never forks."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_SOCKET_FD = 3
_LOCK_FD = 4


def spawn_launcher(binary: Path, words: Sequence[str], child_fd: int, lock_fd: int) -> int:
    """Spawn a launcher with these words, and return its pid. It shares `lock_fd`; both descriptors are borrowed."""
    # out of the way of the numbers that they get in the child
    with open(os.devnull, "rb+", buffering=0) as null, _above(child_fd) as high_child, _above(lock_fd) as high_lock:
        actions = [
            (os.POSIX_SPAWN_DUP2, null.fileno(), 0),
            (os.POSIX_SPAWN_DUP2, null.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, high_child, _SOCKET_FD),
            (os.POSIX_SPAWN_DUP2, high_lock, _LOCK_FD),
        ]
        # a session of its own: Ctrl-C in a terminal must reach the supervisor, which then ends the sandboxes in order
        return os.posix_spawn(
            binary, ["minisandbox-launcher", *words], {}, file_actions=actions, setsid=True, setsigmask=[]
        )


@contextlib.contextmanager
def _above(fd: int) -> Iterator[int]:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOCK_FD + 1)
    try:
        yield high
    finally:
        os.close(high)
