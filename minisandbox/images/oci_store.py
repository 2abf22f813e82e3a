"""The files that an image consists of, by name: in a directory, or in a tar archive as `docker save` and others write.

Nothing of an archive is unpacked to be read: its members are found once, and read where they are.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from minisandbox.errors import RootfsError
from minisandbox.images.compression import Readable
from minisandbox.images.entry import RefusedError, quoted, split_path
from minisandbox.images.overlay import Parts, opened
from minisandbox.images.stream import FileSlice, Refuse, SeekingSource, Source
from minisandbox.images.tar import Kind, Member, read_members
from minisandbox.images.tarball import file_identity, open_regular

MAX_SMALL_BYTES = 4 << 20
"""Longest manifest or configuration that is read: what registries allow (OCI distribution specification)."""

MAX_MEMBERS = 100_000
"""More files than any image has; the files inside of its layers do not count."""

_ENDLESS = 1 << 62


class ImageStore(Protocol):
    """Where the files of an image are. It holds nothing open."""

    @property
    def refuse(self) -> Refuse:
        """Makes an error that names the image."""

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""

    def open(self, name: str) -> AbstractContextManager[tuple[Readable, int]]:
        """Open a file for the block: a reader, and its size. Raises RootfsError when there is none."""


def find_store(path: Path) -> ImageStore:
    """Return the store in a directory or an archive. Raises UsageError when it is neither."""

    def refuse(message: str) -> RootfsError:
        return RootfsError(message, path)

    return _Directory(path, refuse) if path.is_dir() else _Archive(path, refuse)


def read_small(store: ImageStore, name: str) -> bytes:
    """Return what is in a small file. Raises RootfsError when it is not there, or large."""
    with store.open(name) as (raw, size):
        if size > MAX_SMALL_BYTES:
            raise store.refuse(f"{name} has {size} bytes; {MAX_SMALL_BYTES} are allowed")
        content = b""
        while data := raw.read(MAX_SMALL_BYTES):
            content += data
    return content


class _Directory:
    def __init__(self, path: Path, refuse: Refuse) -> None:
        self._path, self.refuse = path, refuse

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[Readable, int]]:
        *directories, last = self._split(name)
        try:
            with opened(self._path, directories) as directory_fd:
                fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
        except OSError as error:
            raise self.refuse(f"{name} cannot be read: {error.strerror}") from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise self.refuse(f"{name} is no regular file")
            yield FileSlice(fd), status.st_size
        finally:
            os.close(fd)

    def _split(self, name: str) -> Parts:
        """Return the components of a name, which the JSON of an image may give as it likes."""
        try:
            return split_path(os.fsencode(name)) or (b".",)
        except RefusedError as error:
            raise self.refuse(f"file {quoted(name)}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    size: int


class _Archive:
    def __init__(self, path: Path, refuse: Refuse) -> None:
        self._path, self.refuse = path, refuse
        self._places: dict[str, _Place] = {}
        self._links: dict[str, str] = {}
        with open_regular(path) as fd:
            self._identity = file_identity(fd)
            for count, member in enumerate(read_members(self._source(fd)), 1):
                if count > MAX_MEMBERS:
                    raise refuse(f"it has more than {MAX_MEMBERS} members, so it is no image but a plain tar archive")
                self._note(member)

    def _note(self, member: Member) -> None:
        try:
            name = os.fsdecode(b"/".join(split_path(member.name)))
        except RefusedError as error:
            raise self.refuse(f"member {quoted(member.name)}: {error}") from error
        self._places.pop(name, None)
        self._links.pop(name, None)
        target = os.fsdecode(member.target)
        if member.kind is Kind.FILE:
            self._places[name] = _Place(member.offset, member.size)
        elif member.kind is Kind.SYMBOLIC_LINK:  # a layer that occurs twice
            self._links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        elif member.kind is Kind.HARD_LINK:
            self._links[name] = posixpath.normpath(target)

    def has(self, name: str) -> bool:
        return self._links.get(name, name) in self._places

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[Readable, int]]:
        place = self._places.get(self._links.get(name, name))
        if place is None:
            raise self.refuse(f"it has no {name}")
        with open_regular(self._path) as fd:
            if file_identity(fd) != self._identity:
                raise self.refuse("it was changed while it was read; try again when it is complete")
            source = self._source(fd)
            source.skip(place.offset)
            yield _Part(source, place.size), place.size

    def _source(self, fd: int) -> Source:
        """Return the unpacked bytes from the beginning; those of an archive that is not compressed can be jumped in."""
        source = Source(FileSlice(fd), self.refuse, _ENDLESS)
        return source if source.format else SeekingSource(FileSlice(fd), self.refuse, _ENDLESS)


class _Part:
    """Reads the next so many bytes of a source."""

    def __init__(self, source: Source, size: int) -> None:
        self._source, self._left = source, size

    def read(self, size: int, /) -> bytes:
        data = self._source.read_up_to(min(size, self._left))
        if not data and self._left and size:
            raise self._source.refuse(f"it ends too early, at byte {self._source.position}")
        self._left -= len(data)
        return data
