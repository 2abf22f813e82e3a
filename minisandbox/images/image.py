"""Importing a root file system from a file or directory under a name of one's own, and what there is to know of one."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from minisandbox.binds import Bind
from minisandbox.errors import RootfsError, UsageError
from minisandbox.images.directory import DirectoryRecipe
from minisandbox.images.layer import read_manifest
from minisandbox.images.manifest import (
    Rootfs,
    list_manifests,
    load_rootfs,
    manifest_file,
    read_manifest_of,
)
from minisandbox.images.oci import OciRecipe
from minisandbox.images.progress import Report
from minisandbox.images.recipe import FORMAT, ROOTFS_NAME, ImageFacts, NamedRecipe, Recipe, recipe_names
from minisandbox.images.rootfs import build_recipe
from minisandbox.images.state import StateDir
from minisandbox.images.stream import Bounds, FileSlice, SeekingSource, Source
from minisandbox.images.tar import read_members
from minisandbox.images.tarball import TarRecipe, open_regular

_IMAGE_MEMBER = re.compile(
    rb"(\./)?(oci-layout|index\.json|manifest\.json|repositories|blobs(/.*)?|[0-9a-f]{64}(/.*|\.json|\.tar(\.gz)?)?/?)|\./"
)
"""Names in an archive of an image; a root file system has others."""
_CERTAIN = re.compile(rb"(\./)?(oci-layout|index\.json|manifest\.json)")


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One layer of a rootfs."""

    digest: str
    files: int
    content_bytes: int
    shared_with: tuple[str, ...]
    """Names of the other rootfs that have it too."""
    skipped: dict[str, int]
    """How many things of its source are not in it, by what they are."""


@dataclass(frozen=True, slots=True)
class RootfsFacts:
    """What there is to know of a stored rootfs."""

    name: str
    digest: str
    imported_from: str | None
    """None when a recipe made it."""
    layers: tuple[LayerFacts, ...]
    """Top first."""
    binds: tuple[Bind, ...]
    env: dict[str, str]
    image: ImageFacts | None

    @property
    def content_bytes(self) -> int:
        """Sizes of all files of all layers."""
        return sum(layer.content_bytes for layer in self.layers)

    @property
    def shared_bytes(self) -> int:
        """How much of that other rootfs have too, and so would stay without this one."""
        return sum(layer.content_bytes for layer in self.layers if layer.shared_with)

    @property
    def skipped(self) -> dict[str, int]:
        """How many things of all sources are in no layer, by what they are."""
        return dict(sum((Counter(layer.skipped) for layer in self.layers), Counter()))


def import_image(
    state: StateDir,
    path: Path,
    name: str,
    *,
    reference: str | None = None,
    bounds: Bounds | None = None,
    rebuild: bool = False,
    report: Report | None = None,
) -> Rootfs:
    """Make a rootfs of what is at `path` and store it under `name`, in place of one that was imported under it before.

    That is an OCI image layout, an archive of one or of `docker save`, a tar archive or a directory. `reference` is the
    tag or digest of the image that is meant where there are several. When the same was imported before, nothing is
    done unless `rebuild`, which mends damaged layers.

    Raises UsageError, RootfsError that names the archive and its member, HostError or StateError; nothing is left then,
    and what had the name before still has it.
    """
    _check_name(state, name)
    path = path.absolute()
    recipe = _recipe_for(path, reference, bounds or Bounds())
    named = NamedRecipe(name, path, recipe)
    return build_recipe(state, named, rebuild=rebuild, report=report, imported_from=str(path))


def inspect_rootfs(state: StateDir, name: str) -> RootfsFacts:
    """Return what there is to know of a stored rootfs. Raises UsageError when there is none of this name."""
    manifests = {manifest.name: manifest for manifest in list_manifests(state)}
    manifest = manifests.pop(name, None)
    if manifest is None:
        raise UsageError(f"there is no rootfs {name!r} that was built or imported")
    rootfs = load_rootfs(state, manifest)
    if rootfs is None:
        raise RootfsError("its layers are gone; build or import it again", manifest_file(state, name))
    skipped = [origin.skipped for origin in manifest.origins] or [{} for _ in rootfs.layers]
    layers = []
    for layer, left_out in zip(rootfs.layers, skipped, strict=True):
        stored = read_manifest(layer)
        users = tuple(other.name for other in manifests.values() if layer.digest in other.layers)
        layers.append(LayerFacts(layer.digest, stored.files, stored.content_bytes, users, left_out))
    return RootfsFacts(
        name, rootfs.digest, manifest.imported_from, tuple(layers), rootfs.binds, rootfs.env, manifest.image
    )


def _check_name(state: StateDir, name: str) -> None:
    if not ROOTFS_NAME.fullmatch(name):
        raise UsageError(f"cannot name a rootfs {name!r}; use up to 64 letters, digits, '.', '_' and '-'")
    if name.endswith(".toml"):
        raise UsageError(f"cannot name a rootfs {name!r}, since it would be taken for a file; leave out the .toml")
    if name in recipe_names():
        raise UsageError(f"the name {name} belongs to a recipe of minisandbox; choose another")
    stored = read_manifest_of(state, name)
    if stored is not None and stored.imported_from is None:
        raise UsageError(f"the name {name} belongs to a rootfs that was built from a recipe; choose another")


def _recipe_for(path: Path, reference: str | None, bounds: Bounds) -> Recipe:
    max_bytes, max_files, place = bounds.max_bytes, bounds.max_files, str(path)
    if _is_image(path):
        return OciRecipe(format=FORMAT, path=place, reference=reference, max_bytes=max_bytes, max_files=max_files)
    if reference is not None:
        raise UsageError(f"{path} is no image with tags and digests but a plain tree, so {reference!r} chooses nothing")
    if path.is_dir():
        return DirectoryRecipe(format=FORMAT, path=place, max_bytes=max_bytes, max_files=max_files)
    return TarRecipe(format=FORMAT, path=place, max_bytes=max_bytes, max_files=max_files)


def _is_image(path: Path) -> bool:
    """Return whether a path is an image rather than a tree: by its files, or the names of an archive's members."""
    if path.is_dir():
        return any((path / name).is_file() for name in ("oci-layout", "repositories"))
    with open_regular(path) as fd:
        source = Source(FileSlice(fd), lambda message: RootfsError(message, path), 1 << 62)
        if not source.format:
            source = SeekingSource(FileSlice(fd), source.refuse, 1 << 62)
        certain = False
        for member in read_members(source):
            if not _IMAGE_MEMBER.fullmatch(member.name):
                return False
            certain = certain or _CERTAIN.fullmatch(member.name) is not None
    return certain
