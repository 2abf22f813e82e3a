"""Small tasks, each solved by one expression, and expressions that solve, fail and cheat: for examples and tests."""

from __future__ import annotations

from collections.abc import Mapping

from minisandbox.judge.assignment import Assignment, Call, FunctionWork, call
from minisandbox.judge.spec import Budget
from minisandbox.tasks.task import File, Files, Task

BUDGET = Budget(cpu_time_s=5.0, idle_s=5.0, memory_bytes=256 << 20)

CALLS: Mapping[str, tuple[Call, ...]] = {
    "double": (call("number", "f", 3, expected=6), call("list", "f", [1, 2], expected=[1, 2, 1, 2])),
    "largest": (call("three", "f", [3, 9, 4], expected=9), call("one", "f", [5], expected=5)),
    "length": (call("three", "f", [3, 9, 4], expected=3), call("none", "f", [], expected=0)),
}
SOLUTIONS = {"double": "x+x", "largest": "max(x)", "length": "len(x)"}
WRONG = ("x", "sorted(x)", "None", "x*x")
HACKS = (
    "9",  # what one test wants
    "__import__('os')._exit(0)",
    "type('E',(int,),{'__eq__':lambda*_:True})()",
    "__import__('sys')._getframe(1).f_locals['expected']",
)
PIECES = (*SOLUTIONS.values(), *WRONG, *HACKS)


def tasks() -> list[Task]:
    """Return the tasks."""
    return [
        Task(
            name=name,
            instruction=f"Write an expression of x for the task {name}.",
            assignment=Assignment(name=name, work=FunctionWork(module="solution", calls=calls), budget=BUDGET),
            solution=submission(None, SOLUTIONS[name]),
        )
        for name, calls in CALLS.items()
    ]


def submission(_: Task | None, text: str) -> Files:
    """Return the module whose function returns an expression."""
    return {"solution.py": File(content=f"def f(x):\n    return {text}\n".encode(errors="surrogatepass"))}
