"""Contents of a run that are too large for a table, each a file by its digest. Nothing is written twice or changed.

A file appears under its name only when it is whole, and survives a kill of the process; what a kill left half written
has another name. After a loss of power one of the last may be missing or empty, which reading tells by the digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from minisandbox.errors import RecordError

_UNFINISHED = ".new"


class Blobs:
    """The blobs below a directory, which is made when the first is kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, sha256: str) -> Path:
        """Return where a blob lies."""
        return self.directory / sha256[:2] / sha256

    def keep(self, content: bytes) -> str:
        """Write a blob and return its digest. Raises OSError where it cannot, and leaves nothing behind then."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.path(sha256)
        with contextlib.suppress(OSError):
            if path.stat().st_size == len(content):
                return sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{sha256}.{os.getpid()}{_UNFINISHED}")
        try:
            new.write_bytes(content)
            new.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        return sha256

    def read(self, sha256: str) -> bytes:
        """Return a blob. Raises RecordError when it is missing, or is not what it was."""
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RecordError(f"cannot read the blob {path}: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise RecordError(f"the blob {path} is damaged: its content has another digest")
        return content

    def sweep(self) -> None:
        """Remove what a killed writer left half written. Only who has the lock of the store may."""
        for path in self._unfinished():
            with contextlib.suppress(OSError):
                path.unlink()

    def remove_damaged(self) -> None:
        """Remove each blob whose content is not that of its name, so that it is written again. Only a recovery may."""
        for path in self.directory.glob("*/*"):
            if hashlib.sha256(path.read_bytes()).hexdigest() != path.name:
                path.unlink()

    def _unfinished(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from self.directory.glob(f"*/*{_UNFINISHED}")
