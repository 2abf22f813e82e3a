"""Layers: immutable trees in the state directory, each named by the digest of what it holds.

The digest is the SHA-256 of this encoding, in which field(b) is the length of b as 8 bytes, little-endian, then b,
and every number is 8 bytes, little-endian:

    tree      = field("minisandbox tree 1") directory
    directory = record, the directory or other of each entry sorted by name as bytes, field("")
    other     = record
    record    = field(name) field(type) field(permissions and sticky, setuid, setgid bits) field(uid) field(gid)
                field(content) field(number of xattrs), then field(name) field(value) of each, sorted by name
    content   = of a file, type "f": its size, then the SHA-256 of its blocks one after another
                of a symbolic link, "l": its target
                of a device, "c" or "b": its major, its minor number
                of a directory "d", a FIFO "p", a socket "s": nothing
    blocks    = of each 64 KiB of the file, aligned, that are not all zero: its number, then field(bytes)

So it tells apart any two trees that a program inside could, except by times, by what is left out in `UNCOUNTED_XATTRS`
and by which names are hard links of one file. A hole equals the zeros that it reads as and takes no time, so a file of
an exbibyte without content digests at once. The top directory has the name "." here, whatever it is called.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minisandbox.errors import RootfsError, StateError
from minisandbox.images.lock import locked
from minisandbox.images.owner import shown_ids
from minisandbox.images.state import StateDir, reporting, sync_directory
from minisandbox.images.tree import Step, Visit, walk

UNCOUNTED_XATTRS = frozenset(
    prefix + name
    for prefix in (b"trusted.overlay.", b"user.overlay.")
    for name in (b"origin", b"impure", b"nlink", b"uuid")
) | {b"security.selinux", b"security.ima", b"security.evm"}
"""Extended attributes that say where a file was, not what it is.

Overlayfs notes there which inodes of this machine it copied (fs/overlayfs/overlayfs.h; those that change what is seen,
such as opaque, redirect and metacopy, count). The rest are labels and seals of this host's security modules (xattr(7)).
"""

BLOCK_BYTES = 64 << 10
"""How much of a file is passed over when it is all zero."""

_ZEROS = bytes(BLOCK_BYTES)
TYPES = {
    stat.S_IFDIR: b"d",
    stat.S_IFREG: b"f",
    stat.S_IFLNK: b"l",
    stat.S_IFCHR: b"c",
    stat.S_IFBLK: b"b",
    stat.S_IFIFO: b"p",
    stat.S_IFSOCK: b"s",
}
_MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Layer:
    """A whole layer: its digest, "sha256:" and 64 hex digits, and where its tree is."""

    digest: str
    path: Path


class LayerManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written beside a layer: what digesting it counted."""

    format: int = _MANIFEST_FORMAT
    digest: str
    files: int
    """Files, directories, links and all others, the top directory included."""
    content_bytes: int
    """Sizes of all regular files."""
    encoding: int = 1
    """What was digested: 1 the encoding above, 2 the index of a layer of a snapshot (snapshot_digest.py)."""


def field(value: bytes) -> bytes:
    """Return a value with its length before it, so that no two lists of values have the same encoding."""
    return struct.pack("<Q", len(value)) + value


TREE_HEADER = field(b"minisandbox tree 1")
"""How the encoding of every tree begins."""

DIRECTORY_END = field(b"")
"""What follows the last entry of a directory."""


def encode_record(
    name: bytes, kind: bytes, mode: int, uid: int, gid: int, content: bytes = b"", xattrs: Mapping[bytes, bytes] = {}
) -> bytes:
    """Return the encoding of one file, directory or other. `kind` is a letter of `TYPES`."""
    values = [name, kind, *(struct.pack("<Q", number) for number in (mode, uid, gid)), content]
    values.append(struct.pack("<Q", len(xattrs)))
    for xattr in sorted(xattrs):
        values += [xattr, xattrs[xattr]]
    return b"".join(map(field, values))


