"""Root file systems: the state directory, immutable layers, recipes, imports and what is made of them."""

from minisandbox.images.compare import Change
from minisandbox.images.garbage import Removed, gc, hold_layer, remove_rootfs
from minisandbox.images.image import LayerFacts, RootfsFacts, import_image, inspect_rootfs
from minisandbox.images.layer import Layer, LayerManifest, find_layer, measure_tree, read_manifest, store_layer, verify
from minisandbox.images.manifest import Rootfs, list_rootfs
from minisandbox.images.prefix import with_prefix
from minisandbox.images.progress import Progress
from minisandbox.images.recipe import recipe_names
from minisandbox.images.rootfs import build_rootfs
from minisandbox.images.snapshot_digest import digest_snapshot, digest_tree
from minisandbox.images.snapshot_export import export_snapshot
from minisandbox.images.snapshot_import import import_snapshot
from minisandbox.images.snapshot_manifest import StoredSnapshot
from minisandbox.images.snapshot_record import ContentCache
from minisandbox.images.snapshot_store import Difference, SnapshotStore
from minisandbox.images.snapshot_verify import verify_snapshot
from minisandbox.images.state import InstanceLock, StateDir
from minisandbox.images.stream import Bounds

__all__ = [
    "Bounds",
    "Change",
    "ContentCache",
    "Difference",
    "InstanceLock",
    "Layer",
    "LayerFacts",
    "LayerManifest",
    "Progress",
    "Removed",
    "Rootfs",
    "RootfsFacts",
    "SnapshotStore",
    "StateDir",
    "StoredSnapshot",
    "build_rootfs",
    "digest_snapshot",
    "digest_tree",
    "export_snapshot",
    "find_layer",
    "gc",
    "hold_layer",
    "import_image",
    "import_snapshot",
    "inspect_rootfs",
    "list_rootfs",
    "measure_tree",
    "read_manifest",
    "recipe_names",
    "remove_rootfs",
    "store_layer",
    "verify",
    "verify_snapshot",
    "with_prefix",
]
