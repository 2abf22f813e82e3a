"""What may be removed: a rootfs by its name, and layers that nobody uses any more.

A layer is used while the manifest of a rootfs or a snapshot names it, and while somebody holds a shared lock on its
directory: a supervisor does from the moment it may mount the layer until it is closed or dies. Builders, and whoever
saves or imports a snapshot, hold a shared lock on rootfs/ from before they look for layers until a manifest names them.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minisandbox.errors import StateError, UsageError
from minisandbox.images.layer import Layer, read_manifest
from minisandbox.images.lock import is_still_at, locked, locked_file, take_lock, take_lock_if_free
from minisandbox.images.manifest import list_manifests, manifest_file
from minisandbox.images.recipe import ROOTFS_NAME
from minisandbox.images.snapshot_manifest import list_snapshot_manifests
from minisandbox.images.state import StateDir, reporting, sync_directory

_LAYER = re.compile(r"([0-9a-f]{64})(\.json|\.index)?")


@dataclass(frozen=True, slots=True)
class Removed:
    """A layer that was removed."""

    digest: str
    content_bytes: int | None
    """Sizes of its files; None for one that never was whole."""


def hold_layer(layer: Layer) -> int:
    """Return a descriptor of a layer's directory that keeps it from being removed until it is closed everywhere.

    Raises StateError when the layer was removed meanwhile.
    """
    gone = f"the layer {layer.digest} was removed meanwhile; make its rootfs again"
    with reporting(f"open the layer {layer.path}"):
        try:
            fd = take_lock(layer.path, fcntl.LOCK_SH)
        except FileNotFoundError as error:
            raise StateError(gone) from error
        # Whoever removes it moves it away under the exclusive lock, which we may have waited for.
        if not is_still_at(fd, layer.path):
            os.close(fd)
            raise StateError(gone)
    return fd


def remove_rootfs(state: StateDir, name: str) -> None:
    """Forget a rootfs. Its layers stay until `gc`, and sandboxes that have it as their root go on.

    Raises UsageError when there is none of this name.
    """
    file = manifest_file(state, name)
    if not ROOTFS_NAME.fullmatch(name) or not file.exists():
        raise UsageError(f"there is no rootfs {name!r} that was built or imported")
    lock = file.with_suffix(".lock")
    with reporting(f"remove {file}"), locked_file(lock):
        file.unlink(missing_ok=True)
        sync_directory(file.parent)
        lock.unlink()


def gc(state: StateDir, among: Iterable[str] | None = None) -> list[Removed]:
    """Remove the layers that are not used, `among` these digests or all, and return them. Waits for who builds now.

    Raises StateError when a manifest cannot be read: what it uses is not known then, and nothing is removed.
    """
    with reporting(f"remove unused layers of {state.path}"), state.open_scratch() as scratch:
        # Moved away under the lock, removed after it, so that builders do not wait for that.
        with locked(state.rootfs):
            used = {digest.removeprefix("sha256:") for digest in _used(state)}
            names = {match[1] for match in map(_LAYER.fullmatch, os.listdir(state.layers)) if match}
            names &= names if among is None else {digest.removeprefix("sha256:") for digest in among}
            found = [_move_away(state, name, scratch) for name in sorted(names - used)]
        return [removed for removed in found if removed is not None]


def _used(state: StateDir) -> Iterator[str]:
    for manifest in list_manifests(state):
        yield from manifest.layers
    for snapshot in list_snapshot_manifests(state):
        yield from (*snapshot.layers, *snapshot.rootfs.layers)


def _move_away(state: StateDir, name: str, scratch: Path) -> Removed | None:
    """Take a layer out of the store unless somebody holds it."""
    layer = Layer(f"sha256:{name}", state.layers / name)
    sidecar = state.layers / f"{name}.json"
    with locked(state.layers):
        lock_fd = take_lock_if_free(layer.path)
        if lock_fd is None and layer.path.exists():
            return None
        try:
            size = read_manifest(layer).content_bytes if sidecar.exists() else None
            # First, so that at no moment half a layer is taken for a whole one.
            sidecar.unlink(missing_ok=True)
            sync_directory(state.layers)
            state.layers.joinpath(f"{name}.index").unlink(missing_ok=True)
            if lock_fd is not None:
                os.rename(layer.path, scratch / name)
        finally:
            if lock_fd is not None:
                os.close(lock_fd)
    return Removed(layer.digest, size)
