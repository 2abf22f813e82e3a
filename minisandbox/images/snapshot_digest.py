"""The digests of snapshots, which decide what counts as the same, and of single layers, by which these are stored.

The digest of a snapshot is the SHA-256 of this encoding; field, head and content are those of snapshot_record.py:

    snapshot  = field("minisandbox snapshot 1") field(digest of the rootfs) directory
    directory = the changes in it, sorted by name as bytes, then field(".")
    change    = field("=") field(name) head content-or-link       a file that is new or differs from the rootfs
              | field("=") field(name) head directory             the same of a directory, with what changed in it
              | field("/") field(name) directory                  a directory that is the same, but not all in it
              | field("-") field(name)                            what the rootfs has, and this has not
    content-or-link = field("content") field(content)
              | field("link") field(place of the name by which the file was seen first)
    place     = SHA-256 of the place of the directory, then field(name); the place of the top is that of ""

So it depends on what shows, however it came about: in which order files were written, in how many layers they are, and
what was written and undone again make no difference. Two names of a file of the rootfs that became files of their own
with the same content count as unchanged. Times of directories never count; snapshot_record.py says which others do.

The digest of a layer is that of its index: a header, then field(name) and the SHA-256 of head and content or link of
each file, parents first, sorted by name, and field("") at the end of each directory. So the index proves itself, and
tells which file differs. A layer is digested as it is copied: whiteouts that hide nothing are left out.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from minisandbox.images.compare import Comparison
from minisandbox.images.layer import field
from minisandbox.images.manifest import Rootfs
from minisandbox.images.marks import TRUSTED, Marks
from minisandbox.images.merged import Found, Inode, MergedWalk
from minisandbox.images.overlay import visible_layers
from minisandbox.images.snapshot_record import ROOT_OWNERS, ContentCache, Owners, Recorder, exact_time
from minisandbox.images.tree import Step

SNAPSHOT_HEADER = field(b"minisandbox snapshot 1")
LAYER_HEADER = field(b"minisandbox layer 2")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def opened_layers(paths: Iterable[Path]) -> Iterator[list[int]]:
    """Open the directories of layers for the block."""
    with ExitStack() as stack:
        fds = []
        for path in paths:
            fds.append(os.open(path, _DIRECTORY))
            stack.callback(os.close, fds[-1])
        yield fds


def digest_snapshot(
    rootfs: Rootfs,
    layer_fds: Sequence[int],
    cache: ContentCache | None = None,
    marks: Marks = TRUSTED,
    owners: Owners = ROOT_OWNERS,
) -> str:
    """Return the digest of what layers, given as borrowed descriptors, top first, show over a rootfs.

    Blocks. Nothing may change meanwhile. With the same cache again, no file is read that is still the same.
    """
    recorder = Recorder(marks=marks, owners=owners, cache=ContentCache() if cache is None else cache)
    digest = hashlib.sha256(SNAPSHOT_HEADER + field(rootfs.digest.encode()))
    with opened_layers(layer.path for layer in visible_layers(rootfs.layers)) as below:
        with MergedWalk(below, marks) as before, MergedWalk([*layer_fds, *below], marks) as after:
            for part in _encoded_changes(Comparison(before, after, recorder), recorder):
                digest.update(part)
    return "sha256:" + digest.hexdigest()


def digest_tree(layer_fd: int, cache: ContentCache | None = None, marks: Marks = TRUSTED) -> str:
    """Return the digest of a layer by itself."""
    return index_layers(
        [layer_fd], Recorder(exact_time, marks, cache=ContentCache() if cache is None else cache)
    ).digest


@dataclass(frozen=True, slots=True)
class LayerIndex:
    """What a layer holds, file by file, and how much that is."""

    encoded: bytes
    files: int
    content_bytes: int

    @property
    def digest(self) -> str:
        """That of the layer."""
        return "sha256:" + hashlib.sha256(self.encoded).hexdigest()


def index_layers(layer_fds: Sequence[int], recorder: Recorder) -> LayerIndex:
    """Read layers, top first, and index the one that they make together.

    Raises OSError, or HostError when a file is not whole (`Marks.read_xattrs`).
    """
    encoded = bytearray(LAYER_HEADER)
    files = content_bytes = 0
    with MergedWalk(layer_fds, recorder.marks) as walk:
        for found, record in indexed(walk, recorder):
            encoded += record
            files += found.step is not Step.LEAVE
            content_bytes += found.status.st_size if stat.S_ISREG(found.status.st_mode) else 0
    return LayerIndex(bytes(encoded), files, content_bytes)


def indexed(walk: Iterable[Found], recorder: Recorder) -> Iterator[tuple[Found, bytes]]:
    """Yield each step of a layer that counts, with its entry in the index."""
    places = [b""]
    leaders: dict[Inode, bytes] = {}
    for found in walk:
        if found.step is Step.LEAVE:
            places.pop()
            yield found, field(b"")
            continue
        if found.is_whiteout and found.is_in_hiding:
            continue
        place = hashlib.sha256(places[-1] + field(found.name)).digest()
        record = hashlib.sha256(recorder.head(found))
        if found.step is Step.ENTER:
            places.append(place)
            record.update(field(b"opaque") if found.is_hiding and not found.is_in_hiding else b"")
        else:
            # all whiteouts of an overlay are one file by many names (ovl_whiteout), which is no content
            is_shared = found.status.st_nlink > 1 and not found.is_whiteout
            leader = leaders.setdefault(found.inode, place) if is_shared else place
            record.update(_content_or_link(found, b"" if leader == place else leader, recorder))
        yield found, field(found.name) + record.digest()


def _encoded_changes(comparison: Comparison, recorder: Recorder) -> Iterator[bytes]:
    waiting: list[bytes] = []  # the innermost of the directories that were entered, of which nothing is written so far
    for pair in comparison:
        if pair.step is Step.LEAVE:
            if waiting:
                waiting.pop()
            else:
                yield field(b".")
            continue
        if pair.change is None:
            waiting.append(pair.name)
            continue
        for name in waiting:
            yield field(b"/") + field(name)
        waiting.clear()
        if pair.after is None:
            yield field(b"-") + field(pair.name)
        else:
            yield field(b"=") + field(pair.name) + recorder.head(pair.after)
            if pair.after.step is not Step.ENTER:
                yield _content_or_link(pair.after, pair.leader, recorder)
        if pair.step is Step.ENTER and (pair.after is None or pair.after.step is not Step.ENTER):
            comparison.skip()
            waiting.append(pair.name)


def _content_or_link(found: Found, leader: bytes, recorder: Recorder) -> bytes:
    return field(b"link") + field(leader) if leader else field(b"content") + field(recorder.content(found))
