"""Directories that the judge alone may enter."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from minisandbox.errors import StateError


def check_private(path: Path, what: str) -> None:
    """Raise StateError unless a directory belongs to this user, and nobody else may enter it."""
    try:
        status = path.lstat()
    except OSError as error:
        raise StateError(f"cannot use {what} {path}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise StateError(
            f"{what} {path} must be a directory that belongs to the judge (uid {os.geteuid()}) alone: "
            f"chown it, and chmod 700"
        )
