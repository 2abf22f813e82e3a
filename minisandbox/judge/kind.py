"""What a kind of task is to the judge: how it is planned, and how one of its cells is run.

A kind is a module in `minisandbox.judge.kinds` with these four names, and a struct in `assignment`. It opens sandboxes
through its `Bench` alone, and says what it saw in a `CellRecord`; what that is worth is decided elsewhere.
"""

from __future__ import annotations

from typing import Protocol

from minisandbox.judge.assignment import (
    Assignment,
    FunctionWork,
    PerformanceWork,
    ScriptWork,
    StateWork,
    StdioWork,
    SuiteWork,
    Work,
)
from minisandbox.judge.bench import Bench
from minisandbox.judge.integrity import Cap
from minisandbox.judge.kinds import function, performance, script, state, stdio, suite
from minisandbox.judge.spec import Cell, CellRecord, Integrity, Manifest, Plan


class Kind(Protocol):
    """The interface of a kind."""

    CEILING: Integrity
    """The most that its verdicts can be worth."""

    def plan(self, assignment: Assignment, manifest: Manifest, seed: bytes) -> Plan:
        """Return the cells of a judgement. Pure: the same for the same arguments. Raises UsageError without tests."""
        ...

    def caps(self, assignment: Assignment) -> tuple[Cap, ...]:
        """Return what lowers the integrity of every verdict on this task. Pure."""
        ...

    async def run_cell(self, cell: Cell, bench: Bench) -> CellRecord:
        """Run one cell in sandboxes of its own. Raises SandboxError when we failed; it is then tried again."""
        ...


KINDS: dict[type[Work], Kind] = {
    StdioWork: stdio,
    FunctionWork: function,
    SuiteWork: suite,
    ScriptWork: script,
    StateWork: state,
    PerformanceWork: performance,
}


def kind_of(assignment: Assignment) -> Kind:
    """Return the kind of a task."""
    return KINDS[type(assignment.work)]
