"""The members of a tar archive, one after another, in whichever of its dialects: ustar, pax, GNU, with sparse files.

The headers are parsed by tarfile, what lies between them here: tarfile reads an extended header of any length into
memory and matches it with expressions that take quadratic time (CVE-2024-6232), and follows a negative size backwards
for ever (CVE-2025-8194). What a member is called is not judged here.
"""

from __future__ import annotations

import enum
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from minisandbox.images.entry import quoted
from minisandbox.images.sparse import Segments, read_old_map, read_pax_map
from minisandbox.images.stream import Source

BLOCK = tarfile.BLOCKSIZE

MAX_EXTENDED_BYTES = 1 << 20
"""Longest header of names and attributes: an attribute has at most 64 KiB (xattr(7)), a path 4 KiB."""

MAX_MTIME_S = 1 << 33
"""Later times, and those before 1970, are moved to the nearest that every file system can keep."""


class Kind(enum.Enum):
    """What a member is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMBOLIC_LINK = "symbolic link"
    HARD_LINK = "hard link"
    DEVICE = "device"
    FIFO = "FIFO"


_KINDS = {
    tarfile.REGTYPE: Kind.FILE,
    tarfile.AREGTYPE: Kind.FILE,
    tarfile.CONTTYPE: Kind.FILE,
    tarfile.GNUTYPE_SPARSE: Kind.FILE,
    tarfile.DIRTYPE: Kind.DIRECTORY,
    tarfile.SYMTYPE: Kind.SYMBOLIC_LINK,
    tarfile.LNKTYPE: Kind.HARD_LINK,
    tarfile.CHRTYPE: Kind.DEVICE,
    tarfile.BLKTYPE: Kind.DEVICE,
    tarfile.FIFOTYPE: Kind.FIFO,
}

_LONG = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_VOLUME_LABEL = b"V"
_XATTR = b"SCHILY.xattr."


@dataclass(slots=True)
class Member:
    """One member. Its content can be read until the next one is asked for."""

    name: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    """Of a file, holes included; else 0."""
    target: bytes
    """Of a link."""
    xattrs: dict[bytes, bytes]
    offset: int
    """Where in the unpacked archive the data begin."""
    segments: Segments
    """What of a file is no hole: where each piece goes and how long it is, in the order of the data."""
    source: Source = field(repr=False)
    unread: int = 0
    """Bytes of its data that were not read yet."""

    def read_pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the content in pieces, each with its place in the file."""
        for place, length in self.segments:
            for data in self.source.read_chunks(length):
                self.unread -= len(data)
                yield place, data
                place += len(data)


def read_members(source: Source) -> Iterator[Member]:
    """Yield every member. Raises RootfsError, that of the source, where this is no tar archive or a damaged one."""
    extended = _Extended(source)
    while (block := source.read_exact(BLOCK)).strip(b"\0"):
        header = _parse(source, block)
        if header.type == _VOLUME_LABEL:
            source.skip(_padded(header.size))
        elif not extended.take(header):
            member = _member(source, header, block, extended.records())
            yield member
            source.skip(member.unread)
            source.skip(-source.position % BLOCK)


