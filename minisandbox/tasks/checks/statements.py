"""Checks that read and run nothing: T06, T10, T16, T17."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from minisandbox.judge.assignment import FunctionWork, StdioWork
from minisandbox.judge.kind import kind_of
from minisandbox.judge.spec import Manifest
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.case import Case, Report, report
from minisandbox.tasks.mutants import docstrings
from minisandbox.tasks.task import Files

_PROGRESS = re.compile(r"\b\d{1,3}%|[\x00-\x1f]|it/s|\.{3}$|^(?:PASSED|FAILED|ERROR)\b")
_FETCHING = re.compile(
    r"\b(?:apt|apt-get|dnf|yum|apk) +(?:-\S+ +)*(?:install|update)\b"
    r"|\b(?:pip3?|uv|npm|cargo|gem|go) +(?:pip +)?(?:install|add|get)\b"
    r"|\b(?:curl|wget|git +clone|ssh|sudo|su +-)\b"
)
LEAST_TOKENS = 8
"""A line of the solution that is shorter may well stand in an instruction."""


async def ids_are_whole(case: Case) -> Report:
    """T06."""
    plan = kind_of(case.task.assignment).plan(case.task.assignment, Manifest(), b"")
    bad = [f"{name!r} is there {number} times" for name, number in Counter(plan.expected).items() if number > 1]
    for name in plan.expected:
        if _PROGRESS.search(name) or not name.strip():
            bad.append(f"{name!r} looks like what a program prints")
        if name.count("[") != name.count("]"):
            bad.append(f"{name!r} was cut off")
    return report(bad, [f"{len(plan.expected)} ids"])


async def nothing_unnamed(case: Case) -> Report:
    """T10: what the tests call or run must be in the instruction."""
    work, text = case.task.assignment.work, case.task.instruction
    wanted: set[str] = set()
    if isinstance(work, FunctionWork):
        wanted = {work.module.rpartition(".")[2], *(call.function for call in work.calls)}
    elif isinstance(work, StdioWork):
        wanted = {work.source}
    else:
        declared = case.task.assignment.declared
        wanted = {path for path in declared.paths if path != "."}
    missing = sorted(name for name in wanted if name not in text)
    return report([f"the instruction does not name {name}" for name in missing], otherwise=Status.WARNED)


async def nothing_told(case: Case) -> Report:
    """T16."""
    told = " ".join(case.task.instruction.split())
    lines = {line for line in new_lines(await case.gold_files(), case.task.files) if len(_tokens(line)) >= LEAST_TOKENS}
    return report([f"the instruction has: {line}" for line in sorted(lines) if line in told], otherwise=Status.WARNED)


async def nothing_fetched(case: Case) -> Report:
    """T17: of what the judge runs. Cells have no network, so that what fetches would only fail."""
    bad = []
    for name, content in _judged_files(case):
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
            if found := _FETCHING.search(line.split("#")[0]):
                bad.append(f"{name}:{number}: {found[0]}")
    return report(bad)


def _judged_files(case: Case) -> Iterator[tuple[str, bytes]]:
    """Yield the scripts that the judge runs, for kinds that have some."""
    files = getattr(case.task.assignment.work, "files", {})
    for name, file in files.items() if isinstance(files, dict) else ():
        content = getattr(file, "content", file)
        if isinstance(content, bytes) and (name.endswith(".sh") or content.startswith(b"#!")):
            yield name, content


def new_lines(files: Files, before: Files) -> Iterator[str]:
    """Yield the lines of files that were not in them before, white space made single.

    Of Python neither docstrings nor what only names things: an instruction may well have these.
    """
    for path, file in files.items():
        old = before[path].content.decode(errors="replace").splitlines() if path in before else []
        known = {" ".join(line.split()) for line in old}
        text = file.content.decode(errors="replace")
        for line in _code_lines(text) if path.endswith(".py") else text.splitlines():
            if (words := " ".join(line.split())) and words not in known:
                yield words


def _code_lines(text: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        yield from text.splitlines()
        return
    told = {number for node in docstrings(tree) for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    for number, line in enumerate(text.splitlines(), 1):
        if number not in told and not line.lstrip().startswith(("def ", "class ", "import ", "from ", "#")):
            yield line


def _tokens(line: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", line)
