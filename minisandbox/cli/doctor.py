"""`minisandbox doctor`: what this host gives, what is missing and how to get it, found by really doing it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from minisandbox.cli.options import add_common_options, add_degrade_option, state_dir
from minisandbox.cli.output import console_of, print_json
from minisandbox.cli.signals import run_until_signal

if TYPE_CHECKING:
    from rich.console import Console

    from minisandbox.kernel.capacity import Ceiling
    from minisandbox.runtime.doctor import Diagnosis

EXAMPLES = """examples:
  sudo minisandbox doctor
  minisandbox doctor --degrade single-id
  minisandbox doctor --json

exit codes: 0 when the default policy can be enforced on this host, 1 when something that it needs is missing."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "doctor",
        help="say whether this host can run sandboxes, and what it lacks",
        description="Look at this host, run a sandbox on it, and say what it gives, what is missing and how to get it.",
        epilog=EXAMPLES,
    )
    add_degrade_option(parser)
    add_common_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(serve=serve)


def serve(options: argparse.Namespace) -> int:
    """Print the diagnosis; return 0 when the default policy can be enforced, else 1."""
    with contextlib.ExitStack() as stack:
        if sys.stderr.isatty():
            stack.enter_context(console_of("stderr").status("trying a sandbox on this host"))
        diagnosis = run_until_signal(partial(_diagnose, state_dir(options), tuple(options.degrade)))
    if options.json:
        print_json(
            {
                "enforceable": diagnosis.enforceable,
                "findings": diagnosis.findings,
                "timing": diagnosis.timing,
                "degraded": diagnosis.degraded,
                "capacity": [
                    {**msgspec.structs.asdict(ceiling), "allows": ceiling.allows} for ceiling in diagnosis.capacity
                ],
            }
        )
    else:
        _print(diagnosis)
    return 0 if diagnosis.enforceable else 1


async def _diagnose(place: Path | None, degrade: tuple[str, ...]) -> Diagnosis:
    from minisandbox.runtime.doctor import diagnose

    return await diagnose(place, degrade)


SHOWN = 6
"""So many limits are printed, those that come first; --json has all."""

MARKS = {True: ("ok", "green"), False: ("no", "bold red"), None: ("--", "yellow")}


def _print(diagnosis: Diagnosis) -> None:
    from rich.text import Text

    console = console_of("stdout")
    width = max(len(finding.name) for finding in diagnosis.findings)
    for finding in diagnosis.findings:
        mark, colour = MARKS[finding.ok]
        line = Text.assemble((mark, colour), f"  {finding.name:<{width}}  {finding.detail}")
        if finding.advice:
            line.append(f"\n    {'':<{width}}-> {finding.advice}", style=colour)
        console.print(line, soft_wrap=True)
    _print_capacity(console, diagnosis.capacity)
    missing = [finding.name for finding in diagnosis.findings if finding.ok is False]
    if missing:
        verdict = f"The default policy cannot be enforced on this host. Missing: {', '.join(missing)}."
        console.print(f"\n{verdict}", style="bold red", soft_wrap=True)
    elif diagnosis.degraded:
        verdict = f"The default policy can be enforced on this host, but for: {', '.join(diagnosis.degraded)}."
        console.print(f"\n{verdict}", style="yellow", soft_wrap=True)
    else:
        console.print("\nThe default policy can be enforced on this host.", style="bold green")


def _print_capacity(console: Console, capacity: Sequence[Ceiling]) -> None:
    """Print how many sandboxes each limit allows, as far as it matters."""
    from rich import box
    from rich.table import Table

    table = Table(title="how many sandboxes this host can hold more", title_justify="left", box=box.SIMPLE)
    for heading in ("limit", "of", "used", "each", "allows"):
        table.add_column(heading, justify="left" if heading == "limit" else "right")
    table.add_column("how to raise it")
    for ceiling in capacity[:SHOWN]:
        numbers = (ceiling.limit, ceiling.used, ceiling.each, ceiling.allows)
        table.add_row(ceiling.name, *(f"{number:,}" for number in numbers), ceiling.advice)
    console.print(table)
