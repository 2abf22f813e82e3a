"""Finds damage in stored snapshots, and says which file of which layer it is in. It mends nothing."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from minisandbox.errors import RootfsError, SnapshotDamagedError, StateError
from minisandbox.images.entry import quoted
from minisandbox.images.layer import Layer, index_file, read_manifest, verify
from minisandbox.images.merged import MergedWalk
from minisandbox.images.progress import Meter
from minisandbox.images.snapshot_digest import LAYER_HEADER, digest_snapshot, indexed, opened_layers
from minisandbox.images.snapshot_manifest import StoredSnapshot, snapshot_file
from minisandbox.images.snapshot_record import Recorder
from minisandbox.images.snapshot_store import SnapshotStore
from minisandbox.images.state import reporting
from minisandbox.images.stream import Refuse
from minisandbox.images.tree import TOP, Step

_RECORD_BYTES = hashlib.sha256().digest_size


def verify_snapshot(store: SnapshotStore, snapshot: StoredSnapshot, meter: Meter | None = None) -> None:
    """Read all of a snapshot and of its rootfs. What is shown of the host is not looked at.

    Raises SnapshotDamagedError that names the file that is damaged, StateError when something cannot be read.
    """
    meter = meter or Meter()
    for layer in (*snapshot.layers, *snapshot.rootfs.layers):
        meter.begin(f"reading the layer {layer.digest[7:19]}")
        with reporting(f"read the layer {layer.path}"):
            verify_layer(layer, store.layer_recorder(), meter)
    with reporting(f"read the snapshot {snapshot.name}"):
        with opened_layers(layer.path for layer in snapshot.layers) as fds:
            found = digest_snapshot(snapshot.rootfs, fds, marks=store.marks, owners=store.owners)
    if found != snapshot.digest:
        file = snapshot_file(store.state, snapshot.name)
        raise SnapshotDamagedError(f"it was changed by hand: what it names digests to {found}", file)


def verify_layer(layer: Layer, recorder: Recorder, meter: Meter) -> None:
    """Raise SnapshotDamagedError unless a layer holds what its digest says, OSError when it cannot be read."""
    try:
        manifest = read_manifest(layer)
    except StateError as error:
        raise SnapshotDamagedError(str(error), layer.path) from error
    if manifest.encoding == 1:
        try:
            verify(layer)
        except RootfsError as error:
            raise SnapshotDamagedError("the layer is damaged; build its rootfs anew", layer.path) from error
        return
    if manifest.digest != layer.digest:
        raise SnapshotDamagedError(f"this is not the manifest of the layer {layer.digest}", layer.path)

    def refuse(message: str) -> SnapshotDamagedError:
        return SnapshotDamagedError(f"{message}; import the snapshot again", layer.path)

    index = index_file(layer).read_bytes()
    if "sha256:" + hashlib.sha256(index).hexdigest() != layer.digest:
        raise SnapshotDamagedError(f"this is not the index of the layer {layer.digest}", index_file(layer))
    find_damage(layer, index, recorder, refuse, meter)


def find_damage(layer: Layer, index: bytes, recorder: Recorder, refuse: Refuse, meter: Meter | None = None) -> None:
    """Raise the error of `refuse` unless a tree is what the digest of a layer says, and its index with it."""
    if "sha256:" + hashlib.sha256(index).hexdigest() != layer.digest:
        raise refuse(f"the index of the layer {layer.digest} is damaged")
    with opened_layers([layer.path]) as (top_fd,), MergedWalk([top_fd], recorder.marks) as walk:
        _compare(walk, _entries(index), recorder, refuse, meter or Meter())


def _compare(
    walk: MergedWalk, entries: Iterator[tuple[bytes, bytes]], recorder: Recorder, refuse: Refuse, meter: Meter
) -> None:
    names: list[bytes] = []
    damage = ""  # of a directory, which is often that something in it was added or removed: that is what to name
    for found, record in indexed(walk, recorder):
        meter.add_file()
        name, entry = next(entries)
        if entry != record:
            shown = b"" if found.step is Step.LEAVE else found.name
            damage = _damage(names, shown, name)
            if found.step is not Step.ENTER or shown != name:
                raise refuse(damage)
        if found.step is Step.LEAVE:
            names.pop()
        elif found.step is Step.ENTER:
            names.append(found.name)
    if damage:
        raise refuse(damage)


def _damage(names: list[bytes], found: bytes, expected: bytes) -> str:
    """Say what is wrong with the first file that differs; an empty name is no file."""
    is_new = found != expected and bool(found) and (not expected or found < expected)
    name = found if is_new else expected
    path = quoted(b"/".join((*names[1:], name)) if names else TOP)
    how = "does not belong there" if is_new else "is gone" if found != expected else "is not what was stored"
    return f"{path} of the layer {how}"


def _entries(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and whole entry of each step of an index whose digest is right; an empty name leaves a directory."""
    at = len(LAYER_HEADER)
    while at < len(index):
        (length,) = struct.unpack_from("<Q", index, at)
        name = index[at + 8 : at + 8 + length]
        end = at + 8 + length + (_RECORD_BYTES if name else 0)
        yield name, index[at:end]
        at = end
