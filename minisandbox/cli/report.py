"""`minisandbox report`: the records of a run as one page, or as one JSON object; and `minisandbox recover`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from minisandbox.cli.options import add_debug_option
from minisandbox.cli.output import print_json, size_text
from minisandbox.errors import HostError

if TYPE_CHECKING:
    from minisandbox.rollout.report import Report

PAGE_NAME = "report.html"

EXAMPLES = """examples:
  minisandbox report run/                     write run/report.html, which needs nothing else to be looked at
  minisandbox report run/ --out page.html
  minisandbox report run/ --json              the same numbers for programs

It may be made while the run goes on."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "report",
        help="make a page of what came of a rollout",
        description="Make one page of HTML of a run's records: rewards, outcomes, times, and every trajectory.",
        epilog=EXAMPLES,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the records of the run are")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"where the page is written ({PAGE_NAME} in DIR)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, and write no page but to --out")
    add_debug_option(parser)
    parser.set_defaults(serve=serve)


def serve(options: argparse.Namespace) -> int:
    """Make the report; return 0."""
    from minisandbox.rollout.records import open_records
    from minisandbox.rollout.report import make_report
    from minisandbox.rollout.report_page import write_page

    target = options.out or (None if options.json else options.directory / PAGE_NAME)
    with open_records(options.directory) as records:
        if target is None:
            report = make_report(records)
        else:
            try:
                report = write_page(records, target)
            except OSError as error:
                raise HostError(f"cannot write {target}: {error.strerror}") from error
    if options.json:
        print_json({"page": None if target is None else str(target), **msgspec.structs.asdict(report)})
    else:
        assert target is not None
        _tell(report, target)
    return 0


def _tell(report: Report, target: Path) -> None:
    reward = "no rewards" if report.mean_reward is None else f"mean reward {report.mean_reward:.3f}"
    print(f"{report.episodes} episodes, {reward}, {report.masked} masked, {len(report.suspects)} suspicious")
    if report.damaged:
        print(f"{len(report.damaged)} episodes are damaged and are left out: {report.damaged[0]}")
    print(f"the report is {target} ({size_text(target.stat().st_size)})")
