"""Reads a snapshot back from the file that `snapshot_export.py` wrote, wherever that was, and trusts nothing in it.

What a file says is only believed once its digests are right; the layers that it names are made under their own digests,
entry by entry in new directories, so that nothing leads out. A bind of the host is only taken when a rootfs of this
host of the same name has the same: a file cannot show a sandbox what its owner did not mean to.
"""

from __future__ import annotations

import errno
import fcntl
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from minisandbox.errors import SandboxError, SnapshotDamagedError, UsageError
from minisandbox.images.entry import MAX_ID, RefusedError, quoted, split_path
from minisandbox.images.garbage import gc
from minisandbox.images.layer import Layer, LayerManifest, find_layer, measure_tree, store_layer
from minisandbox.images.layer_copy import FileFacts, LayerWriter
from minisandbox.images.lock import locked
from minisandbox.images.manifest import bind_of
from minisandbox.images.overlay import Parts
from minisandbox.images.progress import Meter, Report
from minisandbox.images.recipe import recipe_names
from minisandbox.images.rootfs import build_rootfs
from minisandbox.images.snapshot_digest import digest_snapshot, opened_layers
from minisandbox.images.snapshot_export import MANIFEST_MEMBER, OPAQUE, SHARED, SOCKET, TYPE, WHITEOUT, layer_member
from minisandbox.images.snapshot_manifest import (
    SnapshotManifest,
    StoredSnapshot,
    decode_manifest,
    load_layers,
    write_snapshot,
)
from minisandbox.images.snapshot_store import SnapshotStore
from minisandbox.images.snapshot_verify import find_damage
from minisandbox.images.state import reporting
from minisandbox.images.stream import Bounds, FileSlice, Source
from minisandbox.images.tar import Kind, Member, read_members
from minisandbox.images.tarball import open_regular
from minisandbox.images.tree import TOP

