"""The kind `oci`: an image in an OCI image layout or an archive of `docker save`, each of its layers a layer of ours.

A layer is found again by the digests of all layers up to it (their chain id), so images that begin with the same layers
share them on the disk and in memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minisandbox.errors import RootfsError
from minisandbox.images.entry import RefusedError
from minisandbox.images.layer import Layer
from minisandbox.images.oci_image import ImageLayer, host_architecture, read_image
from minisandbox.images.oci_store import ImageStore, find_store
from minisandbox.images.overlay import Parts, merge_trees
from minisandbox.images.recipe import Building, LayerPlan, Plan, Recipe, Site
from minisandbox.images.stream import Bounds, HashedReader, Source
from minisandbox.images.tarball import unpack
from minisandbox.images.unpack import TreeWriter

LAYERS_MAX = 24
"""Longest chain; what is above is merged into one. The launcher takes 32, and snapshots and prefixes come on top."""

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_RESERVED = b".wh..wh."
"""Names of aufs's own, which mean nothing in an image."""


class OciRecipe(Recipe, frozen=True, kw_only=True, tag="oci"):
    """A rootfs out of an image."""

    path: str
    """The directory or archive; relative to the recipe's file."""
    reference: str | None = None
    """A tag, a name with a tag, or a digest; may be left out where there is one image."""
    max_bytes: int = Bounds().max_bytes
    max_files: int = Bounds().max_files

    def plan(self, site: Site) -> Plan:
        """Return a layer for each of the image's, its environment and what it says of itself.

        Raises UsageError when the image is not there, RootfsError when it is damaged, HostError when it is not for us.
        """
        path = site.find(self.path)
        bounds = Bounds(max_bytes=self.max_bytes, max_files=self.max_files)
        store = find_store(path)
        image = read_image(store, self.reference, host_architecture())
        pieces = [
            _Piece(store, path, layer, bounds, f"unpacking layer {number} of {len(image.layers)}")
            for number, layer in enumerate(image.layers, 1)
        ]
        return Plan(layers=_plan_layers(pieces), env=image.env, image=image.facts)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One layer of the image, and what is needed to unpack it."""

    store: ImageStore
    path: Path
    layer: ImageLayer
    bounds: Bounds
    step: str

    def refuse(self, message: str) -> RootfsError:
        return RootfsError(f"layer {self.layer.digest or self.layer.name}: {message}", self.path)


def _plan_layers(pieces: list[_Piece]) -> tuple[LayerPlan, ...]:
    """Return the plans of all layers, top first. Of too long a chain the uppermost are one layer together."""
    alone = len(pieces) if len(pieces) <= LAYERS_MAX else LAYERS_MAX - 1
    groups = [[piece] for piece in pieces[:alone]]
    if pieces[alone:]:
        groups.append(pieces[alone:])
    plans: list[LayerPlan] = []
    chain = ""
    for group in groups:
        for piece in group:
            chain = _chain_id(chain, piece.layer.diff_id)
        plans.insert(0, LayerPlan(f"oci layers 1 {len(group)} {chain}", partial(_fill, group)))
    return tuple(plans)


def _chain_id(parent: str, diff_id: str) -> str:
    """Return what names a layer together with all below it (OCI image specification, config.md, "Layer ChainID")."""
    return "sha256:" + hashlib.sha256(f"{parent} {diff_id}".encode()).hexdigest() if parent else diff_id


def _fill(group: list[_Piece], building: Building) -> None:
    first, *others = group
    _unpack_layer(first, building, building.top, building.below)
    for number, piece in enumerate(others):
        top = building.make_scratch(str(number))
        _unpack_layer(piece, building, top, (Layer("", building.top), *building.below))
        merge_trees(top, building.top)


def _unpack_layer(piece: _Piece, building: Building, top: Path, below: tuple[Layer, ...]) -> None:
    layer, refuse = piece.layer, piece.refuse
    algorithm = layer.diff_id.partition(":")[0]
    with piece.store.open(layer.name) as (raw, size):
        building.meter.begin(piece.step, size)
        packed = HashedReader(building.meter.reading(raw), (layer.digest or layer.diff_id).partition(":")[0])
        source = Source(packed, refuse, piece.bounds.max_bytes, algorithm)
        with TreeWriter(top, piece.bounds, below, building.meter.add_file) as writer:
            unpack(source, writer, special=_take_whiteout)
        building.skipped.update(writer.skipped)
    if layer.digest is not None and (packed.digest(), packed.size) != (layer.digest, layer.size):
        raise refuse(f"it is damaged: {packed.size} bytes with the digest {packed.digest()}")
    if source.digest() != layer.diff_id:
        raise refuse(f"it is damaged: unpacked, its digest is {source.digest()} and not {layer.diff_id}")


def _take_whiteout(writer: TreeWriter, parts: Parts) -> bool:
    """Do what a member of a reserved name means (OCI image specification, layer.md, "Whiteouts")."""
    if not any(part.startswith(_WHITEOUT) for part in parts):
        return False
    directory, name = parts[:-1], parts[-1]
    if any(part.startswith(_WHITEOUT) for part in directory):
        return True  # something of aufs's own
    if name == _OPAQUE:
        writer.hide_all_in(directory)
    elif not name.startswith(_RESERVED):
        hidden = name.removeprefix(_WHITEOUT)
        if hidden in (b"", b".", b".."):
            raise RefusedError("it hides nothing that could be there")
        writer.hide((*directory, hidden))
    return True
