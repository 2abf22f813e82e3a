"""`minisandbox snapshot save|list|diff|verify|export|import|remove`: what sandboxes left, kept to start others from."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minisandbox.cli import snapshot_save
from minisandbox.cli.options import add_common_options, state_dir
from minisandbox.cli.output import console_of, print_bytes, print_json, size_text
from minisandbox.cli.progress import drawing
from minisandbox.cli.signals import raising_signals
from minisandbox.images import (
    Change,
    Difference,
    SnapshotStore,
    StateDir,
    StoredSnapshot,
    export_snapshot,
    import_snapshot,
    read_manifest,
    verify_snapshot,
)
from minisandbox.images.progress import Meter

EXAMPLES = """examples:
  minisandbox snapshot save solved -- sh -c 'mkdir /work && echo 42 > /work/answer'
  minisandbox snapshot list
  minisandbox snapshot diff solved                   what it changed in its rootfs
  minisandbox snapshot diff before after             what lies between two
  minisandbox snapshot verify solved
  minisandbox snapshot export solved solved.tar.gz   and, with another state directory:
  minisandbox snapshot import solved.tar.gz
  minisandbox run --snapshot solved -- ls /work
  minisandbox snapshot remove solved

A snapshot is named by its name, its digest, or the first digits of its digest."""

LETTERS = {Change.ADDED: "A", Change.CHANGED: "M", Change.REMOVED: "D"}


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "snapshot",
        help="save, list, compare, check, move and remove snapshots",
        description="Save, list, compare, check, move and remove snapshots of sandboxes.",
        epilog=EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    snapshot_save.add_action(actions)
    _add(actions, "list", "list those that are stored", serve_list)
    action = _add(actions, "diff", "list the paths that differ: A added, M changed, D removed", serve_diff)
    action.add_argument("snapshot", metavar="A", help="a snapshot")
    action.add_argument("other", metavar="B", nargs="?", help="what A became; without it, A against its rootfs")
    action.add_argument("--exit-code", action="store_true", help="exit with 1 when anything differs")
    action = _add(actions, "verify", "read all of some, or of every one, and say what is damaged", serve_verify)
    action.add_argument("snapshots", metavar="NAME", nargs="*", help="snapshots")
    action = _add(actions, "export", "write one to a file, with all that it needs elsewhere", serve_export)
    action.add_argument("snapshot", metavar="NAME", help="a snapshot")
    action.add_argument("file", metavar="FILE", type=Path, help="the file; .gz or .zst at its end compresses it")
    action = _add(actions, "import", "store one that was exported", serve_import)
    action.add_argument("file", metavar="FILE", type=Path, help="the file")
    action.add_argument("snapshot", metavar="NAME", nargs="?", help="what to call it, instead of its own name")
    action.add_argument("--digest", metavar="SHA256", help="take this snapshot alone")
    action = _add(actions, "remove", "forget some, and free their room", serve_remove)
    action.add_argument("snapshots", metavar="NAME", nargs="+", help="snapshots")


def _add(actions: Any, name: str, text: str, serve: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", epilog=EXAMPLES
    )
    add_common_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(serve=serve)
    return parser


def _store(options: argparse.Namespace) -> SnapshotStore:
    return SnapshotStore(StateDir.open(state_dir(options)))


def serve_list(options: argparse.Namespace) -> int:
    """Print all snapshots."""
    snapshots = _store(options).list_snapshots()
    if options.json:
        print_json({"snapshots": list(map(_fields, snapshots))})
        return 0
    from rich.table import Table

    table = Table("snapshot", "digest", "rootfs", "layers", "size", box=None)
    for snapshot in snapshots:
        row = _fields(snapshot)
        size = size_text(row["content_bytes"])
        table.add_row(snapshot.name, snapshot.digest[:19], snapshot.rootfs.name, str(len(snapshot.layers)), size)
    console_of("stdout").print(table)
    return 0


def serve_diff(options: argparse.Namespace) -> int:
    """Print the paths that differ."""
    store = _store(options)
    first = store.load(options.snapshot)
    with raising_signals():
        before, after = (first.rootfs, first) if options.other is None else (first, store.load(options.other))
        differences = store.diff(before, after)
        count = _print_as_json(differences) if options.json else _print_lines(differences)
    return 1 if options.exit_code and count else 0


def _print_lines(differences: Iterator[Difference]) -> int:
    count = 0
    for difference in differences:
        count += 1
        print_bytes(f"{LETTERS[difference.change]}\t".encode() + _shown(difference) + b"\n")
    return count


def _print_as_json(differences: Iterator[Difference]) -> int:
    found = [
        {
            "path": os.fsdecode(difference.path).encode("utf-8", "backslashreplace").decode(),
            "change": difference.change.value,
            "is_directory": difference.is_directory,
        }
        for difference in differences
    ]
    print_json({"differences": found})
    return len(found)


def _shown(difference: Difference) -> bytes:
    """Return a path as a line: what does not print is escaped, a directory ends with "/"."""
    text = difference.path.decode("utf-8", "backslashreplace")
    shown = "".join(char if char.isprintable() and char != "\\" else repr(char)[1:-1] for char in text)
    return shown.encode() + (b"/" if difference.is_directory else b"")


def serve_verify(options: argparse.Namespace) -> int:
    """Check snapshots. The first that is damaged is an error."""
    store = _store(options)
    snapshots = [store.load(name) for name in options.snapshots] or store.list_snapshots()
    for snapshot in snapshots:
        with raising_signals(), drawing() as draw:
            verify_snapshot(store, snapshot, Meter(draw))
        if not options.json:
            print(f"{snapshot.name}: {snapshot.digest} is whole")
    if options.json:
        print_json({"verified": [{"name": each.name, "digest": each.digest} for each in snapshots]})
    return 0


def serve_export(options: argparse.Namespace) -> int:
    """Write one to a file."""
    begun = time.monotonic()
    store = _store(options)
    snapshot = store.load(options.snapshot)
    with raising_signals(), drawing() as draw:
        export_snapshot(store, snapshot, options.file.absolute(), draw)
    size_bytes = options.file.stat().st_size
    if options.json:
        taken = time.monotonic() - begun
        print_json({**_fields(snapshot), "file": options.file, "file_bytes": size_bytes, "wall_time_s": taken})
    else:
        print(f"{snapshot.name}: {snapshot.digest} in {options.file}, {size_text(size_bytes)}")
    return 0


def serve_import(options: argparse.Namespace) -> int:
    """Store one from a file."""
    begun = time.monotonic()
    with raising_signals(), drawing() as draw:
        file = options.file.absolute()
        snapshot = import_snapshot(_store(options), file, options.snapshot, digest=options.digest, report=draw)
    if options.json:
        print_json({**_fields(snapshot), "wall_time_s": time.monotonic() - begun})
    else:
        print(f"{snapshot.name}: {snapshot.digest}, on the rootfs {snapshot.rootfs.name}")
    return 0


def serve_remove(options: argparse.Namespace) -> int:
    """Forget each of the snapshots, up to the first that is not there."""
    store = _store(options)
    removed = [layer for name in options.snapshots for layer in store.remove(name)]
    freed_bytes = sum(layer.content_bytes or 0 for layer in removed)
    if options.json:
        print_json({"removed": options.snapshots, "layers": removed, "freed_bytes": freed_bytes})
    else:
        print(f"removed {len(options.snapshots)} snapshots and {len(removed)} layers, {size_text(freed_bytes)}")
    return 0


def _fields(snapshot: StoredSnapshot) -> dict[str, Any]:
    manifests = [read_manifest(layer) for layer in snapshot.layers]
    return {
        "name": snapshot.name,
        "digest": snapshot.digest,
        "rootfs": snapshot.rootfs.name,
        "rootfs_digest": snapshot.rootfs.digest,
        "layers": [manifest.digest for manifest in manifests],
        "files": sum(manifest.files for manifest in manifests),
        "content_bytes": sum(manifest.content_bytes for manifest in manifests),
    }
