"""Writes a task as a directory in the Harbor form, which the reader reads back as the same task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from minisandbox.errors import TaskError, UsageError
from minisandbox.judge.assignment import (
    Declared,
    Environment,
    External,
    FunctionWork,
    Interactive,
    StdioWork,
    SuiteWork,
    TaskFile,
)
from minisandbox.judge.decide import Scoring
from minisandbox.judge.spec import Budget, Integrity
from minisandbox.tasks.calls import write_calls
from minisandbox.tasks.directory import FILE_NAME, INSTRUCTION
from minisandbox.tasks.task import File, Files, Task

CALLS = "tests/calls.jsonl"


def write_task(task: Task, directory: Path) -> None:
    """Write a task into a new directory. Raises TaskError when it is there, UsageError for a kind that has no form."""
    files: Files = {FILE_NAME: _text(_toml(task)), INSTRUCTION: _text(task.instruction)}
    files |= _tests(task)
    places = {"environment/files": task.files, "solution": task.solution}
    places |= {f"accepted/{name}": each for name, each in task.accepted.items()}
    places |= {f"rejected/{name}": each for name, each in task.rejected.items()}
    files |= {f"{place}/{path}": file for place, tree in places.items() for path, file in tree.items()}
    try:
        directory.mkdir(parents=True)
        for path, file in files.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
            target.chmod(0o755 if file.executable else 0o644)
    except OSError as error:
        raise TaskError(f"cannot be written: {error.strerror}", directory) from error


def _text(text: str) -> File:
    return File(content=text.encode())


def _tests(task: Task) -> Files:
    work = task.assignment.work
    if isinstance(work, FunctionWork):
        return {CALLS: File(content=write_calls(work.calls))}
    if isinstance(work, SuiteWork):
        return {**_at("tests", work.files), **_at("base", work.base)}
    if not isinstance(work, StdioWork):
        raise UsageError("only tasks of the kinds stdio, function and pytest can be written")
    files: Files = {}
    for test in work.cases:
        files[f"tests/{test.id}.in"] = File(content=test.input)
        files[f"tests/{test.id}.ans"] = File(content=test.answer)
        files |= {f"tests/{test.id}.files/{path}": File(content=content) for path, content in test.files.items()}
    return files


def _at(place: str, files: Iterable[TaskFile]) -> Files:
    return {f"{place}/{file.path}": File(content=file.content, executable=file.executable) for file in files}


def _toml(task: Task) -> str:
    assignment = task.assignment
    own: dict[str, Any] = {"format": 1, **_kind(task)}
    defaults = {
        "artifacts": (assignment.declared, Declared()),
        "environment": (assignment.environment, Environment()),
        "budget": (assignment.budget, Budget()),
        "scoring": (assignment.scoring, Scoring.ALL),
        "integrity": (assignment.integrity, Integrity.L4),
        "visible": (assignment.visible, ()),
    }
    own |= {name: msgspec.to_builtins(value) for name, (value, default) in defaults.items() if value != default}
    if task.agent.warm is not None:
        own["warm"] = task.agent.warm
    tables: dict[str, Any] = {"version": "1.0", "task": {"name": task.name}}
    if task.metadata:
        tables["metadata"] = task.metadata
    if task.agent.timeout_s is not None:
        tables["agent"] = {"timeout_sec": task.agent.timeout_s}
    if task.agent.memory_bytes is not None:
        tables["environment"] = {"memory_mb": task.agent.memory_bytes >> 20}
    return "\n".join(_lines({**tables, "minisandbox": own})) + "\n"


def _kind(task: Task) -> dict[str, Any]:
    work = task.assignment.work
    if isinstance(work, FunctionWork):
        function: dict[str, Any] = {"module": work.module}
        if work.tolerance is not None:
            function["tolerance"] = work.tolerance
        return {"calls": CALLS, "function": function}
    if isinstance(work, StdioWork) and not isinstance(work.checker, External | Interactive):
        return {
            "stdio": {"language": work.language, "source": work.source, "checker": msgspec.to_builtins(work.checker)}
        }
    if isinstance(work, SuiteWork):
        said = {name: value for name, value in msgspec.structs.asdict(work).items() if name not in ("files", "base")}
        defaults = msgspec.structs.asdict(SuiteWork(fail_to_pass=(), files=()))
        suite = {name: list(value) if isinstance(value, tuple) else value
                 for name, value in said.items() if value != defaults[name]}  # fmt: skip
        return {"pytest": {"files": "tests", **suite, **({"base": "base"} if work.base else {})}}
    raise UsageError(
        "only tasks of the kinds stdio, function and pytest, without programs of their own, can be written"
    )


def _lines(table: dict[str, Any], name: str = "") -> Iterator[str]:
    """Yield a table as TOML: its values first, then its tables."""
    if name:
        yield f"\n[{name}]"
    for key, value in table.items():
        if value is not None and not isinstance(value, dict):
            yield f"{_key(key)} = {json.dumps(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _lines(value, f"{name}.{_key(key)}" if name else _key(key))


def _key(key: str) -> str:
    plain = key and all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in key)
    return key if plain else json.dumps(key)