def encode_content(size: int, blocks: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the content of a regular file in a record, from numbers and bytes of its blocks in order."""
    digest = hashlib.sha256()
    for number, block in blocks:
        if block != _ZEROS[: len(block)]:
            digest.update(struct.pack("<Q", number) + field(block))
    return struct.pack("<Q", size) + digest.digest()


def measure_tree(top: Path) -> LayerManifest:
    """Return the digest of a tree that nothing changes meanwhile, and how much it holds.

    Raises OSError when it cannot be read.
    """
    digest = hashlib.sha256(TREE_HEADER)
    files = content_bytes = 0
    for visit in walk(top):
        if visit.step is Step.LEAVE:
            digest.update(DIRECTORY_END)
            continue
        digest.update(_record(visit))
        files += 1
        content_bytes += visit.status.st_size if stat.S_ISREG(visit.status.st_mode) else 0
    return LayerManifest(digest="sha256:" + digest.hexdigest(), files=files, content_bytes=content_bytes)


def verify(layer: Layer) -> None:
    """Raise RootfsError unless a layer still holds what its digest says, StateError when it cannot be read."""
    with reporting(f"read the layer {layer.path}"):
        found = measure_tree(layer.path).digest
    if found != layer.digest:
        raise RootfsError(f"the layer is damaged: what it holds digests to {found}; build its rootfs anew", layer.path)


def find_layer(state: StateDir, digest: str) -> Layer | None:
    """Return a layer that was stored whole, or None."""
    layer = Layer(digest, state.layers / digest.removeprefix("sha256:"))
    return layer if _sidecar(layer).is_file() and layer.path.is_dir() else None


def sidecar_content(layer: Layer) -> bytes:
    """Return the manifest of a layer as it is stored."""
    with reporting(f"read {_sidecar(layer)}"):
        return _sidecar(layer).read_bytes()


def read_manifest(layer: Layer) -> LayerManifest:
    """Return what was noted when a layer was stored."""
    content, sidecar = sidecar_content(layer), _sidecar(layer)
    try:
        return msgspec.json.decode(content, type=LayerManifest)
    except msgspec.MsgspecError as error:
        raise StateError(f"{sidecar} is damaged ({error}); remove it and build the rootfs anew") from error


Measure = Callable[[Path], tuple[LayerManifest, bytes | None]]
"""Digests a tree, and returns what is to be stored beside it: its manifest, and its index if it has one."""


def measure_plain(top: Path) -> tuple[LayerManifest, None]:
    """Digest a tree by the encoding of this module, which has no index."""
    return measure_tree(top), None


def store_layer(state: StateDir, fill: Callable[[Path], None], measure: Measure = measure_plain) -> Layer:
    """Make a layer of what `fill` puts into an empty directory, or return the equal one that is there.

    One that is there but damaged is replaced. What `fill` raises passes through, an OSError as a StateError, since what
    it does is write; nothing is left then.
    """
    with reporting(f"build a layer in {state.path}"), state.open_scratch() as scratch:
        tree = scratch / "tree"
        tree.mkdir()
        tree.chmod(0o755)
        fill(tree)
        manifest, index = measure(tree)
        layer = Layer(manifest.digest, state.layers / manifest.digest.removeprefix("sha256:"))
        _sync_file_system(tree)
        with locked(state.layers):
            if layer.path.exists() and measure(layer.path)[0].digest != layer.digest:
                _take_away(layer, scratch)
            if not layer.path.exists():
                os.rename(tree, layer.path)
                sync_directory(state.layers)
            if index is not None:
                state.write_file(index_file(layer), index)
            # Last, and only after the tree is on the disk: the sidecar says that the layer is whole.
            state.write_file(_sidecar(layer), msgspec.json.encode(manifest) + b"\n")
    return layer


def index_file(layer: Layer) -> Path:
    """Return where the index of a layer is, if it has one."""
    return layer.path.with_name(layer.path.name + ".index")


def _sidecar(layer: Layer) -> Path:
    return layer.path.with_name(layer.path.name + ".json")


def _take_away(layer: Layer, scratch: Path) -> None:
    """Take a stored layer that is not what its name says out of the way, its sidecar first."""
    _sidecar(layer).unlink(missing_ok=True)
    sync_directory(layer.path.parent)
    os.rename(layer.path, scratch / "damaged")


def _record(visit: Visit) -> bytes:
    status = visit.status
    kind = TYPES[stat.S_IFMT(status.st_mode)]
    mode = stat.S_IMODE(status.st_mode)
    return encode_record(visit.name, kind, mode, *shown_ids(status), content_of(visit), _xattrs(visit))


def content_of(visit: Visit) -> bytes:
    """Return what stands in a record for the content of a file, reading it."""
    status = visit.status
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFREG:
            return encode_content(status.st_size, _blocks(visit))
        case stat.S_IFLNK:
            return os.readlink(visit.name, dir_fd=visit.directory_fd)
        case stat.S_IFCHR | stat.S_IFBLK:
            return struct.pack("<QQ", os.major(status.st_rdev), os.minor(status.st_rdev))
    return b""


def _blocks(visit: Visit) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of the blocks of a regular file, passing over holes (lseek(2), SEEK_DATA)."""
    file_fd = os.open(visit.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=visit.directory_fd)
    position = 0
    try:
        while position < visit.status.st_size:
            number = os.lseek(file_fd, position, os.SEEK_DATA) // BLOCK_BYTES
            yield number, os.pread(file_fd, BLOCK_BYTES, number * BLOCK_BYTES)
            position = (number + 1) * BLOCK_BYTES
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole from there to the end
            raise
    finally:
        os.close(file_fd)


def _xattrs(visit: Visit) -> dict[bytes, bytes]:
    try:
        names = os.listxattr(visit.path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return {}
    counted = set(map(os.fsencode, names)) - UNCOUNTED_XATTRS
    return {name: os.getxattr(visit.path, name, follow_symlinks=False) for name in counted}


def _sync_file_system(path: Path) -> None:
    """Write all of a file system to its disk (syncfs(2)): one call, where a tree would need one for each file."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fsdecode(path))
    finally:
        os.close(fd)
