"""Writes tar archives in the pax dialect, in one pass: what `tar.py` reads, and tar(1) as well.

Every member has an extended header, so that no path, time or attribute has to fit into the old one.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable

from minisandbox.errors import HostError
from minisandbox.images.entry import quoted
from minisandbox.images.sparse import MAX_SEGMENTS, Segments
from minisandbox.images.tar import BLOCK, MAX_EXTENDED_BYTES, Kind

Write = Callable[[bytes], object]

_TYPES = {
    Kind.FILE: tarfile.REGTYPE,
    Kind.DIRECTORY: tarfile.DIRTYPE,
    Kind.SYMBOLIC_LINK: tarfile.SYMTYPE,
    Kind.HARD_LINK: tarfile.LNKTYPE,
    Kind.FIFO: tarfile.FIFOTYPE,
}
_OLD_NAME_BYTES = 100


class TarWriter:
    """Writes members to `write`, which takes all that it is given. Call `finish` at the end."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def add(
        self,
        name: bytes,
        kind: Kind,
        *,
        mode: int = 0o644,
        uid: int = 0,
        gid: int = 0,
        mtime_ns: int = 0,
        target: bytes = b"",
        xattrs: dict[bytes, bytes] | None = None,
        size: int = 0,
        segments: Segments | None = None,
        pieces: Iterable[bytes] = (),
    ) -> None:
        """Write a member. `pieces` are the data of the segments, or of the whole file without any.

        Raises HostError when its names and attributes are more than `tar.py` reads, or it changed meanwhile.
        """
        records = {b"path": name, b"mtime": b"%d.%09d" % divmod(mtime_ns, 10**9)}
        if target:
            records[b"linkpath"] = target
        records |= {b"SCHILY.xattr." + xattr: value for xattr, value in (xattrs or {}).items()}
        table = b""
        if segments is not None and sum(length for _, length in segments) < size:
            # Of a hole at the end tar(1) would know nothing without a piece of no length after it.
            segments = segments if segments and sum(segments[-1]) == size else [*segments, (size, 0)]
            table = _map(segments)
            records |= _sparse_records(name, size)
            size = len(table) + sum(length for _, length in segments)
        records[b"size"] = b"%d" % size
        body = b"".join(_record(key, value) for key, value in records.items())
        if len(body) > MAX_EXTENDED_BYTES:
            raise HostError(f"{quoted(name)} has too many attributes for an archive: {len(body)} bytes")
        self._write(_header(b"pax", tarfile.XHDTYPE, len(body)) + _padded(body))
        self._write(_header(name, _TYPES[kind], size, mode, uid, gid, mtime_ns // 10**9) + table)
        self._write_data(name, pieces, size - len(table))
        self._write(bytes(-size % BLOCK))

    def finish(self) -> None:
        """Write the end of the archive."""
        self._write(bytes(2 * BLOCK))

    def _write_data(self, name: bytes, pieces: Iterable[bytes], size: int) -> None:
        for data in pieces:
            if len(data) > size:
                break
            self._write(data)
            size -= len(data)
        else:
            if size == 0:
                return
        raise HostError(f"{quoted(name)} changed while it was read")


def _sparse_records(name: bytes, size: int) -> dict[bytes, bytes]:
    """Return what says that a file has holes (GNU tar manual, "Storing Sparse Files", format 1.0)."""
    return {
        b"GNU.sparse.major": b"1",
        b"GNU.sparse.minor": b"0",
        b"GNU.sparse.name": name,
        b"GNU.sparse.realsize": b"%d" % size,
    }


def merged_segments(segments: Segments) -> Segments:
    """Return the pieces of a file, with holes between them filled until there are not too many to be read again."""
    while len(segments) > MAX_SEGMENTS:
        joined = []
        for first, second in zip(segments[::2], segments[1::2], strict=False):
            joined.append((first[0], second[0] + second[1] - first[0]))
        segments = joined + (segments[-1:] if len(segments) % 2 else [])
    return segments


def _map(segments: Segments) -> bytes:
    lines = [b"%d\n" % len(segments), *(b"%d\n%d\n" % segment for segment in segments)]
    return _padded(b"".join(lines))


def _record(key: bytes, value: bytes) -> bytes:
    """Return a record, which begins with its own length (pax(1))."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _header(
    name: bytes, kind: bytes, size: int, mode: int = 0o644, uid: int = 0, gid: int = 0, mtime: int = 0
) -> bytes:
    info = tarfile.TarInfo(name[-_OLD_NAME_BYTES:].decode("ascii", "replace").replace("\ufffd", "_"))
    info.type, info.mode, info.uid, info.gid = kind, mode, uid, gid
    info.size = size if size < 8**11 else 0
    info.mtime = min(mtime, 8**11 - 1)
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "replace")


def _padded(body: bytes) -> bytes:
    return body + bytes(-len(body) % BLOCK)
