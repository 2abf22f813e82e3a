"""The snapshots of a state directory: saved, found, compared, checked and removed.

A snapshot is a manifest and the layers that it names, which it shares with others that have the same. Layers are
written first, each whole or not at all (`layer.store_layer`), the manifest last, so that at whatever moment a save is
killed, there is the whole snapshot or none. Everything here blocks: async code calls it in a thread.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from minisandbox.errors import HostError, UsageError
from minisandbox.images.compare import Change, compared
from minisandbox.images.garbage import Removed, gc
from minisandbox.images.layer import Layer, LayerManifest, find_layer, store_layer
from minisandbox.images.layer_copy import flatten_layers
from minisandbox.images.lock import locked
from minisandbox.images.manifest import Rootfs
from minisandbox.images.marks import Marks, own_marks
from minisandbox.images.merged import MergedWalk
from minisandbox.images.overlay import visible_layers
from minisandbox.images.progress import Meter, Report
from minisandbox.images.recipe import ROOTFS_NAME
from minisandbox.images.snapshot_digest import digest_snapshot, index_layers, opened_layers
from minisandbox.images.snapshot_manifest import (
    StoredSnapshot,
    find_manifest,
    list_snapshot_manifests,
    load_snapshot,
    snapshot_file,
    write_snapshot,
)
from minisandbox.images.snapshot_record import ContentCache, Owners, Recorder, exact_time, set_time
from minisandbox.images.state import StateDir, reporting, sync_directory

MAX_LAYERS = 8
"""A longer chain is stored as one layer: each that is looked through for a name that is not there takes its time."""

NAME_DIGITS = 16
"""A snapshot that is saved without a name is called by so many digits of its digest."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A path that differs between two snapshots."""

    path: bytes
    """From the top, without a leading "/"; "." for the top itself."""
    change: Change
    is_directory: bool
    """Whether it is a directory after the change, or was one before it was removed."""


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """The snapshots of one state directory. It holds no descriptor, so it need not be closed."""

    state: StateDir
    marks: Marks = field(default_factory=own_marks)
    owners: Owners = field(default_factory=Owners.own)

    def save(
        self,
        rootfs: Rootfs,
        layer_fds: Sequence[int],
        name: str | None = None,
        cache: ContentCache | None = None,
        report: Report | None = None,
    ) -> StoredSnapshot:
        """Store what layers, given as borrowed descriptors, top first, show over a rootfs, and return that.

        Nothing may change in them meanwhile. Layers that are stored already are not copied. Without a name it is called
        by its digest. Raises UsageError when the name is taken by another one, StoreFullError, StateError, HostError
        when something in a layer cannot be kept here; what is stored already stays as it is.
        """
        cache = ContentCache() if cache is None else cache
        meter = Meter(report)
        with locked(self.state.rootfs, fcntl.LOCK_SH):
            self._check_base(rootfs)
            meter.begin("digesting")
            with reporting("read the layers of a snapshot"):
                digest = digest_snapshot(rootfs, layer_fds, cache, self.marks, self.owners)
            name = name or digest.removeprefix("sha256:")[:NAME_DIGITS]
            if (stored := self.taken(name, digest)) is not None:
                return stored
            chain = [[fd] for fd in layer_fds] if len(layer_fds) <= MAX_LAYERS else [layer_fds]
            layers = [self._store(fds, cache, meter) for fds in reversed(chain)]
            snapshot = StoredSnapshot(name, digest, rootfs, tuple(reversed(layers)))
            write_snapshot(self.state, snapshot)
        return snapshot

    def load(self, reference: str) -> StoredSnapshot:
        """Return the snapshot of a name, or of a digest or its beginning.

        Raises SnapshotNotFoundError, or SnapshotDamagedError when a layer of it is gone.
        """
        return load_snapshot(self.state, find_manifest(self.state, reference))

    def list_snapshots(self) -> list[StoredSnapshot]:
        """Return all of them, sorted by name. Raises SnapshotDamagedError at one that is damaged."""
        return [load_snapshot(self.state, manifest) for manifest in list_snapshot_manifests(self.state)]

    def diff(self, before: StoredSnapshot | Rootfs, after: StoredSnapshot) -> Iterator[Difference]:
        """Yield the paths that differ, sorted. What a rootfs shows of the host counts as the same."""
        sides = [side if isinstance(side, Rootfs) else side.as_rootfs() for side in (before, after)]
        recorder = self.recorder()
        with opened_layers(layer.path for layer in visible_layers(sides[0].layers)) as first:
            with opened_layers(layer.path for layer in visible_layers(sides[1].layers)) as second:
                walks = MergedWalk(first, self.marks), MergedWalk(second, self.marks)
                for path, pair in compared(*walks, recorder):
                    found = pair.after or pair.before
                    assert found is not None and pair.change is not None
                    yield Difference(path, pair.change, is_directory=bool(found.merged))

    def remove(self, reference: str) -> list[Removed]:
        """Forget a snapshot, remove the layers that nothing else uses, and return these.

        Sandboxes that were started from it go on. Raises SnapshotNotFoundError.
        """
        manifest = find_manifest(self.state, reference)
        file = snapshot_file(self.state, manifest.name)
        with reporting(f"remove {file}"):
            file.unlink(missing_ok=True)
            sync_directory(file.parent)
        return gc(self.state, (*manifest.layers, *manifest.rootfs.layers))

    def recorder(self, cache: ContentCache | None = None) -> Recorder:
        """Return what encodes files by the rules of snapshots."""
        return Recorder(set_time, self.marks, self.owners, ContentCache() if cache is None else cache)

    def layer_recorder(self, cache: ContentCache | None = None) -> Recorder:
        """Return what encodes files by the rules of layers."""
        return replace(self.recorder(cache), time=exact_time)

    def _check_base(self, rootfs: Rootfs) -> None:
        for layer in rootfs.layers:
            if find_layer(self.state, layer.digest) != layer:
                raise UsageError(
                    f"the rootfs {rootfs.name} is not of the state directory {self.state.path}; export the snapshot "
                    f"where it is, and import it here"
                )

    def taken(self, name: str, digest: str) -> StoredSnapshot | None:
        """Return the snapshot of this name if it is this very one. Raises UsageError when it is another."""
        if not ROOTFS_NAME.fullmatch(name):
            raise UsageError(f"cannot name a snapshot {name!r}; use up to 64 letters, digits, '.', '_' and '-'")
        if not snapshot_file(self.state, name).exists():
            return None
        stored = self.load(name)
        if stored.digest != digest:
            raise UsageError(f"the name {name} belongs to another snapshot; remove it, or choose another name")
        return stored

    def _store(self, layer_fds: Sequence[int], cache: ContentCache, meter: Meter) -> Layer:
        """Return the one layer that these make together, storing it if it is not there."""
        recorder = self.layer_recorder(cache)
        with reporting("read a layer of a snapshot"):
            source = index_layers(layer_fds, recorder)
        stored = find_layer(self.state, source.digest)
        if stored is not None:
            return stored

        def fill(top: Path) -> None:
            meter.begin("copying", source.content_bytes)
            with opened_layers([top]) as (top_fd,):
                flatten_layers(layer_fds, top_fd, recorder, meter)

        def measure(top: Path) -> tuple[LayerManifest, bytes]:
            manifest, index = self.measure(top)
            if manifest.digest != source.digest and top.parent.parent == self.state.path / "tmp":
                raise HostError(
                    f"the copy of a layer in {self.state.path} differs from the layer: its file system keeps less of "
                    f"files than a sandbox has, as times of a second only; choose another state directory"
                )
            return manifest, index

        return store_layer(self.state, fill, measure)

    def measure(self, top: Path) -> tuple[LayerManifest, bytes]:
        """Digest a layer of a snapshot, and return its manifest and index."""
        with opened_layers([top]) as (top_fd,):
            index = index_layers([top_fd], self.layer_recorder())
        manifest = LayerManifest(digest=index.digest, files=index.files, content_bytes=index.content_bytes, encoding=2)
        return manifest, index.encoded
