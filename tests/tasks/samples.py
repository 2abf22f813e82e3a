"""Small tasks that are right, of which tests make ones that are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from minisandbox.judge.assignment import Assignment, FunctionWork, StdioWork, TestCase, call
from minisandbox.judge.checkers import Exact
from minisandbox.judge.spec import Budget
from minisandbox.tasks.task import File, Files, Task

BUDGET = Budget(cpu_time_s=5.0, idle_s=5.0, memory_bytes=256 << 20)
DEADLINE_S = 120.0


def files(**named: str) -> Files:
    """Return files whose names have "_dot_" for a point."""
    return {name.replace("_dot_", "."): File(content=text.encode()) for name, text in named.items()}


def function_task(solution: str = "def double(x):\n    return x + x\n", **changed: object) -> Task:
    """Return a task of a function."""
    calls = (call("small", "double", 3, expected=6), call("list", "double", [1], expected=[1, 1]))
    fields: dict[str, object] = {
        "name": "double",
        "instruction": "Write solution.py with a function double(x) that returns twice what it gets.",
        "assignment": Assignment(name="double", work=FunctionWork(module="solution", calls=calls), budget=BUDGET),
        "solution": files(solution_dot_py=solution),
    }
    return Task(**{**fields, **changed})  # type: ignore[arg-type]


def program_task(
    answers: Mapping[str, tuple[bytes, bytes]], solution: str = "cat | tr a-z A-Z\n", **changed: object
) -> Task:
    """Return a task of a shell script, by inputs and answers."""
    cases = tuple(TestCase(id=name, input=given, answer=answer) for name, (given, answer) in answers.items())
    work = StdioWork(language="shell", source="main.sh", cases=cases, checker=Exact())
    fields: dict[str, object] = {
        "name": "upper",
        "instruction": "Write main.sh that prints its input in upper case.",
        "assignment": Assignment(name="upper", work=work, budget=BUDGET),
        "solution": files(main_dot_sh=solution),
    }
    return Task(**{**fields, **changed})  # type: ignore[arg-type]


def write(folder: Path, **named: str) -> Path:
    """Write files whose names have "_dot_" for a point and "__" for a slash."""
    for name, text in named.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


TASK_TOML = """version = "1.0"
[metadata]
difficulty = "easy"
[minisandbox]
calls = "tests/calls.jsonl"
[minisandbox.function]
module = "solution"
"""
CALLS = """{"id": "small", "function": "double", "args": "(3,)", "expected": "6"}
{"id": "list", "function": "double", "args": "([1],)", "expected": "[1, 1]"}
"""


def write_function_task(folder: Path, **changed: str) -> Path:
    """Write a task of a function as a directory."""
    named = {
        "task_dot_toml": TASK_TOML,
        "instruction_dot_md": "Write solution.py with double(x).\n",
        "tests__calls_dot_jsonl": CALLS,
        "solution__solution_dot_py": "def double(x):\n    return x + x\n",
    }
    return write(folder, **{**named, **changed})