class _Extended:
    """The extended headers that were read: those of the next member, and those of all members from there on."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._of_all: dict[bytes, bytes] = {}
        self._of_next: dict[bytes, bytes] = {}
        self._bytes = self._bytes_of_all = 0

    def take(self, header: tarfile.TarInfo) -> bool:
        """Read what follows a header if it is an extended one; else return False."""
        if header.type == tarfile.XGLTYPE:
            self._of_all |= _parse_pax(self._source, self._read(header.size))
            self._bytes_of_all += header.size
        elif header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            self._of_next |= _parse_pax(self._source, self._read(header.size))
        elif header.type in _LONG:
            self._of_next[_LONG[header.type]] = self._read(header.size).partition(b"\0")[0]
        else:
            return False
        return True

    def records(self) -> dict[bytes, bytes]:
        """Return what holds for the next member, and forget what held for it alone."""
        records = {**self._of_all, **self._of_next}
        self._of_next.clear()
        self._bytes = self._bytes_of_all
        return records

    def _read(self, size: int) -> bytes:
        self._bytes += size
        if self._bytes > MAX_EXTENDED_BYTES:
            where = f"at byte {self._source.position - BLOCK}"
            message = f"extended headers of {self._bytes} bytes {where}; {MAX_EXTENDED_BYTES} are allowed"
            raise self._source.refuse(message)
        return self._source.read_exact(_padded(size))[:size]


def _parse(source: Source, block: bytes) -> tarfile.TarInfo:
    at = source.position - BLOCK
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        what = "this is no tar archive" if at == 0 else f"damaged at byte {at}"
        raise source.refuse(f"{what}: {error}") from error
    if min(header.size, header.uid, header.gid) < 0:
        raise source.refuse(f"damaged at byte {at}: a negative number")
    return header


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _parse_pax(source: Source, body: bytes) -> dict[bytes, bytes]:
    """Return the records of an extended header, each "LENGTH NAME=VALUE" and a newline (pax(1), "pax Header Block")."""
    records = {}
    at = 0
    while at < len(body):
        length, space, _ = body[at : at + 12].partition(b" ")
        end = at + int(length) if length.isdigit() else 0
        name, equals, value = body[at + len(length) + 1 : end - 1].partition(b"=")
        if not space or not equals or end > len(body) or body[end - 1 : end] != b"\n":
            raise source.refuse(f"damaged at byte {source.position}: no pax record")
        records[name] = value
        at = end
    return records


def _member(source: Source, header: tarfile.TarInfo, block: bytes, extended: dict[bytes, bytes]) -> Member:
    """Return the member of a header, with what its extended headers say instead."""

    def text(name: bytes, plain: str) -> bytes:
        return extended.get(name) or plain.encode("utf-8", "surrogateescape")

    def number(name: bytes, plain: int) -> int:
        value = extended.get(name, b"")
        if value and not (value.isdigit() and len(value) < 20):
            raise source.refuse(f"member {quoted(header.name)}: its {name.decode()} is no number")
        return int(value) if value else plain

    name = text(b"path", header.name)
    if header.type not in _KINDS:
        raise source.refuse(f"member {quoted(name)} has the unknown type {header.type!r}")
    kind = _KINDS[header.type]
    if kind is Kind.FILE and name.endswith(b"/"):
        kind = Kind.DIRECTORY  # as archives from before there was a type for directories have it
    stored = number(b"size", header.size) if kind is Kind.FILE else 0
    member = Member(
        name=name,
        kind=kind,
        mode=header.mode & 0o7777,
        uid=number(b"uid", header.uid),
        gid=number(b"gid", header.gid),
        mtime_ns=_mtime_ns(source, extended.get(b"mtime", b"%d" % header.mtime)),
        size=stored,
        target=text(b"linkpath", header.linkname),
        xattrs={key.removeprefix(_XATTR): extended[key] for key in extended if key.startswith(_XATTR)},
        offset=source.position,
        segments=[(0, stored)],
        source=source,
        unread=stored,
    )
    _find_holes(member, header, block, extended)
    return member


def _find_holes(member: Member, header: tarfile.TarInfo, block: bytes, extended: dict[bytes, bytes]) -> None:
    """Give a sparse file its real size, its name and its pieces."""
    source, before = member.source, member.source.position
    if header.type == tarfile.GNUTYPE_SPARSE:
        member.size, member.segments = read_old_map(source, block, member.unread)
    elif any(name.startswith(b"GNU.sparse.") for name in extended):
        member.name = extended.get(b"GNU.sparse.name", member.name)
        member.size, member.segments, inside = read_pax_map(source, extended, member.unread)
        member.unread -= inside
    member.offset += source.position - before


def _mtime_ns(source: Source, text: bytes) -> int:
    match = re.fullmatch(rb"(-?)(\d{1,20})(?:\.(\d{0,9})\d{0,40})?", text)
    if match is None:
        raise source.refuse(f"damaged at byte {source.position}: {text[:40]!r} is no time")
    if match[1]:
        return 0
    nanoseconds = int((match[3] or b"").ljust(9, b"0"))
    return int(match[2]) * 10**9 + nanoseconds if int(match[2]) < MAX_MTIME_S else MAX_MTIME_S * 10**9
