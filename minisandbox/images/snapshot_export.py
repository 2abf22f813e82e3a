"""Writes a snapshot into one file, with all that is needed to start from it elsewhere but what the host shows.

The file is a tar archive, compressed by gzip or zstd or not, in this order:

    snapshot.json            the manifest, as in the state directory
    layers/<hex>.json        of each layer, those of the rootfs last: how it is digested, and how large it is
    layers/<hex>.index       what is in it, if it has an index
    layers/<hex>             its top directory
    layers/<hex>/...         all that is in it, as a walk has it

What tar knows nothing of are attributes that no file can have: `TYPE` of a FIFO says that it is a whiteout or a socket,
`OPAQUE` that a directory is opaque, `SHARED` gives a file of several names a number. So layers mean the same wherever
they come from, whichever marks of overlayfs are used there (marks.py).
"""

from __future__ import annotations

import gzip
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from minisandbox.errors import HostError
from minisandbox.images.compression import zstd_module
from minisandbox.images.entry import MAX_PATH_BYTES, quoted
from minisandbox.images.garbage import hold_layer
from minisandbox.images.layer import Layer, index_file, read_manifest, sidecar_content
from minisandbox.images.layer_copy import FileFacts, facts_of, read_pieces, segments_of
from minisandbox.images.merged import Found, Inode, MergedWalk
from minisandbox.images.progress import Meter, Report
from minisandbox.images.snapshot_manifest import StoredSnapshot, encode_manifest, manifest_of
from minisandbox.images.snapshot_record import Recorder
from minisandbox.images.snapshot_store import SnapshotStore
from minisandbox.images.snapshot_verify import verify_snapshot
from minisandbox.images.state import reporting, sync_directory
from minisandbox.images.tar import Kind
from minisandbox.images.tar_write import TarWriter, Write, merged_segments
from minisandbox.images.tree import TOP, Step

MANIFEST_MEMBER = b"snapshot.json"
TYPE, OPAQUE, SHARED = b"minisandbox.type", b"minisandbox.opaque", b"minisandbox.shared"
WHITEOUT, SOCKET = b"whiteout", b"socket"


def export_snapshot(store: SnapshotStore, snapshot: StoredSnapshot, path: Path, report: Report | None = None) -> None:
    """Write a snapshot to a file, in place of what is there; .gz and .zst at the end of its name compress it.

    It is checked before, and nothing is left when that or the writing fails. Raises SnapshotDamagedError, StateError,
    HostError when a layer holds what no archive can.
    """
    meter = Meter(report)
    with ExitStack() as stack:
        for layer in snapshot.as_rootfs().layers:
            stack.callback(os.close, hold_layer(layer))
        verify_snapshot(store, snapshot, meter)
        stack.enter_context(reporting(f"export to {path}"))
        write_archive(store, snapshot, stack.enter_context(_replacing(path)), meter)


def write_archive(store: SnapshotStore, snapshot: StoredSnapshot, write: Write, meter: Meter) -> None:
    """Write a snapshot as an archive that is not compressed."""
    archive = TarWriter(write)
    _add_content(archive, MANIFEST_MEMBER, encode_manifest(manifest_of(snapshot)))
    for layer in snapshot.as_rootfs().layers:
        _write_layer(archive, layer, store.layer_recorder(), meter)
    archive.finish()


def layer_member(digest: str, suffix: bytes = b"") -> bytes:
    """Return the name of a layer's top directory, or of what is beside it, in an archive."""
    return b"layers/" + digest.removeprefix("sha256:").encode() + suffix


def _add_content(archive: TarWriter, name: bytes, content: bytes) -> None:
    archive.add(name, Kind.FILE, size=len(content), pieces=[content])


