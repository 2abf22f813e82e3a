"""What every benchmark's command line has in common: its options, how it ends, and its bar of progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import trio
from rich.console import Console
from rich.progress import track

import minisandbox
from bench.tools import BenchError
from minisandbox.errors import leaves_of

R = TypeVar("R", bound=msgspec.Struct)


def parser_of(description: str | None, examples: str, quick: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all; `quick` says what --quick does."""
    parser = argparse.ArgumentParser(
        description=description, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a PNG")
    return parser


def run_benchmark(
    options: argparse.Namespace,
    measure: Callable[[], Awaitable[R]],
    show: Callable[[Console, R], None],
    draw: Callable[[R, Path], None],
) -> int:
    """Measure, print, write what was asked for, and return the exit code."""
    report = None
    try:
        report = trio.run(measure)
    except* (minisandbox.SandboxError, BenchError) as failed:
        print(f"bench: {leaves_of(failed)[0]}", file=sys.stderr)
    if report is None:
        return 1
    show(console(), report)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(report))
    if options.plot:
        draw(report, options.plot)
    return 0


def console() -> Console:
    """Return where reports go: as wide as the terminal, and wide enough for all columns elsewhere."""
    return Console(width=None if sys.stdout.isatty() else 140)


def with_bar(steps: Sequence[int], text: str) -> Iterable[int]:
    """Return the steps with a progress bar on a terminal, and with nothing elsewhere."""
    return track(steps, text, transient=True, disable=not sys.stdout.isatty())
