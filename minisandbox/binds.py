"""One value, `Bind`: a host directory or file that appears inside a sandbox. It never looks at the host."""

from __future__ import annotations

import posixpath
from pathlib import Path

import msgspec

from minisandbox.errors import UsageError

RESERVED_TARGETS = ("/proc", "/dev")
"""Mounted by the launcher in every sandbox: a bind there, or below, would hide or replace what it put there."""


class Bind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mount the host's `source` at `target` inside, read-only unless `writable`.

    Raises UsageError when a path is relative or not normalised, or when the target is "/" or one of
    `RESERVED_TARGETS` or below one. Whether `source` exists is found out when it is mounted.
    """

    source: Path
    target: str
    writable: bool = False

    def __post_init__(self) -> None:
        check_absolute("bind source", str(self.source))
        check_absolute("bind target", self.target)
        if self.target == "/":
            raise UsageError("bind target is /, which would replace the whole root; give a directory below it")
        for reserved in RESERVED_TARGETS:
            if self.target == reserved or self.target.startswith(reserved + "/"):
                raise UsageError(f"bind target {self.target} is {reserved} or below it; choose a place elsewhere")


def check_absolute(what: str, path: str) -> None:
    """Raise UsageError, naming `what`, unless `path` is absolute and written in its shortest form.

    That excludes "..", ".", empty and trailing components, NUL, and the leading "//" that POSIX leaves undefined.
    """
    if "\0" in path:
        raise UsageError(f"{what} {path!r} holds a NUL byte, which no path can")
    if not path.startswith("/"):
        raise UsageError(f"{what} {path!r} is relative; give an absolute path")
    if path.startswith("//") or posixpath.normpath(path) != path:
        shortest = "/" + posixpath.normpath(path).lstrip("/")
        raise UsageError(f"{what} {path!r} is not in its shortest form; write {shortest}")
