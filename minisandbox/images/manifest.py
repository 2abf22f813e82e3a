"""What a rootfs is once it is built, and the files rootfs/<name>.json that keep it.

A manifest also notes of what each layer was made, so that another rootfs of the same takes the same layer.
This module builds nothing and removes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minisandbox.binds import Bind
from minisandbox.errors import RootfsError, StateError
from minisandbox.images.layer import Layer, field, find_layer
from minisandbox.images.recipe import ImageFacts, encode_binds
from minisandbox.images.state import StateDir, reporting

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Rootfs:
    """What a sandbox has as its root: layers, the top one first, host directories over them, and an environment."""

    name: str
    layers: tuple[Layer, ...]
    binds: tuple[Bind, ...]
    env: dict[str, str]

    @property
    def digest(self) -> str:
        """Digest of layers, binds and environment, not of the name. What a bind shows is the host's and not in it."""
        digest = hashlib.sha256(field(b"minisandbox rootfs 1"))
        for layer in self.layers:
            digest.update(field(b"layer") + field(layer.digest.encode()))
        digest.update(encode_binds(self.binds))
        for name, value in sorted(self.env.items()):
            digest.update(field(b"env") + field(os.fsencode(name)) + field(os.fsencode(value)))
        return "sha256:" + digest.hexdigest()


class LayerOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a layer was made of."""

    key: str
    """That of its `LayerPlan`."""
    skipped: dict[str, int] = {}
    """How many things of the source are not in it, by what they are."""


class BindRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bind as it is stored."""

    source: str
    target: str
    writable: bool


def bind_record(bind: Bind) -> BindRecord:
    """Return a bind as it is stored."""
    return BindRecord(source=str(bind.source), target=bind.target, writable=bind.writable)


def bind_of(record: BindRecord) -> Bind:
    """Return a stored bind."""
    return Bind(source=Path(record.source), target=record.target, writable=record.writable)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rootfs as it is stored. `digest` is that of the `Rootfs`, so that damage shows."""

    format: int
    name: str
    recipe_digest: str
    layers: tuple[str, ...]
    binds: tuple[BindRecord, ...]
    env: dict[str, str]
    digest: str
    origins: tuple[LayerOrigin, ...] = ()
    """One for each layer."""
    image: ImageFacts | None = None
    imported_from: str | None = None
    """The file or directory of which it was imported; None when a recipe made it."""


def write_manifest(
    state: StateDir,
    rootfs: Rootfs,
    recipe_digest: str,
    origins: tuple[LayerOrigin, ...],
    *,
    image: ImageFacts | None = None,
    imported_from: str | None = None,
) -> None:
    """Store a rootfs under its name, in place of the one that had it before."""
    manifest = Manifest(
        format=_FORMAT,
        name=rootfs.name,
        recipe_digest=recipe_digest,
        layers=tuple(layer.digest for layer in rootfs.layers),
        binds=tuple(map(bind_record, rootfs.binds)),
        env=rootfs.env,
        digest=rootfs.digest,
        origins=origins,
        image=image,
        imported_from=imported_from,
    )
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    state.write_file(manifest_file(state, rootfs.name), content)


def manifest_file(state: StateDir, name: str) -> Path:
    """Return where the rootfs of a name is stored, whether it is or not."""
    return state.rootfs / f"{name}.json"


def read_if_there(file: Path) -> bytes | None:
    """Return what is in a file, or None where there is none. Raises StateError."""
    try:
        with reporting(f"read {file}"):
            return file.read_bytes()
    except StateError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def read_manifest_of(state: StateDir, name: str) -> Manifest | None:
    """Return the manifest of a name, or None. Raises StateError when it is damaged."""
    file = manifest_file(state, name)
    content = read_if_there(file)
    if content is None:
        return None
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise StateError(f"{file} is damaged ({error}); build this rootfs anew") from error
    if manifest.format != _FORMAT:
        raise StateError(f"{file} has format {manifest.format}, not {_FORMAT}; build this rootfs anew")
    return manifest


def list_manifests(state: StateDir) -> Iterator[Manifest]:
    """Yield every manifest, sorted by name. Raises StateError at one that is damaged."""
    for file in sorted(state.rootfs.glob("*.json")):
        manifest = read_manifest_of(state, file.stem)
        if manifest is not None:
            yield manifest


def load_rootfs(state: StateDir, manifest: Manifest) -> Rootfs | None:
    """Return a stored rootfs, or None when one of its layers is gone. Raises RootfsError when it was tampered with."""
    layers = [find_layer(state, digest) for digest in manifest.layers]
    whole = tuple(layer for layer in layers if layer is not None)
    if len(whole) != len(layers):
        return None
    binds = tuple(map(bind_of, manifest.binds))
    rootfs = Rootfs(manifest.name, whole, binds, manifest.env)
    if rootfs.digest != manifest.digest:
        file = manifest_file(state, manifest.name)
        raise RootfsError(f"it was changed by hand: it digests to {rootfs.digest}; build this rootfs anew", file)
    return rootfs


def list_rootfs(state: StateDir) -> list[Rootfs]:
    """Return every stored rootfs whose layers are all there, sorted by name."""
    found = [load_rootfs(state, manifest) for manifest in list_manifests(state)]
    return [rootfs for rootfs in found if rootfs is not None]


def known_layers(state: StateDir) -> dict[str, tuple[Layer, LayerOrigin]]:
    """Return the layers of every rootfs that can be read, by the key of what they were made of."""
    known = {}
    for file in state.rootfs.glob("*.json"):
        try:
            manifest = read_manifest_of(state, file.stem)
        except StateError:
            continue  # its owner is told when it is used; here it only means that a layer may be made twice
        if manifest is None or len(manifest.origins) != len(manifest.layers):
            continue
        for digest, origin in zip(manifest.layers, manifest.origins, strict=True):
            layer = find_layer(state, digest)
            if layer is not None:
                known[origin.key] = (layer, origin)
    return known
