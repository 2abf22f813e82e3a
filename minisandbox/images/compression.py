"""Streams of compressed or plain bytes, told apart by how they begin and read in one pass within bounded memory.

Nothing is decompressed ahead of what is read, so that a small file that unpacks to an endless one costs nothing.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from minisandbox.errors import HostError

CHUNK_BYTES = 256 << 10
"""How much is read at a time."""

_AHEAD_BYTES = 512

XZ_MEMORY_BYTES = 256 << 20
"""What unpacking xz may take: four times what `xz -9` needs (xz(1), "Memory usage")."""

ZSTD_WINDOW_LOG = 27
"""Largest window of zstd, 128 MiB: what `zstd -d` takes by default (zstd(1), --memory)."""

_ADVICE = "install it with: pip install backports.zstd"


class Readable(Protocol):
    """What is read from: a file, or a part of one."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, and none only at the end."""


class CorruptError(Exception):
    """Compressed data is damaged or ends too early."""


class _Decompressor(Protocol):
    """The interface that the decompressors of the standard library share."""

    def decompress(self, data: bytes, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class _Gzip:
    """Gives zlib's decompressor the interface of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    def decompress(self, data: bytes, max_length: int) -> bytes:
        unpacked = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(unpacked) < max_length
        return unpacked

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def _xz() -> _Decompressor:
    return lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES)


def _zstd() -> _Decompressor:
    zstd = zstd_module()
    options = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
    decompressor: _Decompressor = zstd.ZstdDecompressor(options=options)
    return decompressor


def zstd_module() -> Any:
    """Return the module for zstd: in the standard library from 3.14 on, before that a package of the same interface."""
    import importlib

    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise HostError(f"this is compressed by zstd, which this Python does not know; {_ADVICE}")


_FORMATS: tuple[tuple[str, bytes, Callable[[], _Decompressor]], ...] = (
    ("gzip", b"\x1f\x8b\x08", _Gzip),
    ("zstd", b"\x28\xb5\x2f\xfd", _zstd),
    ("xz", b"\xfd7zXZ\0", _xz),
    ("bzip2", b"BZh", bz2.BZ2Decompressor),
)


class Decompressed:
    """Reads what a stream unpacks to, whichever way it is compressed, if at all."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self._ahead = _read_full(raw, _AHEAD_BYTES)
        self.format = ""
        self._make: Callable[[], _Decompressor] | None = None
        is_plain_tar = self._ahead.startswith(b"ustar", 257)  # whose first member may be called BZh
        for name, magic, make in _FORMATS:
            if self._ahead.startswith(magic) and not is_plain_tar:
                self.format, self._make = name, make
        self._decompressor = self._make() if self._make else None

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, and none only at the end. Raises CorruptError."""
        if self._make is None or self._decompressor is None:
            return self._take(size)
        data = b""
        while True:
            if self._decompressor.eof:
                data = self._pass_padding(self._decompressor.unused_data)
                if not data:
                    return b""
                self._decompressor = self._make()  # gzip, bzip2, xz and zstd files may be parts, one after another
            elif self._decompressor.needs_input:
                data = self._take(CHUNK_BYTES)
                if not data:
                    raise CorruptError(f"the {self.format} data ends too early")
            if unpacked := self._decompress(self._decompressor, data, size):
                return unpacked
            data = b""

    def _decompress(self, decompressor: _Decompressor, data: bytes, size: int) -> bytes:
        # Each format has an exception of its own: zlib.error, LZMAError, ZstdError, and OSError of bz2.
        try:
            return decompressor.decompress(data, size)
        except Exception as error:
            raise CorruptError(f"damaged {self.format} data: {error}") from error

    def _pass_padding(self, data: bytes) -> bytes:
        """Return what follows the end of a part and the zeros after it, which tapes and disks leave there."""
        data = data.lstrip(b"\0")
        while not data and (more := self._take(CHUNK_BYTES)):
            data = more.lstrip(b"\0")
        return data

    def _take(self, size: int) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
            return data
        return self._raw.read(size)


def _read_full(raw: Readable, size: int) -> bytes:
    """Return as many bytes, fewer only at the end."""
    data = b""
    while len(data) < size and (more := raw.read(size - len(data))):
        data += more
    return data