MANIFEST_MAX_BYTES = 1 << 20
INDEX_MAX_BYTES = 1 << 30
_ENTRY_AT_FAULT = {
    getattr(errno, name) for name in "E2BIG EEXIST EINVAL ELOOP EMLINK ENAMETOOLONG ENOENT ENOTDIR ERANGE".split()
}
_ALLOWED_XATTRS = (b"user.", b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default")


def import_snapshot(
    store: SnapshotStore,
    path: Path,
    name: str | None = None,
    *,
    digest: str | None = None,
    bounds: Bounds | None = None,
    report: Report | None = None,
) -> StoredSnapshot:
    """Store the snapshot of a file under its own name or another one, and return it.

    With a digest, only that snapshot is taken. Layers that are stored already are not written again.
    Raises UsageError when the name is taken by another one or there is no such file, SnapshotDamagedError that says
    what is wrong with the file, StoreFullError, StateError; nothing of it is left then.
    """
    bounds, meter = bounds or Bounds(), Meter(report)
    new: list[str] = []
    try:
        with locked(store.state.rootfs, fcntl.LOCK_SH), open_regular(path) as fd:
            raw = meter.reading(FileSlice(fd))
            source = Source(raw, lambda message: SnapshotDamagedError(message, path), bounds.max_bytes)
            return _Import(store, path, source, bounds, meter, new).run(name, digest)
    except BaseException:
        gc(store.state, new)
        raise


@dataclass(slots=True)
class _Import:
    """One import: the members of its file, read in order."""

    store: SnapshotStore
    path: Path
    source: Source
    bounds: Bounds
    meter: Meter
    new: list[str]
    """Layers that were made, in case that they have to go."""
    files: int = 0
    _members: Iterator[Member] = field(init=False)
    _next: Member | None = field(init=False, default=None)

    def run(self, name: str | None, digest: str | None) -> StoredSnapshot:
        self.meter.begin(f"reading {self.path.name}")
        self._members = read_members(self.source)
        self._advance()
        manifest = decode_manifest(self._content(MANIFEST_MEMBER, MANIFEST_MAX_BYTES), self.path)
        if digest is not None and manifest.digest != digest:
            raise self.source.refuse(f"it is the snapshot {manifest.digest}, not {digest}")
        manifest = msgspec.structs.replace(manifest, name=name or manifest.name)
        stored = self.store.taken(manifest.name, manifest.digest)
        check_binds(self.store, manifest, self.path)
        for layer in dict.fromkeys((*manifest.layers, *manifest.rootfs.layers)):
            self._read_layer(layer)
        if self._next is not None:
            raise self.source.refuse(f"member {quoted(self._next.name)} does not belong to a snapshot")
        self.source.drain()
        snapshot = load_layers(self.store.state, manifest, self.path)
        self._check(snapshot)
        if stored is None:
            write_snapshot(self.store.state, snapshot)
        return snapshot

    def _check(self, snapshot: StoredSnapshot) -> None:
        with reporting("read the layers of a snapshot"), opened_layers(layer.path for layer in snapshot.layers) as fds:
            found = digest_snapshot(snapshot.rootfs, fds, marks=self.store.marks, owners=self.store.owners)
        if found != snapshot.digest:
            raise self.source.refuse(f"what it holds digests to {found}, not to {snapshot.digest}, as it says")

    def _advance(self) -> None:
        self._next = next(self._members, None)

    def _content(self, name: bytes, max_bytes: int) -> bytes:
        """Read a member that must come now."""
        member = self._next
        if member is None or member.name != name or member.kind is not Kind.FILE:
            found = "its end" if member is None else quoted(member.name)
            raise self.source.refuse(f"no exported snapshot: {found} comes where {quoted(name)} should")
        if member.size > max_bytes or member.size != member.unread:
            raise self.source.refuse(f"member {quoted(name)} has {member.size} bytes; {max_bytes} are allowed")
        content = b"".join(data for _, data in member.read_pieces())
        self._advance()
        return content

    def _read_layer(self, digest: str) -> None:
        facts = self._content(layer_member(digest, b".json"), MANIFEST_MAX_BYTES)
        try:
            encoding = msgspec.json.decode(facts, type=LayerManifest).encoding
        except msgspec.MsgspecError as error:
            raise self.source.refuse(f"the manifest of the layer {digest} is damaged: {error}") from error
        index = None if encoding == 1 else self._content(layer_member(digest, b".index"), INDEX_MAX_BYTES)
        if find_layer(self.store.state, digest) is not None:
            for _ in self._entries(digest):
                pass
            return

        def fill(top: Path) -> None:
            with opened_layers([top]) as (top_fd,):
                with LayerWriter(top_fd, self.store.marks, self.store.owners) as writer:
                    self._write(writer, digest)
            self._check_layer(Layer(digest, top), index)

        def measure(top: Path) -> tuple[LayerManifest, bytes | None]:
            return self.store.measure(top) if index is not None else (measure_tree(top), None)

        self.new.append(store_layer(self.store.state, fill, measure).digest)

    def _check_layer(self, layer: Layer, index: bytes | None) -> None:
        """Raise SnapshotDamagedError unless what was written is the layer that it should be."""
        if index is not None:
            find_damage(layer, index, self.store.layer_recorder(), self.source.refuse)
        elif measure_tree(layer.path).digest != layer.digest:
            raise self.source.refuse(f"its layer {layer.digest} is damaged")

    def _entries(self, digest: str) -> Iterator[tuple[Member, Parts]]:
        """Yield the entries of a layer, the next members, with their paths in it."""
        top = split_path(layer_member(digest))
        while (member := self._next) is not None:
            try:
                parts = split_path(member.name)
            except RefusedError as error:
                raise self._refuse(member, error) from error
            if parts[: len(top)] != top:
                return
            self.files += 1
            if self.files > self.bounds.max_files:
                raise self.source.refuse(f"it holds more than the {self.bounds.max_files} files that were allowed")
            yield member, parts[len(top) :]
            self._advance()

    def _write(self, writer: LayerWriter, digest: str) -> None:
        here: list[bytes] = []
        shared: dict[bytes, int] = {}
        for member, parts in self._entries(digest):
            self.meter.add_file()
            try:
                while here and tuple(here[1:]) != parts[:-1]:
                    here.pop()
                    writer.leave()
                if bool(parts) != bool(here):
                    raise RefusedError("its directory does not come right before it")
                _write_member(writer, member, parts[-1] if parts else TOP, shared)
            except (RefusedError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in _ENTRY_AT_FAULT:
                    raise
                raise self._refuse(member, error) from error
            if member.kind is Kind.DIRECTORY:
                here.append(parts[-1] if parts else TOP)
        if not writer.depth:
            raise self.source.refuse(f"the layer {digest} is not in it")
        while writer.depth:
            writer.leave()

    def _refuse(self, member: Member, error: Exception) -> Exception:
        return self.source.refuse(f"member {quoted(member.name)}: {error}")


def _write_member(writer: LayerWriter, member: Member, name: bytes, shared: dict[bytes, int]) -> None:
    """Write one entry into the directory that the writer is in. Raises RefusedError."""
    marks = {xattr: member.xattrs.pop(xattr, b"") for xattr in (TYPE, OPAQUE, SHARED)}
    if name == TOP and member.kind is not Kind.DIRECTORY:
        raise RefusedError("the top of a layer is no directory")
    if member.kind is Kind.HARD_LINK:
        if member.target not in shared:
            raise RefusedError(f"it is another name of {quoted(member.target)}, which has one only")
        writer.add_shared(name, shared[member.target])
        return
    match member.kind:
        case Kind.DIRECTORY:
            writer.enter(name, _facts(member, stat.S_IFDIR), is_opaque=marks[OPAQUE] == b"y" and name != TOP)
            return
        case Kind.FILE:
            writer.add_file(name, _facts(member, stat.S_IFREG), member.size, member.read_pieces())
        case Kind.SYMBOLIC_LINK:
            writer.add_symlink(name, _facts(member, stat.S_IFLNK), member.target)
        case Kind.FIFO if marks[TYPE] == WHITEOUT:
            writer.add_whiteout(name)
            return
        case Kind.FIFO:
            writer.add_special(name, _facts(member, stat.S_IFSOCK if marks[TYPE] == SOCKET else stat.S_IFIFO))
        case _:
            raise RefusedError("it is a device, which no layer can have")
    if marks[SHARED]:
        shared[member.name] = len(shared)
        writer.share(name, shared[member.name])


def _facts(member: Member, kind: int) -> FileFacts:
    if member.uid > MAX_ID or member.gid > MAX_ID:
        raise RefusedError(f"it belongs to uid {member.uid} and gid {member.gid}; a sandbox has the ids 0 to {MAX_ID}")
    xattrs = {_unescaped(xattr): value for xattr, value in member.xattrs.items()}
    for xattr in xattrs:
        if not xattr.startswith(_ALLOWED_XATTRS):
            raise RefusedError(f"no file of a sandbox can have the attribute {quoted(xattr)}")
    return FileFacts(kind | member.mode, member.uid, member.gid, member.mtime_ns, xattrs)


def _unescaped(xattr: bytes) -> bytes:
    return xattr.replace(b"%3D", b"=").replace(b"%25", b"%")


def check_binds(store: SnapshotStore, manifest: SnapshotManifest, path: Path) -> None:
    """Raise UsageError unless a rootfs of this host shows the same of it as that of a snapshot from elsewhere."""
    base = manifest.rootfs
    if not base.binds:
        return
    try:
        own = build_rootfs(store.state, base.name) if base.name in recipe_names() else None
    except SandboxError as error:
        error.add_note(f"the rootfs that {path} lies on")
        raise
    if own is None or own.binds != tuple(map(bind_of, base.binds)):
        shown = ", ".join(bind.source for bind in base.binds)
        raise UsageError(
            f"{path} lies on the rootfs {base.name}, which shows {shown} of its host, and no rootfs here shows the "
            f"same; import it where it was made"
        )
