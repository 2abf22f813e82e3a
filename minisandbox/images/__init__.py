"""Root file systems: the state directory, immutable layers, recipes and what is built from them."""

from minisandbox.images.layer import Layer, LayerManifest, find_layer, measure_tree, read_manifest, store_layer, verify
from minisandbox.images.prefix import with_prefix
from minisandbox.images.recipe import recipe_names
from minisandbox.images.rootfs import Rootfs, build_rootfs, list_rootfs
from minisandbox.images.state import InstanceLock, StateDir

__all__ = [
    "InstanceLock",
    "Layer",
    "LayerManifest",
    "Rootfs",
    "StateDir",
    "build_rootfs",
    "find_layer",
    "list_rootfs",
    "measure_tree",
    "read_manifest",
    "recipe_names",
    "store_layer",
    "verify",
    "with_prefix",
]
