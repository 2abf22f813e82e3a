"""`minisandbox top`: what runs in the sandboxes of this host, as a table that is drawn anew, or once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from minisandbox.cli.options import add_common_options, state_dir
from minisandbox.cli.output import console_of, print_json, size_text
from minisandbox.cli.signals import run_until_signal
from minisandbox.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from minisandbox.runtime.status import SupervisorStatus
    from minisandbox.runtime.top import Look, Row

EXAMPLES = """examples:
  sudo minisandbox top                 look until Ctrl-C
  sudo minisandbox top --once          look once
  sudo minisandbox top --once --json   the same for programs

It asks each supervisor over a socket in its state directory, and disturbs none of them. It finds those of the state
directory and those whose launcher it may look at: for root that is all of the host."""

ONCE_S = 0.5
"""Between the two looks of --once: it takes two to tell how busy something is."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "top",
        help="show what runs in all sandboxes of this host",
        description="Show every sandbox of this host: age, memory, CPU, processes, and what its last command did.",
        epilog=EXAMPLES,
    )
    add_common_options(parser)
    parser.add_argument("--once", action="store_true", help="look once and end")
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON object")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (1)")
    parser.set_defaults(serve=serve)


def serve(options: argparse.Namespace) -> int:
    """Show what runs; return 0."""
    if options.json and not options.once:
        raise UsageError("--json needs --once")
    if not 0.1 <= options.interval <= 3600:
        raise UsageError(f"--interval {options.interval:g} is not between 0.1 and 3600 seconds")
    place = state_dir(options)
    if not options.once:
        run_until_signal(partial(_watch, place, options.interval))
    seen = run_until_signal(partial(_look_once, place))
    if options.json:
        print_json(seen)
    else:
        console = console_of("stdout")
        console.print(_drawing(seen, len(seen.rows)))
    return 0


async def _look_once(place: Path | None) -> Look:
    from minisandbox.runtime.top import look

    first = await trio.to_thread.run_sync(look, place, None)
    await trio.sleep(ONCE_S)
    return await trio.to_thread.run_sync(look, place, first)


async def _watch(place: Path | None, interval_s: float) -> None:
    from rich.live import Live

    from minisandbox.runtime.top import look

    console: Console = console_of("stdout")
    seen = await trio.to_thread.run_sync(look, place, None)
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            live.update(_drawing(seen, max(1, console.height - 8)), refresh=True)
            await trio.sleep(interval_s)
            seen = await trio.to_thread.run_sync(look, place, seen)


def _drawing(seen: Look, rows: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    heads = [line for each in seen.supervisors for line in head_lines(each, seen.at)]
    heads += [f"{instance}  does not answer" for instance in seen.silent]
    table = Table(box=None, pad_edge=False)
    for name in ("INSTANCE", "SANDBOX", "AGE", "MEMORY", "LIMIT", "CPU", "PROCESSES", "COMMANDS", "LAST"):
        table.add_column(name, justify="left" if name in ("INSTANCE", "LAST") else "right", no_wrap=True)
    for row in sorted(seen.rows, key=_busy, reverse=True)[:rows]:
        table.add_row(*_cells(row, seen.at))
    if len(seen.rows) > rows:
        heads.append(f"{len(seen.rows)} sandboxes, the {rows} busiest are shown")
    return Group(Text("\n".join(heads) or "no supervisor runs here"), table)


def head_lines(each: SupervisorStatus, now: float) -> Iterator[str]:
    """Yield what stands above the table about one supervisor: counts, and who waits."""
    yield (
        f"{each.instance}  pid {each.pid}  {each.live} live, {each.parked} parked, {each.starting} starting,"
        f" {each.queued} queued of {each.max_sandboxes}, {size_text(each.promised_bytes)} promised"
        + (f", {each.quarantined} slots in quarantine" if each.quarantined else "")
        + ("" if each.serving else ", its launcher is gone")
    )
    for place, waiting in enumerate(each.waiting, 1):
        age = _age_text(now - waiting.since)
        yield f"  {place}. in the queue for {age}, priority {waiting.priority}, waits for {waiting.waits_for}"


def _busy(row: Row) -> tuple[float, int]:
    return row.cpus or 0.0, row.memory_bytes or 0


def _cells(row: Row, now: float) -> list[str]:
    sandbox = row.sandbox
    state = f"{sandbox.running} running" if sandbox.running else sandbox.last or ("parked" if sandbox.parked else "-")
    return [
        row.instance,
        str(sandbox.number),
        _age_text(now - sandbox.opened_at),
        "-" if row.memory_bytes is None else size_text(row.memory_bytes),
        "-" if sandbox.memory_limit_bytes is None else size_text(sandbox.memory_limit_bytes),
        "-" if row.cpus is None else f"{row.cpus:.0%}",
        "-" if row.processes is None else str(row.processes),
        str(sandbox.commands),
        f"{state}, {_age_text(now - sandbox.changed_at)}",
    ]


def _age_text(seconds: float) -> str:
    """Return a time in its largest two units."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
