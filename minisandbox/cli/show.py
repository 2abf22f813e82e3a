"""`minisandbox show`: the episodes of a run, or one of them turn by turn."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from minisandbox.cli.options import add_debug_option
from minisandbox.cli.output import console_of, print_json

EXAMPLES = """examples:
  minisandbox show run/                               the episodes of a run
  minisandbox show run/ sum/oracle/0                  one of them, turn by turn
  minisandbox show run/ sum/oracle/0 --lines 0        with all of every output
  minisandbox show run/ sum/oracle --json             a part of the id will do that no other has

What a terminal would obey in what was printed is shown as an escape: nothing of it moves the cursor."""

LINES = 40


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "show",
        help="show an episode of a rollout turn by turn",
        description="Show the episodes of a run, or replay one: each action, what came of it, and the verdict.",
        epilog=EXAMPLES,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the records of the run are")
    parser.add_argument("episode", metavar="EPISODE", nargs="?", help="its id, or a part of it that no other has")
    parser.add_argument(
        "--lines", type=int, default=LINES, metavar="N", help=f"of each text that are shown ({LINES}; 0 for all)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_debug_option(parser)
    parser.set_defaults(serve=serve)


def serve(options: argparse.Namespace) -> int:
    """Show it; return 0."""
    from minisandbox.cli.episodes_shown import episode_parts, list_parts
    from minisandbox.rollout.export import episode_fields
    from minisandbox.rollout.records import open_records

    console = console_of("stdout")
    with open_records(options.directory) as records:
        if options.episode is None:
            rows = records.rows("SELECT * FROM episodes ORDER BY started + seconds")
            if options.json:
                print_json({"episodes": rows})
            else:
                for part in list_parts(rows, console.width):
                    console.print(part)
            return 0
        key = records.find(options.episode)
        episode, instruction = records.episode(key), records.instructions().get(key.task)
    if options.json:
        print_json(episode_fields(episode, instruction))
    else:
        for part in episode_parts(episode, instruction, options.lines or None):
            console.print(part, soft_wrap=True)
    return 0
