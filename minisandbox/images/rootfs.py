"""Root file systems: built from recipes, stored in the state directory, and extended by a directory of the host.

Everything here blocks, on locks and on the disk, so async code calls it in a thread. It mounts nothing.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minisandbox.binds import Bind
from minisandbox.errors import RootfsError, SandboxError, StateError
from minisandbox.images.busybox import BusyboxRecipe
from minisandbox.images.host import HostRecipe
from minisandbox.images.layer import Layer, field, find_layer, store_layer
from minisandbox.images.lock import locked
from minisandbox.images.recipe import BASE_ENV, NamedRecipe, Plan, Recipe, encode_binds, load_recipe, recipe_digest
from minisandbox.images.state import StateDir, reporting

KINDS: tuple[type[Recipe], ...] = (HostRecipe, BusyboxRecipe)
"""The kinds of recipes there are. A new one is a module with a subclass of `Recipe`, and its name here."""

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


class _BindRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    target: str
    writable: bool


class _Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rootfs as it is stored. `digest` is that of the `Rootfs`, so that damage shows."""

    format: int
    name: str
    recipe_digest: str
    layers: tuple[str, ...]
    binds: tuple[_BindRecord, ...]
    env: dict[str, str]
    digest: str


def build_rootfs(
    state: StateDir, name_or_path: str | Path, *, rebuild: bool = False, host_root: Path = Path("/")
) -> Rootfs:
    """Return the rootfs of a recipe, building what is not stored yet or was built from other facts of the host.

    `rebuild` builds in any case, and so mends damaged layers. Callers of one name wait for each other.
    Raises UsageError, RootfsError, HostError or StateError; then the rootfs stored before is still there.
    """
    named = load_recipe(name_or_path, KINDS)
    plan = named.recipe.plan(host_root)
    digest = recipe_digest(named.recipe, plan)
    if not rebuild and (stored := _find(state, named.name, digest)):
        return stored
    lock = state.rootfs / f"{named.name}.lock"
    with reporting(f"lock {lock}"):
        lock.touch(mode=0o600)
    with locked(lock):
        if not rebuild and (stored := _find(state, named.name, digest)):
            return stored
        return _build(state, named, plan, digest)


def list_rootfs(state: StateDir) -> list[Rootfs]:
    """Return every stored rootfs whose layers are all there, sorted by name."""
    found = [_load(state, _read(file)) for file in sorted(state.rootfs.glob("*.json"))]
    return [rootfs for rootfs in found if rootfs is not None]


def _build(state: StateDir, named: NamedRecipe, plan: Plan, digest: str) -> Rootfs:
    try:
        layers = tuple(store_layer(state, layer.fill) for layer in plan.layers)
    except SandboxError as error:
        error.add_note(f"while building the rootfs {named.name} of {named.file}")
        raise
    rootfs = Rootfs(named.name, layers, plan.binds, BASE_ENV | named.recipe.env)
    manifest = _Manifest(
        format=_FORMAT,
        name=rootfs.name,
        recipe_digest=digest,
        layers=tuple(layer.digest for layer in layers),
        binds=tuple(_BindRecord(source=str(b.source), target=b.target, writable=b.writable) for b in plan.binds),
        env=rootfs.env,
        digest=rootfs.digest,
    )
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    state.write_file(_file(state, named.name), content)
    return rootfs


def _find(state: StateDir, name: str, digest: str) -> Rootfs | None:
    """Return a stored rootfs that was built from just this."""
    file = _file(state, name)
    if not file.exists():
        return None
    manifest = _read(file)
    return _load(state, manifest) if manifest.recipe_digest == digest else None


def _file(state: StateDir, name: str) -> Path:
    return state.rootfs / f"{name}.json"


def _read(file: Path) -> _Manifest:
    with reporting(f"read {file}"):
        content = file.read_bytes()
    try:
        manifest = msgspec.json.decode(content, type=_Manifest)
    except msgspec.MsgspecError as error:
        raise StateError(f"{file} is damaged ({error}); build this rootfs anew") from error
    if manifest.format != _FORMAT:
        raise StateError(f"{file} has format {manifest.format}, not {_FORMAT}; build this rootfs anew")
    return manifest


def _load(state: StateDir, manifest: _Manifest) -> Rootfs | None:
    """Return a stored rootfs, or None when one of its layers is gone."""
    layers = [find_layer(state, digest) for digest in manifest.layers]
    whole = tuple(layer for layer in layers if layer is not None)
    if len(whole) != len(layers):
        return None
    binds = tuple(Bind(source=Path(b.source), target=b.target, writable=b.writable) for b in manifest.binds)
    rootfs = Rootfs(manifest.name, whole, binds, manifest.env)
    if rootfs.digest != manifest.digest:
        file = _file(state, manifest.name)
        raise RootfsError(f"it was changed by hand: it digests to {rootfs.digest}; build this rootfs anew", file)
    return rootfs
