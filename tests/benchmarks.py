"""What the tests of benchmarks share: a run of a moment, and what docs/benchmarks.md has of a measurement."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.report import Goal
from bench.samples import Machine

R = TypeVar("R")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MACHINE = Machine(
    cpu="one", cores=1, memory_bytes=1 << 30, kernel="6.1", python="3.11", load_1min=0.0, measured_at="2026-01-01"
)


def run_quick(name: str, kind: type[R], goals: Iterable[Goal[Any]], folder: Path, *words: str | Path) -> R:
    """Run bench/NAME.py for a moment and return its report; it ends well, tells of each goal, and draws a picture."""
    json, plot = folder / f"{name}.json", folder / f"{name}.png"
    command = [sys.executable, str(ROOT / f"bench/{name}.py"), "--quick", *map(str, words)]
    run = subprocess.run(
        [*command, "--json", str(json), "--plot", str(plot)], capture_output=True, text=True, timeout=300, check=False
    )

    assert (0, "") == (run.returncode, run.stderr)
    assert [] == [goal.text for goal in goals if goal.text not in run.stdout.replace("\n", " ")]
    assert plot.read_bytes().startswith(b"\x89PNG")
    return msgspec.json.decode(json.read_bytes(), type=kind)


def measured(name: str, kind: type[R]) -> tuple[R, str]:
    """Return the report in docs/NAME.json, and the block that the page has of it."""
    page = (DOCS / "benchmarks.md").read_text()
    begin, end = rf"<!-- begin {name}\.json:[^\n]*-->\n", rf"\n*<!-- end {name}\.json -->"
    block = re.search(f"{begin}(.*?){end}", page, re.DOTALL)
    assert block is not None
    return msgspec.json.decode((DOCS / f"{name}.json").read_bytes(), type=kind), block[1]


def to_paste(expected: str) -> str:
    """Say what is to be done where a block is another."""
    return f"paste this into docs/benchmarks.md:\n\n{expected}\n"


def facts_of(machine: Machine) -> str:
    """Return what a page says of where something was measured."""
    return f"{machine}; load {machine.load_1min:.1f} before it began; {machine.measured_at}."


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as a page has it."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
