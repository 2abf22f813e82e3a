"""What a snapshot is once it is stored, and the files snapshots/<name>.json that keep it.

A manifest holds all of the rootfs that it lies on, so that the snapshot outlives a newer build of that rootfs.
This module stores no layer and removes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minisandbox.errors import SnapshotDamagedError, SnapshotNotFoundError
from minisandbox.images.layer import Layer, find_layer
from minisandbox.images.manifest import BindRecord, Rootfs, bind_of, bind_record, read_if_there
from minisandbox.images.recipe import ROOTFS_NAME
from minisandbox.images.state import StateDir

FORMAT = 1
MIN_PREFIX = 4
"""So many hex digits of a digest stand for it at least, when no other begins so."""


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rootfs that a snapshot lies on."""

    name: str
    digest: str
    layers: tuple[str, ...]
    binds: tuple[BindRecord, ...] = ()
    env: dict[str, str] = {}


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot as it is stored."""

    format: int = FORMAT
    name: str
    digest: str
    rootfs: BaseRecord
    layers: tuple[str, ...]
    """Top first; the layers of the rootfs lie below."""


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot in the state directory: what was written, as layers over a rootfs."""

    name: str
    digest: str
    """Of what it shows (snapshot_digest.py)."""
    rootfs: Rootfs
    layers: tuple[Layer, ...]
    """Top first."""

    def as_rootfs(self) -> Rootfs:
        """Return the rootfs that shows what the snapshot does, to start sandboxes from."""
        layers: list[Layer] = []
        for layer in (*self.layers, *self.rootfs.layers):
            if layer not in layers:  # the kernel refuses to mount one twice; the upper one does all the lower one did
                layers.append(layer)
        return Rootfs(self.rootfs.name, tuple(layers), self.rootfs.binds, self.rootfs.env)


def manifest_of(snapshot: StoredSnapshot) -> SnapshotManifest:
    """Return a snapshot as it is stored."""
    rootfs = snapshot.rootfs
    base = BaseRecord(
        name=rootfs.name,
        digest=rootfs.digest,
        layers=tuple(layer.digest for layer in rootfs.layers),
        binds=tuple(map(bind_record, rootfs.binds)),
        env=rootfs.env,
    )
    layers = tuple(layer.digest for layer in snapshot.layers)
    return SnapshotManifest(name=snapshot.name, digest=snapshot.digest, rootfs=base, layers=layers)


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """Return a manifest as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(content: bytes, file: Path) -> SnapshotManifest:
    """Return a manifest that was encoded. Raises SnapshotDamagedError, which names `file`."""
    try:
        manifest = msgspec.json.decode(content, type=SnapshotManifest)
    except msgspec.MsgspecError as error:
        raise SnapshotDamagedError(f"the manifest of a snapshot is damaged: {error}", file) from error
    if manifest.format != FORMAT:
        raise SnapshotDamagedError(f"it is a snapshot of format {manifest.format}, not {FORMAT}", file)
    return manifest


def snapshot_file(state: StateDir, name: str) -> Path:
    """Return where the snapshot of a name is stored, whether it is or not."""
    return state.snapshots / f"{name}.json"


def write_snapshot(state: StateDir, snapshot: StoredSnapshot) -> None:
    """Store the manifest of a snapshot whose layers are stored."""
    state.write_file(snapshot_file(state, snapshot.name), encode_manifest(manifest_of(snapshot)))


def list_snapshot_manifests(state: StateDir) -> Iterator[SnapshotManifest]:
    """Yield every manifest, sorted by name. Raises SnapshotDamagedError at one that is damaged."""
    for file in sorted(state.snapshots.glob("*.json")):
        manifest = _read(file)
        if manifest is not None:
            yield manifest


def find_manifest(state: StateDir, reference: str) -> SnapshotManifest:
    """Return the snapshot that a name or the beginning of a digest stands for. Raises SnapshotNotFoundError."""
    if ROOTFS_NAME.fullmatch(reference):
        manifest = _read(snapshot_file(state, reference))
        if manifest is not None:
            return manifest
    digits = reference.removeprefix("sha256:")
    found = []
    if len(digits) >= MIN_PREFIX:
        found = [each for each in list_snapshot_manifests(state) if each.digest.startswith(f"sha256:{digits}")]
    if not found:
        raise SnapshotNotFoundError(f"there is no snapshot {reference!r}; see: minisandbox snapshot list")
    if len({each.digest for each in found}) > 1:
        names = ", ".join(each.name for each in found)
        raise SnapshotNotFoundError(f"the digests of several snapshots begin with {reference!r}: {names}")
    return found[0]


def load_snapshot(state: StateDir, manifest: SnapshotManifest) -> StoredSnapshot:
    """Return a stored snapshot. Raises SnapshotDamagedError when a layer is gone or the manifest was changed."""
    return load_layers(state, manifest, snapshot_file(state, manifest.name))


def load_layers(state: StateDir, manifest: SnapshotManifest, file: Path) -> StoredSnapshot:
    """Return the snapshot of a manifest that is in a file, with its layers, which are stored."""
    base = manifest.rootfs
    lower = _layers(state, base.layers, file)
    rootfs = Rootfs(base.name, lower, tuple(map(bind_of, base.binds)), base.env)
    if rootfs.digest != base.digest:
        raise SnapshotDamagedError(f"it was changed by hand: its rootfs digests to {rootfs.digest}", file)
    return StoredSnapshot(manifest.name, manifest.digest, rootfs, _layers(state, manifest.layers, file))


def _layers(state: StateDir, digests: tuple[str, ...], file: Path) -> tuple[Layer, ...]:
    layers = []
    for digest in digests:
        layer = find_layer(state, digest)
        if layer is None:
            raise SnapshotDamagedError(f"its layer {digest} is gone; import it again", file)
        layers.append(layer)
    return tuple(layers)


def _read(file: Path) -> SnapshotManifest | None:
    content = read_if_there(file)
    return None if content is None else decode_manifest(content, file)
