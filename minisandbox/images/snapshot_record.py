"""What counts of a file in the digests of snapshots, as bytes: two files are the same when these are equal.

    head    = field(type) field(permissions and sticky, setuid, setgid bits) field(uid) field(gid) field(time)
              field(number of xattrs), then field(name) field(value) of each, sorted by name
    content = as in layer.py: of a file its size and the SHA-256 of its blocks, of a link its target

A whiteout has the type "w" and nothing else. Marks of overlayfs and labels of this host are no content (marks.py).

Times: a snapshot counts the modification time of a regular file when it is a whole second, and no other. Programs set
such times on purpose, as archives, `touch -d` and reproducible builds do; a time with a fraction is the moment at which
the file happened to be written, and would make no two runs of the same program equal. A layer counts all modification
times, to the nanosecond: its copy has to be exact. Both after moving them into the range that every file system keeps.
"""

from __future__ import annotations

import os
import stat
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from minisandbox.images.layer import TYPES, content_of
from minisandbox.images.layer import field as encode_field
from minisandbox.images.marks import TRUSTED, Marks
from minisandbox.images.merged import Found, Inode
from minisandbox.images.tar import MAX_MTIME_S

NO_TIME = b""
SECOND_NS = 10**9

CACHED_FILES = 200_000
"""So many files are known at most, in about 40 MB."""


def kept_mtime_ns(status: os.stat_result) -> int:
    """Return the modification time of a file, moved to the nearest one that every file system can keep."""
    return min(max(status.st_mtime_ns, 0), MAX_MTIME_S * SECOND_NS)


def set_time(found: Found) -> bytes:
    """Return the time of a file if somebody set it: the rule of snapshots."""
    mtime_ns = kept_mtime_ns(found.status)
    if not stat.S_ISREG(found.status.st_mode) or mtime_ns % SECOND_NS:
        return NO_TIME
    return struct.pack("<Q", mtime_ns)


def exact_time(found: Found) -> bytes:
    """Return the time of a file: the rule of layers."""
    return struct.pack("<Q", kept_mtime_ns(found.status))


@dataclass(frozen=True, slots=True)
class Owners:
    """How the owners in a tree are to be read and written by this process."""

    uid: int = 0
    """The uid and gid here of what inside belongs to root."""
    gid: int = 0

    @classmethod
    def own(cls) -> Owners:
        """Return those of trees that this user can write: an ordinary one has them with his own ids as root's."""
        return cls(os.geteuid(), os.getegid()) if os.geteuid() else cls()

    def inner(self, status: os.stat_result) -> tuple[int, int]:
        """Return uid and gid of a file as a sandbox sees them."""
        uid = 0 if status.st_uid == self.uid else status.st_uid
        return uid, 0 if status.st_gid == self.gid else status.st_gid


ROOT_OWNERS = Owners()
"""Of trees in which every owner is as inside."""


class ContentCache:
    """Contents of files that were digested, so that no file is read again while it is the same.

    Good for files that nobody changes, as those of a sealed layer: whether one did is told by its inode, size and time
    of change, which no program can set (inode(7), ctime). Several threads may use one; it forgets what is oldest.
    """

    def __init__(self) -> None:
        self._known: dict[Inode, tuple[int, int, bytes]] = {}
        self._lock = threading.Lock()
        self.read_files = 0
        """How many files were read."""

    def content(self, found: Found) -> bytes:
        """Return the encoded content of a file, reading it if need be."""
        status = found.status
        if not stat.S_ISREG(status.st_mode):
            return content_of(found)
        known = self._known.get(found.inode)
        if known is not None and known[:2] == (status.st_ctime_ns, status.st_size):
            return known[2]
        self.read_files += 1
        content = content_of(found)
        with self._lock:
            self._known[found.inode] = (status.st_ctime_ns, status.st_size, content)
            if len(self._known) > CACHED_FILES:
                for inode in list(islice(self._known, CACHED_FILES // 2)):
                    del self._known[inode]
        return content


@dataclass(frozen=True, slots=True)
class Recorder:
    """Encodes files."""

    time: Callable[[Found], bytes] = set_time
    marks: Marks = TRUSTED
    owners: Owners = ROOT_OWNERS
    cache: ContentCache = field(default_factory=ContentCache)

    def head(self, found: Found) -> bytes:
        """Return all of a file but its name and content."""
        if found.is_whiteout:
            return encode_field(b"w")
        status = found.status
        uid, gid = self.owners.inner(status)
        numbers = (stat.S_IMODE(status.st_mode), uid, gid)
        values = [TYPES[stat.S_IFMT(status.st_mode)], *(struct.pack("<Q", number) for number in numbers)]
        xattrs = self.marks.read_xattrs(found.path)
        values += [self.time(found), struct.pack("<Q", len(xattrs))]
        for name in sorted(xattrs):
            values += [name, xattrs[name]]
        return b"".join(map(encode_field, values))

    def content(self, found: Found) -> bytes:
        """Return what stands for the content of a file; nothing for directories, whiteouts, FIFOs and sockets."""
        return b"" if found.is_whiteout else self.cache.content(found)
