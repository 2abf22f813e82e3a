"""The stream of a tree: POSIX ustar with pax headers, read strictly and written. Pure, but for the reader it is given.

The other side is `launcher/tree.h`, which says what is ours in it. What comes out of a sandbox is hostile until it went
through `read_entries`: an entry's path is then relative, of plain names, and bounded. Nothing is said about how entries
fit together: that is checked by whoever makes something of them.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from minisandbox.errors import ProtocolError

BLOCK = 512
PATH_MAX_BYTES = 4095
DEPTH_MAX = 256
"""Directories within directories; what lies deeper is left out by the other side."""

END = bytes(2 * BLOCK)

SHORTER = "became shorter while it was read; zeros stand for the rest"
"""Why part of a file is not what it was."""

_PAX_MAX_BYTES = 16384
_SIZE_MAX = 1 << 50
_NAME_BYTES = 99
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_MAGIC = b"ustar\x0000"
_INODE = "MINISANDBOX.inode"


class Kind(enum.Enum):
    """What an entry is."""

    FILE = b"0"
    LINK = b"1"
    """Another name of a file that came before."""
    SYMLINK = b"2"
    DIRECTORY = b"5"
    OMITTED = b"Z"
    """Something that is not in the stream."""


_KINDS = {kind.value: kind for kind in Kind}


class Entry(NamedTuple):
    """One entry; the bytes of a file follow it. Its path is "." or relative, without "." and ".."."""

    kind: Kind
    path: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime: int = 0
    target: str = ""
    """Of a symbolic link its text, of another name the path of the file."""
    inode: str = ""
    """The same for all names of one file; only what comes out of a sandbox has it."""
    error: int = 0
    """Why something was left out: an errno, or 0 for what its file type in `mode` says."""


def encode_entry(entry: Entry) -> bytes:
    """Return the header of an entry, with a pax header before it for what does not fit."""
    path, target = os.fsencode(entry.path), os.fsencode(entry.target)
    records = b""
    if len(path) > _NAME_BYTES:
        records += _record(b"path", path)
    if len(target) > _NAME_BYTES:
        records += _record(b"linkpath", target)
    if entry.size >= 1 << 33:
        records += _record(b"size", b"%d" % entry.size)
    header = _header(entry, entry.kind.value, path[:_NAME_BYTES], target[:_NAME_BYTES], entry.size)
    if not records:
        return header
    return _header(entry, b"x", b"", b"", len(records)) + records + padding(len(records)) + header


def _header(entry: Entry, kind: bytes, path: bytes, target: bytes, size: int) -> bytes:
    fields = [
        path, b"%07o" % entry.mode, b"%07o" % (entry.uid & 0o7777777), b"%07o" % (entry.gid & 0o7777777),
        b"%011o" % (size if size < 1 << 33 else 0), b"%011o" % min(max(entry.mtime, 0), (1 << 33) - 1),
        b" " * 8, kind, target, _MAGIC, b"", b"", b"", b"", b"",
    ]  # fmt: skip
    fields[6] = b"%06o\0 " % sum(_HEADER.pack(*fields))
    return _HEADER.pack(*fields)


def _record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def padding(size: int) -> bytes:
    """Return the zeros that follow so many bytes of content."""
    return bytes(-size % BLOCK)


def read_entries(read: Callable[[int], bytes]) -> Iterator[Entry]:
    """Yield the entries of a stream until its end.

    `read` returns exactly so many bytes; before the next entry is asked for, it must have been called for the content
    of a file and its padding. Raises ProtocolError for what is no such stream.
    """
    records: dict[str, str] = {}
    while any(block := read(BLOCK)):
        fields = _HEADER.unpack(block)
        if fields[9] != _MAGIC or _octal(fields[6]) != sum(block) - sum(block[148:156]) + 8 * 32:
            raise ProtocolError("the stream of a tree has a header that is none")
        size = _octal(fields[4])
        if fields[7] == b"x":
            if size > _PAX_MAX_BYTES or records:
                raise ProtocolError("the stream of a tree has a pax header that is too long, or one too many")
            records = _parse_records(read(size + -size % BLOCK)[:size])
            continue
        yield _parse_entry(fields, size, records)
        records = {}


def _parse_entry(fields: tuple[bytes, ...], size: int, records: dict[str, str]) -> Entry:
    kind = _KINDS.get(fields[7])
    if kind is None:
        raise ProtocolError(f"the stream of a tree has an entry of type {fields[7]!r}")
    if "size" in records:
        size = _decimal(records["size"])
    if size > _SIZE_MAX or (size and kind is not Kind.FILE):
        raise ProtocolError("the stream of a tree has an entry of a size that cannot be")
    return Entry(
        kind=kind,
        path=check_path(records.get("path") or _text(fields[0])),
        mode=_octal(fields[1]),
        uid=_octal(fields[2]),
        gid=_octal(fields[3]),
        size=size,
        mtime=_octal(fields[5]),
        target=records.get("linkpath") or _text(fields[8]),
        inode=records.get(_INODE, ""),
        error=_octal(fields[12]),
    )


def check_path(path: str) -> str:
    """Return a path that is "." or relative and of plain names. Raises ProtocolError for another."""
    names = path.split("/")
    if path != "." and any(name in ("", ".", "..") for name in names):
        raise ProtocolError(f"the stream of a tree has an entry that is outside of it: {path!r}")
    if len(names) > DEPTH_MAX + 1 or len(os.fsencode(path)) > PATH_MAX_BYTES or "\0" in path:
        raise ProtocolError("the stream of a tree has an entry whose path is too long")
    return path


def leads_out(path: str, target: str) -> bool:
    """Return whether a symbolic link could lead out of the tree, whatever other links are in it.

    It cannot when ".." stands at its beginning only, no more often than it has directories above it in the tree: these
    are directories and no links, so it begins inside, and so does each link that it meets on its way down.
    """
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = next((at for at, name in enumerate(names) if name != ".."), len(names))
    return target.startswith("/") or ".." in names[up:] or up > path.count("/")


def why_omitted(entry: Entry) -> str:
    """Return why something is not in the stream."""
    if entry.error == errno.ENODATA:
        return SHORTER
    if entry.error == errno.EXDEV:
        return "is of the kernel's making (/proc)"
    if entry.error:
        return os.strerror(entry.error)
    return f"is a {special_name(entry.mode)}"


def special_name(mode: int) -> str:
    """Return what a file of this type is called."""
    names = {stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    return names.get(stat.S_IFMT(mode), "special file")


def _parse_records(data: bytes) -> dict[str, str]:
    records = {}
    while data:
        head, space, _ = data.partition(b" ")
        length = _decimal(_text(head)) if space else 0
        key, equals, value = data[len(head) + 1 : length - 1].partition(b"=")
        if (
            not equals
            or not len(head) + 2 < length <= len(data)
            or data[length - 1 : length] != b"\n"
            or b"\0" in value
        ):
            raise ProtocolError("the stream of a tree has a pax record that is none")
        records[os.fsdecode(key)] = os.fsdecode(value)
        data = data[length:]
    return records


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ")
    if digits.strip(b"01234567"):
        raise ProtocolError("the stream of a tree has a number that is none")
    return int(digits or b"0", 8)


def _decimal(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise ProtocolError("the stream of a tree has a number that is none")
    return int(text)
