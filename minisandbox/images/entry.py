"""What an entry of a tree may be: its path, its attributes, and what of that a sandbox cannot have.

Values only; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minisandbox.images.overlay import Parts

MAX_ID = 65_534
"""Highest uid and gid that a sandbox has; what belongs to a higher one would be nobody's inside."""

MAX_PATH_BYTES = 4095
"""A longer path cannot be named in a system call (PATH_MAX, limits.h)."""

DEFAULT_MTIME_NS = 946_684_800 * 10**9
"""Time of what has none, the start of the year 2000, so that what a program sees does not depend on the day."""


class RefusedError(Exception):
    """An entry cannot be part of a layer. The message says why, but not which."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a file has besides its content. Raises RefusedError when its owner does not exist in a sandbox."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime_ns: int = DEFAULT_MTIME_NS
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, owner in (("uid", self.uid), ("gid", self.gid)):
            if owner > MAX_ID:
                ids = f"a sandbox has the ids 0 to {MAX_ID}"
                raise RefusedError(f"it belongs to {what} {owner}, but {ids}; change its owner first")


def split_path(name: bytes) -> Parts:
    """Return the components of a path, which means the same from the top with and without a leading "/".

    Raises RefusedError when it leads upwards, holds a NUL or is too long.
    """
    if len(name) > MAX_PATH_BYTES:
        raise RefusedError(f"its path has {len(name)} bytes; {MAX_PATH_BYTES} are possible")
    if b"\0" in name:
        raise RefusedError("its path holds a NUL byte")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise RefusedError('its path has ".." in it, which could lead out of the tree')
    return parts


def is_safe_xattr(name: bytes) -> bool:
    """Return whether an extended attribute is content alone.

    Not kept are those that the kernel gives a meaning: capabilities, which a sandbox does not grant (its mounts are
    nosuid), access lists, which name owners, labels of security modules, and marks of overlayfs, which could fake
    a merge.
    """
    return name.startswith(b"user.") and not name.startswith(b"user.overlay.")


def quoted(name: bytes | str) -> str:
    """Return a name as it is shown in an error: in quotes, with what does not print escaped."""
    return repr(name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name)
