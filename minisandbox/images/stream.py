"""One pass over an archive that somebody else made: exact reads, a bound on how much, a digest of all that went by.

Whatever is wrong with the archive is an error that names it; no length is trusted before there are bytes for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from minisandbox.errors import LocatedError, UsageError
from minisandbox.images.compression import CHUNK_BYTES, CorruptError, Decompressed, Readable

Refuse = Callable[[str], LocatedError]
"""Makes the error about an archive out of what is wrong with it."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an archive or a directory may hold at most; an image, in each of its layers. Raises UsageError below 1."""

    max_bytes: int = 64 << 30
    """Bytes of the unpacked archive, and of its files with their holes."""
    max_files: int = 4_000_000
    """Files, directories, links and all others."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be at least 1")


class Skippable(Readable, Protocol):
    """What can also be read from further on."""

    def skip(self, size: int) -> bool:
        """Pass over bytes; False when there are not so many."""


class FileSlice:
    """Reads a part of an open file, or all of it, without moving the position that others read at. Borrows the fd."""

    def __init__(self, fd: int, offset: int = 0, size: int | None = None) -> None:
        self._fd, self._at = fd, offset
        self._end = os.fstat(fd).st_size if size is None else offset + size

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, and none only at the end."""
        data = os.pread(self._fd, min(size, self._end - self._at), self._at)
        self._at += len(data)
        return data

    def skip(self, size: int) -> bool:
        """Pass over bytes; False when there are not so many."""
        if size > self._end - self._at:
            return False
        self._at += size
        return True


class HashedReader:
    """Passes on what is read and keeps its digest and size, to compare with what somebody says that they are."""

    def __init__(self, raw: Readable, algorithm: str) -> None:
        self._raw = raw
        self._hash = hashlib.new(algorithm)
        self.size = 0

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, and none only at the end."""
        data = self._raw.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data

    def digest(self) -> str:
        """Return the digest of all that was read, such as "sha256:" and 64 hex digits."""
        return f"{self._hash.name}:{self._hash.hexdigest()}"


class Source:
    """The unpacked bytes of an archive, from its beginning to its end."""

    def __init__(self, raw: Readable, refuse: Refuse, max_bytes: int, digest: str | None = None) -> None:
        self.refuse = refuse
        self.position = 0
        unpacked = Decompressed(raw)
        self.format = unpacked.format
        """How it is compressed; empty if it is not."""
        self._raw = HashedReader(unpacked, digest) if digest else unpacked
        self._max_bytes = max_bytes
        self._buffer, self._used = b"", 0

    def read_up_to(self, size: int) -> bytes:
        """Return at most `size` bytes, and none only at the end."""
        if self._used == len(self._buffer):
            self._fill()
        data = self._buffer[self._used : self._used + size]
        self._used += len(data)
        self._advance(len(data))
        return data

    def read_exact(self, size: int) -> bytes:
        """Return so many bytes, which the caller has bounded. Raises the error of `refuse` when there are fewer."""
        data = self.read_up_to(size)
        while len(data) < size:
            more = self.read_up_to(size - len(data))
            if not more:
                raise self.refuse(f"it ends too early, at byte {self.position}")
            data += more
        return data

    def read_chunks(self, size: int) -> Iterator[bytes]:
        """Yield so many bytes in pieces. Raises the error of `refuse` when there are fewer."""
        while size > 0:
            data = self.read_up_to(min(size, CHUNK_BYTES))
            if not data:
                raise self.refuse(f"it ends too early, at byte {self.position}")
            size -= len(data)
            yield data

    def skip(self, size: int) -> None:
        """Pass over so many bytes. Raises the error of `refuse` when there are fewer."""
        for _ in self.read_chunks(size):
            pass

    def drain(self) -> None:
        """Read what is left."""
        while self.read_up_to(CHUNK_BYTES):
            pass

    def digest(self) -> str:
        """Return the digest of all that was read, if one was asked for."""
        assert isinstance(self._raw, HashedReader)
        return self._raw.digest()

    def _fill(self) -> None:
        try:
            self._buffer, self._used = self._raw.read(CHUNK_BYTES), 0
        except CorruptError as error:
            raise self.refuse(f"{error}, after {self.position} bytes unpacked") from error

    def _advance(self, size: int) -> None:
        self.position += size
        if self.position > self._max_bytes:
            raise self.refuse(f"it unpacks to more than {self._max_bytes} bytes, the bound that was set (max_bytes)")


class SeekingSource(Source):
    """The bytes of an archive that is not compressed, where passing over costs nothing."""

    def __init__(self, raw: Skippable, refuse: Refuse, max_bytes: int) -> None:
        super().__init__(raw, refuse, max_bytes)
        self._skippable = raw

    def skip(self, size: int) -> None:
        """Pass over so many bytes. Raises the error of `refuse` when there are fewer."""
        if not self._buffer:
            self._fill()  # the first bytes were read to find out how it is compressed
        buffered = min(size, len(self._buffer) - self._used)
        self._used += buffered
        if not self._skippable.skip(size - buffered):
            raise self.refuse(f"it ends too early, {size - buffered} bytes after byte {self.position + buffered}")
        self._advance(size)
