"""Root file systems: built from recipes or what was imported, and kept in the state directory.

Everything here blocks, on locks and on the disk, so async code calls it in a thread. It mounts nothing.
"""

from __future__ import annotations

import fcntl
from collections import Counter
from functools import partial
from pathlib import Path

from minisandbox.errors import RootfsError, SandboxError, UsageError
from minisandbox.images.busybox import BusyboxRecipe
from minisandbox.images.debian import DebianRecipe
from minisandbox.images.directory import DirectoryRecipe
from minisandbox.images.host import HostRecipe
from minisandbox.images.layer import Layer, read_manifest, store_layer
from minisandbox.images.lock import locked, locked_file
from minisandbox.images.manifest import (
    LayerOrigin,
    Rootfs,
    known_layers,
    list_rootfs,
    load_rootfs,
    manifest_file,
    read_manifest_of,
    write_manifest,
)
from minisandbox.images.oci import OciRecipe
from minisandbox.images.overlay import is_opaque, visible_layers
from minisandbox.images.progress import Meter, Report
from minisandbox.images.python import PythonRecipe
from minisandbox.images.recipe import (
    BASE_ENV,
    ROOTFS_NAME,
    Building,
    LayerPlan,
    NamedRecipe,
    Plan,
    Recipe,
    Site,
    load_recipe,
    recipe_digest,
    recipe_names,
)
from minisandbox.images.state import StateDir, reporting
from minisandbox.images.tarball import TarRecipe

__all__ = ["KINDS", "Rootfs", "build_recipe", "build_rootfs", "list_rootfs"]

KINDS: tuple[type[Recipe], ...] = (
    HostRecipe,
    BusyboxRecipe,
    DebianRecipe,
    PythonRecipe,
    DirectoryRecipe,
    TarRecipe,
    OciRecipe,
)
"""The kinds of recipes there are. A new one is a module with a subclass of `Recipe`, and its name here."""


def build_rootfs(
    state: StateDir,
    name_or_path: str | Path,
    *,
    rebuild: bool = False,
    host_root: Path = Path("/"),
    report: Report | None = None,
) -> Rootfs:
    """Return the rootfs of a recipe, building what is not stored yet or was built from other facts of the host.

    The name of an imported one gives that. `rebuild` builds in any case, and so mends damaged layers. Callers of one
    name wait for each other. Raises UsageError, RootfsError, HostError or StateError; then the rootfs stored before is
    still there.
    """
    imported = _find_imported(state, name_or_path) if isinstance(name_or_path, str) else None
    if imported is not None and not rebuild:
        return imported
    if imported is not None:
        raise UsageError(f"the rootfs {imported.name} was imported, so there is no recipe of it; import it again")
    named = load_recipe(name_or_path, KINDS)
    return build_recipe(state, named, rebuild=rebuild, host_root=host_root, report=report)


def build_recipe(
    state: StateDir,
    named: NamedRecipe,
    *,
    rebuild: bool = False,
    host_root: Path = Path("/"),
    report: Report | None = None,
    imported_from: str | None = None,
) -> Rootfs:
    """Return the rootfs of a recipe that was read or made up, as `build_rootfs` does."""
    site = Site(host_root, named.file.parent, partial(load_recipe, kinds=KINDS))
    plan = named.recipe.plan(site)
    digest = recipe_digest(named.recipe, plan)
    if not rebuild and (stored := _find(state, named.name, digest)):
        return stored
    # Shared with other builders: until the manifest names its layers, nobody may take them for unused.
    lock = state.rootfs / f"{named.name}.lock"
    with reporting(f"build {named.name} in {state.path}"), locked_file(lock), locked(state.rootfs, fcntl.LOCK_SH):
        if not rebuild and (stored := _find(state, named.name, digest)):
            return stored
        try:
            layers, origins = _build_layers(state, plan, Meter(report), known_layers(state) if not rebuild else {})
        except SandboxError as error:
            error.add_note(f"while building the rootfs {named.name} of {named.file}")
            raise
        rootfs = Rootfs(named.name, layers, plan.binds, {**BASE_ENV, **plan.env, **named.recipe.env})
        write_manifest(state, rootfs, digest, origins, image=plan.image, imported_from=imported_from)
        return rootfs


def _build_layers(
    state: StateDir, plan: Plan, meter: Meter, known: dict[str, tuple[Layer, LayerOrigin]]
) -> tuple[tuple[Layer, ...], tuple[LayerOrigin, ...]]:
    """Return the layers, top first, and what each was made of. Those that hold or show nothing are left out."""
    made: list[tuple[Layer, LayerOrigin]] = []
    for layer_plan in reversed(plan.layers):
        below = tuple(layer for layer, _ in made)
        layer, origin = known.get(layer_plan.key) or _build_layer(state, layer_plan, below, meter)
        is_top = layer_plan is plan.layers[0]
        # The kernel refuses to mount a layer twice. The upper one does all that the lower one did.
        made = [(other, its_origin) for other, its_origin in made if other != layer]
        if read_manifest(layer).files > 1 or is_opaque(layer.path) or (is_top and not made):
            made.insert(0, (layer, origin))
    made = made[: len(visible_layers([layer for layer, _ in made]))]
    return tuple(layer for layer, _ in made), tuple(origin for _, origin in made)


def _build_layer(state: StateDir, plan: LayerPlan, below: tuple[Layer, ...], meter: Meter) -> tuple[Layer, LayerOrigin]:
    skipped: Counter[str] = Counter()
    layer = store_layer(state, lambda top: plan.fill(Building(top, below, meter, skipped)))
    return layer, LayerOrigin(key=plan.key, skipped=dict(+skipped))


def _find(state: StateDir, name: str, digest: str) -> Rootfs | None:
    """Return a stored rootfs that was built from just this."""
    manifest = read_manifest_of(state, name)
    return load_rootfs(state, manifest) if manifest is not None and manifest.recipe_digest == digest else None


def _find_imported(state: StateDir, name: str) -> Rootfs | None:
    """Return an imported rootfs. Raises RootfsError when its layers are gone."""
    if name in recipe_names() or name.endswith(".toml") or not ROOTFS_NAME.fullmatch(name):
        return None
    manifest = read_manifest_of(state, name)
    if manifest is None or manifest.imported_from is None:
        return None
    rootfs = load_rootfs(state, manifest)
    if rootfs is None:
        file = manifest_file(state, name)
        raise RootfsError(f"its layers are gone; import {manifest.imported_from} again", file)
    return rootfs
