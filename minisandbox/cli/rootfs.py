"""`minisandbox rootfs`: the root file systems that there are, and building one ahead; images.py has the rest."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

from minisandbox.cli import images
from minisandbox.cli.options import add_common_options, state_dir
from minisandbox.cli.output import console_of, print_json
from minisandbox.cli.signals import raising_signals
from minisandbox.images import Rootfs, StateDir, build_rootfs, list_rootfs, recipe_names
from minisandbox.images.recipe import load_recipe
from minisandbox.images.rootfs import KINDS
from minisandbox.images.state import DEFAULT_PATH

EXAMPLES = """examples:
  minisandbox rootfs list
  minisandbox rootfs build busybox
  minisandbox rootfs build --rebuild host      (mends damaged layers)

A rootfs is built at its first use; building it ahead saves the time then."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "rootfs",
        help="list, build, import and remove root file systems",
        description="List, build, import and remove root file systems.",
        epilog=EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list what is known and what is built", epilog=EXAMPLES)
    listing.set_defaults(serve=serve_list)
    build = actions.add_parser("build", help="build one", epilog=EXAMPLES)
    build.add_argument("recipe", metavar="NAME", help="a name from the list, or the path of a recipe's .toml")
    build.add_argument("--rebuild", action="store_true", help="also when it is there already")
    build.set_defaults(serve=serve_build)
    images.add_actions(actions)
    for action in (listing, build):
        add_common_options(action)
        action.add_argument("--json", action="store_true", help="print one JSON object")


def serve_list(options: argparse.Namespace) -> int:
    """Print the recipes that come with the package and all that is built."""
    place = state_dir(options)
    stored = list_rootfs(StateDir.open(place)) if (place or DEFAULT_PATH).is_dir() else []
    built = {rootfs.name: rootfs for rootfs in stored}
    names = recipe_names()
    rows = [_row(name, built.get(name), name in names) for name in [*names, *(built.keys() - set(names))]]
    if options.json:
        print_json({"rootfs": rows})
        return 0
    from rich.table import Table

    table = Table("rootfs", "built", "description", box=None)
    for row in rows:
        table.add_row(row["name"], row["digest"][:19] if row["built"] else "no", row["description"])
    console_of("stdout").print(table)
    return 0


def serve_build(options: argparse.Namespace) -> int:
    """Build one rootfs and print its digest."""
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(raising_signals())
        if sys.stderr.isatty():
            stack.enter_context(_progress(options.recipe))
        rootfs = build_rootfs(StateDir.open(state_dir(options)), options.recipe, rebuild=options.rebuild)
    seconds = time.monotonic() - begun
    if options.json:
        print_json({**_fields(rootfs), "wall_time_s": seconds})
    else:
        shown = ", ".join(bind.target for bind in rootfs.binds) or "nothing"
        print(f"{rootfs.name}: {rootfs.digest} in {seconds:.2f} s; shows {shown} of the host")
    return 0


def _progress(recipe: str) -> contextlib.AbstractContextManager[Any]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console_of("stderr"),
        transient=True,
    )
    progress.add_task(f"building the rootfs {recipe}", total=None)
    return progress


def _row(name: str, rootfs: Rootfs | None, is_known: bool) -> dict[str, Any]:
    description = load_recipe(name, KINDS).recipe.description if is_known else "imported, or from a recipe of your own"
    fields = {"name": name, "digest": None} if rootfs is None else _fields(rootfs)
    return {**fields, "built": rootfs is not None, "description": description}


def _fields(rootfs: Rootfs) -> dict[str, Any]:
    return {
        "name": rootfs.name,
        "digest": rootfs.digest,
        "layers": [{"digest": layer.digest, "path": str(layer.path)} for layer in rootfs.layers],
        "binds": rootfs.binds,
    }
