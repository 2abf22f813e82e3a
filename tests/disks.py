"""Disks of the host that are full soon."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory, of a size as in tmpfs(5), at a new directory for the block."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "small", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def require_attributes(disk: Path) -> None:
    """Skip the test where files in memory have no attributes of users: before Linux 6.6."""
    try:
        os.setxattr(disk, "user.tried", b"")
    except OSError:
        pytest.skip("the tmpfs of this kernel has no user attributes")
    os.removexattr(disk, "user.tried")
