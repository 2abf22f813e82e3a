"""Environments that tasks name: the host's programs with the pytest that runs these tests, in a layer over them."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from minisandbox.images.layer import store_layer
from minisandbox.images.manifest import LayerOrigin, Rootfs, write_manifest
from minisandbox.images.rootfs import build_rootfs
from minisandbox.images.state import StateDir

NAME = "with-pytest"
LIBRARY = "/opt/library"
PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py", "coverage")


def make_environment(state: StateDir) -> str:
    """Store a rootfs with pytest, whose files an agent can change in its own sandbox, and return its name."""
    host = build_rootfs(state, "host")
    layer = store_layer(state, _fill)
    rootfs = Rootfs(NAME, (layer, *host.layers), host.binds, {**host.env, "PYTHONPATH": LIBRARY})
    origins = tuple(LayerOrigin(key="test") for _ in rootfs.layers)
    write_manifest(state, rootfs, "sha256:0", origins, imported_from=LIBRARY)
    return NAME


def _fill(top: Path) -> None:
    library = top / LIBRARY.lstrip("/")
    library.mkdir(parents=True)
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            pytest.skip(f"the package {name} is not installed")
        if spec.submodule_search_locations is None:
            shutil.copy(spec.origin, library)
        else:
            shutil.copytree(Path(spec.origin).parent, library / name)
    for path in (top / "opt", library, *library.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
