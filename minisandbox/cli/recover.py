"""`minisandbox recover`: make damaged records of a run whole again, without the episodes that are not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from minisandbox.cli.options import add_debug_option
from minisandbox.cli.output import print_json

EXAMPLES = """examples:
  minisandbox recover run/

Every episode whose digest holds is kept; those that are lost are played again when the run goes on. The damaged file
stays beside the new one. Records that are whole are not touched.

exit codes: 0 when nothing was lost, 1 when something was."""

WHOLE, LOST = 0, 1


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "recover",
        help="make damaged records of a rollout whole again",
        description="Keep every episode of damaged records that is whole, and name the others.",
        epilog=EXAMPLES,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the records of the run are")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_debug_option(parser)
    parser.set_defaults(serve=serve)


def serve(options: argparse.Namespace) -> int:
    """Recover, and return whether something was lost."""
    from minisandbox.rollout.recovery import recover_records

    done = recover_records(options.directory)
    if options.json:
        print_json(done)
    elif done.damaged is None:
        print(f"nothing is damaged: {done.kept} episodes are whole")
    else:
        print(f"{done.kept} episodes are kept, {len(done.lost)} are lost; the damaged file is {done.damaged}")
        for name in done.lost:
            print(f"lost: {name}")
    return LOST if done.lost else WHOLE
