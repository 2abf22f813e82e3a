"""`minisandbox rootfs import|inspect|remove|gc`: root file systems that come from elsewhere, and what they take up."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minisandbox.cli.options import add_common_options, state_dir
from minisandbox.cli.output import console_of, print_json, size_text
from minisandbox.cli.progress import drawing
from minisandbox.cli.signals import raising_signals
from minisandbox.errors import UsageError
from minisandbox.images import (
    Bounds,
    RootfsFacts,
    StateDir,
    gc,
    import_image,
    inspect_rootfs,
    remove_rootfs,
)
from minisandbox.policy import parse_size

EXAMPLES = """examples:
  docker save python:3.12 > python.tar
  minisandbox rootfs import python.tar python312
  minisandbox rootfs import --reference v2 ./oci-layout tools
  minisandbox rootfs inspect python312
  minisandbox rootfs remove python312 && minisandbox rootfs gc
  minisandbox run --rootfs python312 -- python3 -V"""


def add_actions(actions: Any) -> None:
    """Add the four to the actions of `minisandbox rootfs`."""
    parser = actions.add_parser(
        "import",
        help="make one of an image, a tar archive or a directory",
        description="Make a root file system of an OCI image layout, an archive of `docker save`, a tar archive or a "
        "directory, compressed or not, and store it under a name.",
        epilog=EXAMPLES,
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="the archive or directory")
    parser.add_argument("rootfs", metavar="NAME", help="what it will be called")
    parser.add_argument("--reference", metavar="TAG", help="tag or digest of the image, where there are several")
    parser.add_argument("--max-bytes", type=_size, metavar="SIZE", help="refuse a layer that unpacks to more (64G)")
    parser.add_argument("--max-files", type=int, metavar="N", help="refuse a layer of more files (4000000)")
    parser.add_argument("--rebuild", action="store_true", help="also when the same was imported before")
    _finish(parser, serve_import)
    parser = actions.add_parser("inspect", help="show layers, sizes and environment of one", epilog=EXAMPLES)
    parser.add_argument("rootfs", metavar="NAME", help="the name of one that was built or imported")
    _finish(parser, serve_inspect)
    parser = actions.add_parser("remove", help="forget one; gc then frees its room", epilog=EXAMPLES)
    parser.add_argument("rootfs", nargs="+", metavar="NAME", help="the names of some that were built or imported")
    _finish(parser, serve_remove)
    parser = actions.add_parser("gc", help="remove the layers that nothing uses", epilog=EXAMPLES)
    _finish(parser, serve_gc)


def _finish(parser: argparse.ArgumentParser, serve: Callable[[argparse.Namespace], int]) -> None:
    add_common_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(serve=serve)


def _size(text: str) -> int:
    try:
        return parse_size(text.upper())
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def serve_import(options: argparse.Namespace) -> int:
    """Import one and print its digest."""
    begun = time.monotonic()
    given = {"max_bytes": options.max_bytes, "max_files": options.max_files}
    bounds = Bounds(**{name: value for name, value in given.items() if value is not None})
    state = StateDir.open(state_dir(options))
    with raising_signals(), drawing() as draw:
        import_image(
            state,
            options.path,
            options.rootfs,
            reference=options.reference,
            bounds=bounds,
            rebuild=options.rebuild,
            report=draw,
        )
    facts = inspect_rootfs(state, options.rootfs)
    seconds = time.monotonic() - begun
    if options.json:
        print_json({**_fields(facts), "wall_time_s": seconds})
        return 0
    what = f"{len(facts.layers)} layers, {size_text(facts.content_bytes)}"
    print(f"{facts.name}: {facts.digest} in {seconds:.2f} s; {what}{_skipped_text(facts)}")
    return 0


def serve_inspect(options: argparse.Namespace) -> int:
    """Print what there is to know of one."""
    facts = inspect_rootfs(StateDir.open(state_dir(options)), options.rootfs)
    if options.json:
        print_json(_fields(facts))
        return 0
    origin = facts.imported_from or "a recipe"
    print(f"{facts.name}: {facts.digest}\nmade of {origin}{_skipped_text(facts)}")
    print(f"{size_text(facts.content_bytes)} in layers, {size_text(facts.shared_bytes)} of it shared")
    if facts.image is not None:
        print(
            f"image {facts.image.reference or ''} {facts.image.digest}, {facts.image.architecture}".replace("  ", " ")
        )
    for bind in facts.binds:
        print(f"shows {bind.source} of the host at {bind.target}")
    for name, value in sorted(facts.env.items()):
        print(f"{name}={value}")
    _print_layers(facts)
    return 0


def serve_remove(options: argparse.Namespace) -> int:
    """Forget each of the names, up to the first that is not there."""
    state = StateDir.open(state_dir(options))
    for name in options.rootfs:
        remove_rootfs(state, name)
    if options.json:
        print_json({"removed": options.rootfs})
    return 0


def serve_gc(options: argparse.Namespace) -> int:
    """Remove unused layers and print how much that was."""
    removed = gc(StateDir.open(state_dir(options)))
    freed_bytes = sum(layer.content_bytes or 0 for layer in removed)
    if options.json:
        print_json({"removed": removed, "freed_bytes": freed_bytes})
    else:
        print(f"removed {len(removed)} layers, {size_text(freed_bytes)}")
    return 0


def _fields(facts: RootfsFacts) -> dict[str, Any]:
    return {
        "name": facts.name,
        "digest": facts.digest,
        "imported_from": facts.imported_from,
        "layers": facts.layers,
        "binds": facts.binds,
        "env": facts.env,
        "image": facts.image,
        "content_bytes": facts.content_bytes,
        "shared_bytes": facts.shared_bytes,
        "skipped": facts.skipped,
    }


def _skipped_text(facts: RootfsFacts) -> str:
    counts = ", ".join(f"{count} of {what}" for what, count in sorted(facts.skipped.items()))
    return f"; left out: {counts}" if counts else ""


def _print_layers(facts: RootfsFacts) -> None:
    from rich.table import Table

    table = Table("layer, top first", "files", "size", "shared with", box=None)
    for layer in facts.layers:
        table.add_row(
            layer.digest[:19], str(layer.files), size_text(layer.content_bytes), ", ".join(layer.shared_with) or "-"
        )
    console_of("stdout").print(table)
