"""Mirrors: a task's test files changed so that no test that passed honestly can pass again. Pure.

One assertion of each test is changed, in place, so that names, ids and lines stay. It is one that is reached whenever
the test passes: a statement of the test's own body, in no branch. A test without such a one has no mirror. What it
then catches is whoever makes tests pass without looking (patched runners, objects equal to everything), and by changed
literals whoever looks what is expected. A forger that can tell a mirror from the test is not caught.
"""

from __future__ import annotations

import ast
import enum
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

Choose = Callable[[str, int], int]
"""From the name of a test and a number of assertions to the one that is changed."""

INVERSES = {
    "assertEqual": "assertNotEqual",
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertAlmostEqual": "assertNotAlmostEqual",
    "assertGreater": "assertLessEqual",
    "assertLess": "assertGreaterEqual",
    "assertRegex": "assertNotRegex",
}
INVERSES |= {other: name for name, other in INVERSES.items()}
EQUALITIES = ("assertEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual")

SENTINEL = "object()"
STRANGER = "type('Stranger', (Exception,), {})"
"""An exception that nothing raises."""


class Way(enum.Enum):
    """How assertions are changed."""

    SENTINEL = "sentinel"
    """What is expected becomes an object that equals nothing else."""
    LITERAL = "literal"
    """A literal that is expected becomes another one of its kind."""


class Mirror(NamedTuple):
    """A changed file."""

    source: str
    names: frozenset[str]
    """The tests that were changed, as `test_a` or `TestB::test_c`; no other may be expected to fail."""


class _Edit(NamedTuple):
    node: ast.expr
    text: str
    weight: int
    """The edits of the highest weight are those that catch most."""


class _Text:
    """A source, in which nodes are found by their offsets: what `ast.get_source_segment` does, without its reading all
    of the source for each node."""

    def __init__(self, source: str) -> None:
        self.content = source.encode()
        self._starts = [0, *itertools.accumulate(len(line) for line in self.content.splitlines(keepends=True))]

    def span(self, node: ast.expr) -> tuple[int, int]:
        """Return where a node begins and ends, in bytes."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def segment(self, node: ast.expr) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.content[start:end].decode()


def mirror(source: str, way: Way, choose: Choose) -> Mirror:
    """Return the mirror of a test file. One that is no Python, or has no such tests, is its own, with no names."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Mirror(source, frozenset())
    edits: list[_Edit] = []
    names = set()
    text = _Text(source)
    for name, function in _tests(tree):
        found = [edit for statement in _certain(function.body) for edit in _edits(statement, text, way)]
        best = [edit for edit in found if edit.weight == max(each.weight for each in found)]
        if best:
            edits.append(best[choose(name, len(best))])
            names.add(name)
    return Mirror(_apply(text, edits), frozenset(names))


def _tests(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}::{member.name}", member


def _certain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that are reached whenever the test passes."""
    for statement in body:
        if any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in ast.walk(statement)):
            return
        yield statement


def _edits(statement: ast.stmt, source: _Text, way: Way) -> Iterator[_Edit]:
    if isinstance(statement, ast.Assert):
        yield from _of_assert(statement.test, source, way)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from _of_call(statement.value, source, way)
    elif isinstance(statement, ast.With | ast.AsyncWith) and len(statement.items) == 1:
        call = statement.items[0].context_expr
        if (
            isinstance(call, ast.Call)
            and call.args
            and _method(call) in ("raises", "assertRaises", "assertRaisesRegex")
        ):
            yield _Edit(call.args[0], STRANGER, 1)


def _of_assert(test: ast.expr, source: _Text, way: Way) -> Iterator[_Edit]:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        edit = _expected(test.left, test.comparators[0], source, way)
        if edit is not None:
            yield edit
            return
    yield _Edit(test, f"not ({source.segment(test)})", 1)


def _of_call(call: ast.Call, source: _Text, way: Way) -> Iterator[_Edit]:
    method = _method(call)
    if method in EQUALITIES and len(call.args) >= 2:
        edit = _expected(call.args[0], call.args[1], source, way)
        if edit is not None:
            yield edit
            return
    if method in INVERSES and isinstance(call.func, ast.Attribute):
        yield _Edit(call.func, f"{source.segment(call.func.value)}.{INVERSES[method]}", 1)


def _method(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _expected(left: ast.expr, right: ast.expr, source: _Text, way: Way) -> _Edit | None:
    """Return the change of the expected side: the one that is plain data, else the right one."""
    side = left if _is_plain(left) and not _is_plain(right) else right
    if way is Way.SENTINEL:
        return _Edit(side, SENTINEL, 2)
    constant = next((node for node in ast.walk(side) if isinstance(node, ast.Constant)), None)
    if constant is None or not _is_plain(side):
        return None
    return _Edit(constant, repr(_other(constant.value)), 2)


def _is_plain(node: ast.expr) -> bool:
    """Return whether an expression is a literal all through."""
    plain = (ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.unaryop, ast.expr_context)
    return all(isinstance(part, plain) for part in ast.walk(node))


def _other(value: object) -> object:
    """Return another value of the same kind and size class."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | complex):
        return value + 1
    if isinstance(value, str):
        return ("b" if value[:1] == "a" else "a") + value[1:]
    if isinstance(value, bytes):
        return (b"b" if value[:1] == b"a" else b"a") + value[1:]
    return 0


def _apply(text: _Text, edits: list[_Edit]) -> str:
    """Make the edits, the last first. Lines stay: what spanned several still does, in brackets."""
    content = text.content
    for edit in sorted(edits, key=lambda each: (each.node.lineno, each.node.col_offset), reverse=True):
        start, end = text.span(edit.node)
        missing = (edit.node.end_lineno or edit.node.lineno) - edit.node.lineno - edit.text.count("\n")
        put = f"({edit.text}{chr(10) * missing})" if missing or edit.weight == 2 else edit.text
        content = content[:start] + put.encode() + content[end:]
    return content.decode()
