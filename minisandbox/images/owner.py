"""Owners of files in layers: root keeps those that were asked for; all that an ordinary user makes is root's inside.

Such a user's layers are shown without a map of their own: the user himself is root of his sandboxes.
"""

from __future__ import annotations

import os
from pathlib import Path


def keeps_owners() -> bool:
    """Return whether files can be given to others than ourselves."""
    return os.geteuid() == 0


def inner_ids(uid: int, gid: int) -> tuple[int, int]:
    """Return the owner that a file will have inside for which this one was asked."""
    return (uid, gid) if keeps_owners() else (0, 0)


def shown_ids(status: os.stat_result) -> tuple[int, int]:
    """Return the owner that a file has inside."""
    own = keeps_owners() or status.st_uid != os.geteuid()
    return (status.st_uid, status.st_gid) if own else (0, 0)


def give_to(path: Path | bytes | int, uid: int, gid: int, directory_fd: int | None = None) -> None:
    """Give a file, but never what a link leads to, its owner, as far as there can be one."""
    if not keeps_owners():
        return
    if isinstance(path, int):
        os.fchown(path, uid, gid)
    else:
        os.chown(path, uid, gid, dir_fd=directory_fd, follow_symlinks=False)
