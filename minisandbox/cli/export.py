"""`minisandbox export`: the episodes of a run as JSON lines or Parquet, for a trainer or a notebook."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from minisandbox.cli.options import add_debug_option
from minisandbox.cli.output import print_json, size_text
from minisandbox.errors import UsageError

EXAMPLES = """examples:
  minisandbox export run/ --out run.jsonl                   one JSON object an episode
  minisandbox export run/ --out - | head -1                 to stdout
  minisandbox export run/ --format parquet --out run.parquet

exit codes: 0 when every episode was exported, 1 when some are damaged and were left out."""

WHOLE, DAMAGED = 0, 1


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "export",
        help="write the episodes of a rollout as JSON lines or Parquet",
        description="Write the episodes of a run, one a row with its turns in it, for a trainer or a notebook.",
        epilog=EXAMPLES,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the records of the run are")
    parser.add_argument("--format", choices=("jsonl", "parquet"), default="jsonl", help="of the file (jsonl)")
    parser.add_argument("--out", metavar="FILE", required=True, help="the file; - is stdout, for jsonl")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_debug_option(parser)
    parser.set_defaults(serve=serve)


def serve(options: argparse.Namespace) -> int:
    """Export, and return whether all was exported."""
    from minisandbox.rollout.export import export_jsonl, export_parquet
    from minisandbox.rollout.records import open_records

    is_stream = options.out == "-"
    if is_stream and (options.format == "parquet" or options.json):
        raise UsageError("--out - is for jsonl, without --json")
    with open_records(options.directory) as records:
        if options.format == "parquet":
            done = export_parquet(records, Path(options.out))
        else:
            done = export_jsonl(records, sys.stdout.buffer if is_stream else Path(options.out))
    for text in done.damaged:
        print(f"minisandbox: left out: {text}", file=sys.stderr)
    if options.json:
        print_json({"file": options.out, "format": options.format, "episodes": done.episodes, "damaged": done.damaged})
    elif not is_stream:
        print(f"{done.episodes} episodes are in {options.out} ({size_text(Path(options.out).stat().st_size)})")
    return DAMAGED if done.damaged else WHOLE