def _write_layer(archive: TarWriter, layer: Layer, recorder: Recorder, meter: Meter) -> None:
    manifest = read_manifest(layer)
    meter.begin(f"writing the layer {layer.digest[7:19]}", manifest.content_bytes)
    _add_content(archive, layer_member(layer.digest, b".json"), sidecar_content(layer))
    if manifest.encoding != 1:
        _add_content(archive, layer_member(layer.digest, b".index"), index_file(layer).read_bytes())
    top_fd = os.open(layer.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    names: list[bytes] = []
    shared: dict[Inode, bytes] = {}
    try:
        with MergedWalk([top_fd], recorder.marks) as walk:
            for found in walk:
                if found.step is Step.LEAVE:
                    names.pop()
                    continue
                name = layer_member(layer.digest) if found.name == TOP else b"/".join((*names, found.name))
                if len(name) > MAX_PATH_BYTES:
                    raise HostError(f"{quoted(name[:80])}... is deeper in the tree than an archive can name")
                _write_entry(archive, found, name, recorder, shared, meter)
                meter.add_file()
                if found.step is Step.ENTER:
                    names.append(found.name if found.name != TOP else name)
    finally:
        os.close(top_fd)


def _write_entry(
    archive: TarWriter, found: Found, name: bytes, recorder: Recorder, shared: dict[Inode, bytes], meter: Meter
) -> None:
    if found.is_whiteout:
        archive.add(name, Kind.FIFO, xattrs={TYPE: WHITEOUT})
        return
    if found.step is Step.FILE and found.inode in shared:
        archive.add(name, Kind.HARD_LINK, target=shared[found.inode])
        return
    facts = facts_of(found, recorder)
    xattrs = {_escaped(xattr): value for xattr, value in facts.xattrs.items()}
    if found.step is Step.ENTER and found.is_opaque:
        xattrs[OPAQUE] = b"y"
    if found.step is Step.FILE and found.status.st_nlink > 1:
        shared[found.inode] = name
        xattrs[SHARED] = b"%d" % len(shared)
    match stat.S_IFMT(facts.mode):
        case stat.S_IFREG:
            _write_file(archive, found, name, facts, xattrs, meter)
        case stat.S_IFDIR:
            _add(archive, name, Kind.DIRECTORY, facts, xattrs)
        case stat.S_IFLNK:
            _add(archive, name, Kind.SYMBOLIC_LINK, facts, xattrs, os.readlink(found.name, dir_fd=found.directory_fd))
        case stat.S_IFIFO:
            _add(archive, name, Kind.FIFO, facts, xattrs)
        case stat.S_IFSOCK:
            _add(archive, name, Kind.FIFO, facts, {**xattrs, TYPE: SOCKET})
        case _:
            raise HostError(f"{quoted(name)} is a device, which no layer can have")


def _write_file(
    archive: TarWriter, found: Found, name: bytes, facts: FileFacts, xattrs: dict[bytes, bytes], meter: Meter
) -> None:
    segments = merged_segments(segments_of(found))

    def pieces() -> Iterator[bytes]:
        for _, data in read_pieces(found, segments):
            meter.add_bytes(len(data))
            yield data

    archive.add(
        name,
        Kind.FILE,
        mode=stat.S_IMODE(facts.mode),
        uid=facts.uid,
        gid=facts.gid,
        mtime_ns=facts.mtime_ns,
        xattrs=xattrs,
        size=found.status.st_size,
        segments=segments,
        pieces=pieces(),
    )


def _add(
    archive: TarWriter, name: bytes, kind: Kind, facts: FileFacts, xattrs: dict[bytes, bytes], target: bytes = b""
) -> None:
    archive.add(
        name,
        kind,
        mode=stat.S_IMODE(facts.mode),
        uid=facts.uid,
        gid=facts.gid,
        mtime_ns=facts.mtime_ns,
        xattrs=xattrs,
        target=target,
    )


def _escaped(xattr: bytes) -> bytes:
    """Return the name of an attribute without the "=" that ends it in an archive."""
    return xattr.replace(b"%", b"%25").replace(b"=", b"%3D")


@contextmanager
def _replacing(path: Path) -> Iterator[Write]:
    """Put what is written in the block in place of a file, compressed as its name says, or leave nothing."""
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    with open(partial, "xb") as file:
        try:
            with _compressing(file, path.suffix) as packed:
                yield packed.write
            file.flush()
            os.fsync(file.fileno())
            os.rename(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)


@contextmanager
def _compressing(file: BinaryIO, suffix: str) -> Iterator[BinaryIO]:
    if suffix in (".gz", ".tgz"):
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            yield cast(BinaryIO, packed)
    elif suffix in (".zst", ".tzst"):
        with zstd_module().ZstdFile(file, "wb") as packed:
            yield packed
    else:
        yield file
