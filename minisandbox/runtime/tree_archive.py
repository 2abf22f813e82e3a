"""A tar archive as the source of a tree, or as what is made of one. Blocks, so it is used in a thread.

An archive that is read may be anybody's: tarfile parses it, and what it says is checked here.
"""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Protocol, cast

from minisandbox.errors import UsageError
from minisandbox.runtime.tree_host import CHUNK_BYTES, Omission
from minisandbox.runtime.tree_stream import END, Entry, Kind, encode_entry, padding, special_name

_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)
_TYPES = {tarfile.CHRTYPE: 0o020000, tarfile.BLKTYPE: 0o060000, tarfile.FIFOTYPE: 0o010000}


class Reader(Protocol):
    """What an archive is read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes, none at the end."""
        ...


class Writer(Protocol):
    """What an archive is written to."""

    def write(self, data: bytes, /) -> object:
        """Take all of the bytes."""
        ...


class ArchiveSource:
    """The entries of an archive, compressed or not. Raises UsageError for a broken one, or one that leads out."""

    def __init__(self, file: Reader) -> None:
        self._file = file
        self.omitted: list[Omission] = []
        self._directories: set[str] = set()
        self._files: set[str] = set()

    def close(self) -> None:
        """Do nothing: the file is the caller's."""

    def entries(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Yield each entry and its content, which must be taken before the next one is asked for."""
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", self._file), mode="r|*") as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # or it would remember them all
                    yield from self._member(archive, member)
        except _BROKEN as error:
            raise UsageError(f"the archive is broken: {error}") from error

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        path = _plain(member.name, member.name)
        if not path:
            return
        parents = path.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            yield from self._directory("/".join(parents[:depth]), 0o755)
        mtime = max(0, int(member.mtime))
        entry = Entry(Kind.FILE, path, mode=member.mode & 0o7777, size=member.size, mtime=mtime)
        if member.isdir():
            yield from self._directory(path, member.mode & 0o7777)
        elif member.issym():
            yield entry._replace(kind=Kind.SYMLINK, size=0, target=member.linkname), iter(())
        elif member.islnk():
            first = _plain(member.linkname, member.name)
            if first not in self._files:
                raise UsageError(f"member {member.name!r} of the archive is a link to no file before it: {first!r}")
            if first != path:
                yield entry._replace(kind=Kind.LINK, size=0, target=first), iter(())
        elif member.isreg():
            self._files.add(path)
            yield entry, self._content(archive.extractfile(member), member.size)
        else:
            self.omitted.append((path, f"is a {special_name(_TYPES.get(member.type, 0))}"))

    def _content(self, file: IO[bytes] | None, size: int) -> Iterator[bytes]:
        while size:
            try:
                chunk = file.read(min(size, CHUNK_BYTES)) if file else b""
            except _BROKEN as error:
                raise UsageError(f"the archive is broken: {error}") from error
            if not chunk:
                raise UsageError("the archive is broken: it ends within a file")
            size -= len(chunk)
            yield chunk

    def _directory(self, path: str, mode: int) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        if path not in self._directories:
            self._directories.add(path)
            yield Entry(Kind.DIRECTORY, path, mode=mode), iter(())


def _plain(name: str, member: str) -> str:
    """Return a relative path of plain names, "" for the top. Raises UsageError for one that leads out."""
    names = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in names or "\0" in name:
        raise UsageError(f"member {member!r} of the archive leads out of the tree: {name!r}")
    return "/".join(names)


class ArchiveTarget:
    """Writes an archive, as POSIX ustar with pax headers for long names."""

    def __init__(self, file: Writer, *, keep_owners: bool) -> None:
        self._file, self._keep_owners = file, keep_owners

    def directory(self, entry: Entry) -> None:
        """Write a directory."""
        self._write(entry, entry.mode & 0o1777)

    def file(self, entry: Entry, chunks: Iterator[bytes]) -> None:
        """Write a file."""
        self._write(entry, entry.mode & 0o777)
        for chunk in chunks:
            self._file.write(chunk)
        self._file.write(padding(entry.size))

    def link(self, entry: Entry, first: str) -> None:
        """Write another name of a file that was written."""
        self._write(entry._replace(target=first), entry.mode & 0o777)

    def symlink(self, entry: Entry) -> None:
        """Write a symbolic link."""
        self._write(entry, 0o777)

    def commit(self) -> None:
        """Write the end."""
        self._file.write(END)

    def discard(self) -> None:
        """Leave it without an end: whoever reads it will notice."""

    def close(self) -> None:
        """Do nothing: the file is the caller's."""

    def _write(self, entry: Entry, mode: int) -> None:
        owner = (entry.uid, entry.gid) if self._keep_owners else (0, 0)
        self._file.write(encode_entry(entry._replace(mode=mode, uid=owner[0], gid=owner[1])))
