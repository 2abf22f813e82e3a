"""Small trees as values: what a layer that we make up ourselves consists of, and the writing of it.

A tree is a mapping from path ("etc/passwd", without a leading slash) to what is there. It holds all its parents.
This module takes nothing from the host.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from minisandbox.images.layer import BLOCK_BYTES, DIRECTORY_END, TREE_HEADER, encode_content, encode_record
from minisandbox.images.owner import give_to, inner_ids
from minisandbox.images.tree import TOP

USER_ID = 1000
"""Uid and gid of `user`, the ordinary user of our root file systems."""

_MTIME_NS = 946_684_800 * 10**9
"""Time of all that we write, the start of the year 2000, so that what a program sees does not depend on the day."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0

    def encode(self, name: bytes) -> bytes:
        """Return its record in the encoding of a tree."""
        return encode_record(name, b"d", self.mode, *inner_ids(self.uid, self.gid))

    def create(self, path: Path) -> None:
        """Make it."""
        path.mkdir()
        self.apply(path)

    def apply(self, path: Path) -> None:
        """Give a directory that exists owner and mode."""
        give_to(path, self.uid, self.gid)
        path.chmod(self.mode)


@dataclass(frozen=True, slots=True)
class File:
    """A regular file of root's."""

    content: bytes
    mode: int = 0o644

    def encode(self, name: bytes) -> bytes:
        """Return its record in the encoding of a tree."""
        starts = range(0, len(self.content), BLOCK_BYTES)
        blocks = ((start // BLOCK_BYTES, self.content[start : start + BLOCK_BYTES]) for start in starts)
        return encode_record(name, b"f", self.mode, 0, 0, encode_content(len(self.content), blocks))

    def create(self, path: Path) -> None:
        """Make it."""
        with open(path, "xb") as file:
            file.write(self.content)
        give_to(path, 0, 0)
        path.chmod(self.mode)


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link of root's."""

    target: str

    def encode(self, name: bytes) -> bytes:
        """Return its record in the encoding of a tree."""
        return encode_record(name, b"l", 0o777, 0, 0, os.fsencode(self.target))

    def create(self, path: Path) -> None:
        """Make it."""
        path.symlink_to(self.target)
        give_to(path, 0, 0)


Entry = Directory | File | Link
Tree = Mapping[str, Entry]


def with_parents(tree: Tree) -> dict[str, Entry]:
    """Return a tree with the directories that its entries lie in, where it did not name them itself."""
    parents: dict[str, Entry] = {}
    for path in tree:
        while path := posixpath.dirname(path):
            parents[path] = Directory()
    return parents | dict(tree)


def tree_digest(tree: Tree) -> str:
    """Return the digest of the layer that a tree will be, without writing it."""
    children = defaultdict(list)
    for path in tree:
        children[posixpath.dirname(path)].append(path)

    def encode(path: str, name: bytes, entry: Entry) -> Iterator[bytes]:
        yield entry.encode(name)
        if isinstance(entry, Directory):
            for child in sorted(children[path], key=os.fsencode):
                yield from encode(child, os.fsencode(posixpath.basename(child)), tree[child])
            yield DIRECTORY_END

    digest = hashlib.sha256(TREE_HEADER)
    for part in encode("", TOP, Directory()):
        digest.update(part)
    return "sha256:" + digest.hexdigest()


def write_tree(tree: Tree, top: Path) -> None:
    """Write a tree into an empty directory."""
    Directory().apply(top)
    for path, entry in sorted(tree.items()):
        entry.create(top / path)
    # Last and from the end, because making an entry changes the time of the directory it is in.
    for path in sorted(tree, reverse=True):
        os.utime(top / path, ns=(_MTIME_NS, _MTIME_NS), follow_symlinks=False)
    os.utime(top, ns=(_MTIME_NS, _MTIME_NS))


CLEAN_DIRECTORIES: Tree = {
    **{name: Directory() for name in ("dev", "etc", "home", "mnt", "opt", "proc", "run", "srv", "sys", "usr", "var")},
    "home/user": Directory(uid=USER_ID, gid=USER_ID),
    "root": Directory(mode=0o700),
    "tmp": Directory(mode=0o1777),
    "var/log": Directory(),
    "var/tmp": Directory(mode=0o1777),
}
"""The directories of every root file system that we make up."""

CLEAN_ETC: Tree = {
    # "*" in place of a password: nobody can log in by one, and there is no /etc/shadow to read (passwd(5)).
    "etc/passwd": File(
        b"root:*:0:0:root:/root:/bin/sh\n"
        b"daemon:*:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
        b"user:*:1000:1000:user:/home/user:/bin/sh\n"
        b"nobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "etc/group": File(b"root:*:0:\ndaemon:*:1:\ntty:*:5:\nusers:*:100:\nuser:*:1000:\nnogroup:*:65534:\n"),
    # Its own name resolves too, which programs that ask for the address of their host rely on.
    "etc/hosts": File(b"127.0.0.1 localhost\n127.0.1.1 sandbox\n::1 localhost ip6-localhost ip6-loopback\n"),
    "etc/hostname": File(b"sandbox\n"),
    "etc/resolv.conf": File(b""),
    "etc/nsswitch.conf": File(b"passwd: files\ngroup: files\nshadow: files\nhosts: files\n"),
    "etc/machine-id": File(b"0" * 32 + b"\n"),
    "etc/localtime": Link("/usr/share/zoneinfo/UTC"),
    "etc/profile": File(b"umask 022\n"),
}
"""The /etc of every root file system that we make up."""
