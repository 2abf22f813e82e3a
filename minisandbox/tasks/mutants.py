"""Mutants of a solution: each is wrong in one place, or should be. And variants of it that are as right. Pure."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Callable, Iterator
from functools import partial

from minisandbox.tasks.task import File, Files

MOST_MUTANTS = 20

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}


def mutants_of(files: Files, before: Files | None = None) -> dict[str, Files]:
    """Return mutants by what was changed: of Python by its syntax tree, of shell scripts by leaving a line out.

    Of a file that was there `before`, only the functions are changed that the solution changes: the rest is not its.
    """
    made: dict[str, Callable[[], Files]] = {}
    for path, file in files.items():
        text = file.content.decode(errors="replace")
        old = (before or {}).get(path)
        mutants = _of_lines(text) if path.endswith(".sh") else iter(())
        if path.endswith(".py"):
            mutants = _of_python(text, None if old is None else old.content.decode(errors="replace"))
        for what, mutant in mutants:
            made[f"{path}: {what}"] = partial(_replaced, files, path, mutant)
    return {name: make() for name, make in _spread(made).items()}


def _replaced(files: Files, path: str, mutant: Callable[[], str]) -> Files:
    return {**files, path: File(content=mutant().encode(), executable=files[path].executable)}


def _spread(made: dict[str, Callable[[], Files]]) -> dict[str, Callable[[], Files]]:
    """Return some of them, evenly over all."""
    names = list(made)
    step = max(1, -(-len(names) // MOST_MUTANTS))
    return {name: made[name] for name in names[::step]}


def _of_lines(text: str) -> Iterator[tuple[str, Callable[[], str]]]:
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"line {at + 1} left out", partial("".join, lines[:at] + lines[at + 1 :])


def _of_python(text: str, old: str | None) -> Iterator[tuple[str, Callable[[], str]]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    docs = {id(docstring) for docstring in docstrings(tree)}
    wanted = None if old is None else touched(tree, old, text)
    for at, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0)
        if id(node) in docs or (wanted is not None and line not in wanted):
            continue
        if what := _mutate(copy.deepcopy(node)):
            yield f"line {line}: {what}", partial(_mutant, tree, at)


def _mutant(tree: ast.Module, at: int) -> str:
    changed = copy.deepcopy(tree)
    _mutate(list(ast.walk(changed))[at])
    return ast.unparse(ast.fix_missing_locations(changed)) + "\n"


def touched(tree: ast.Module, old: str, new: str) -> set[int]:
    """Return the lines of the smallest functions in which lines differ from those of an older text."""
    lines: set[int] = set()
    spans: list[range] = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for tag, _, _, first, last in matcher.get_opcodes():
        for line in range(first + 1, max(last, first + 1) + 1) if tag != "equal" else ():
            around = [span for span in spans if line in span] or [range(line, line + 1)]
            smallest = min(around, key=len)
            lines.update(smallest)
    return lines


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, its classes and its functions."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            yield body[0].value


def _mutate(node: ast.AST) -> str | None:
    """Change a node in place, and say how; None when there is nothing to change."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        other = _COMPARED[type(node.ops[0])]
        said = f"{type(node.ops[0]).__name__} is {other.__name__}"
        node.ops[0] = other()
        return said
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        computed = _COMPUTED[type(node.op)]
        said = f"{type(node.op).__name__} is {computed.__name__}"
        node.op = computed()
        return said
    if isinstance(node, ast.BoolOp):
        said = "and is or" if isinstance(node.op, ast.And) else "or is and"
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return said
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        said = f"{node.value} is {node.value + 1}"
        node.value = node.value + 1
        return said
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        node.value = ast.Constant(None)
        return "returns None"
    return None


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def variants_of(files: Files) -> dict[str, Files]:
    """Return submissions that do the same as a solution in Python: written anew, its local names others."""
    made: dict[str, Files] = {}
    for path, file in files.items():
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(file.content)
        except (SyntaxError, ValueError, RecursionError):
            continue
        made[f"{path} written anew"] = _with(files, path, ast.unparse(tree))
        made[f"{path} with other local names"] = _with(files, path, ast.unparse(_renamed(tree)))
        made[f"{path} with a helper before it"] = _with(files, path, _after_future(tree))
    return made


def _with(files: Files, path: str, text: str) -> Files:
    return {**files, path: File(content=text.encode() + b"\n", executable=files[path].executable)}


def _after_future(tree: ast.Module) -> str:
    """Return the module with a function that nobody calls, behind what must be first."""
    added = ast.parse("def _unused_helper(value):\n    return value").body
    return ast.unparse(ast.Module(body=[*tree.body, *added], type_ignores=[]))


def _renamed(tree: ast.Module) -> ast.Module:
    """Return a module whose simple functions have other names for what they assign alone."""
    changed = copy.deepcopy(tree)
    for node in ast.walk(changed):
        if isinstance(node, ast.FunctionDef) and not any(
            isinstance(
                inner, ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.Global | ast.Nonlocal | ast.AsyncFunctionDef
            )
            for inner in ast.walk(node)
            if inner is not node
        ):
            _rename_in(node)
    return changed


def _rename_in(function: ast.FunctionDef) -> None:
    taken = {name.id for name in ast.walk(function) if isinstance(name, ast.Name)}
    if {"locals", "eval", "exec", "vars"} & taken:
        return
    own = {name.id for name in ast.walk(function) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
    arguments = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    for name in ast.walk(function):
        if isinstance(name, ast.Name) and name.id in own - arguments:
            name.id = f"renamed_{name.id}"
