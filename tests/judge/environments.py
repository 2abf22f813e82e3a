"""Environments that tasks name: the host's programs with the pytest that runs these tests."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from minisandbox.images.manifest import LayerOrigin, Rootfs, write_manifest
from minisandbox.images.prefix import with_prefix
from minisandbox.images.rootfs import build_rootfs
from minisandbox.images.state import StateDir

NAME = "with-pytest"
PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")


def make_environment(state: StateDir, folder: Path) -> str:
    """Store a rootfs with pytest, and return its name."""
    library = folder / "library"
    library.mkdir()
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            pytest.skip(f"the package {name} is not installed")
        if spec.submodule_search_locations is None:
            shutil.copy(spec.origin, library)
        else:
            shutil.copytree(Path(spec.origin).parent, library / name)
    host = build_rootfs(state, "host")
    shown = with_prefix(state, host, library)
    rootfs = Rootfs(NAME, shown.layers, shown.binds, {**shown.env, "PYTHONPATH": str(library)})
    origins = tuple(LayerOrigin(key="test") for _ in rootfs.layers)
    write_manifest(state, rootfs, "sha256:0", origins, imported_from=str(library))
    return NAME
