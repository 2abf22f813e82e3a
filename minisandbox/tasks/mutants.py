"""Mutants of a solution: each is wrong in one place, or should be. And variants of it that are as right. Pure."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

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


def mutants_of(files: Files) -> dict[str, Files]:
    """Return mutants by what was changed: of Python by its syntax tree, of shell scripts by leaving a line out."""
    made: dict[str, Files] = {}
    for path, file in files.items():
        text = file.content.decode(errors="replace")
        mutants = _of_python(text) if path.endswith(".py") else _of_lines(text) if path.endswith(".sh") else iter(())
        for what, mutant in mutants:
            made[f"{path}: {what}"] = {**files, path: File(content=mutant.encode(), executable=file.executable)}
    return _spread(made)


def _spread(made: dict[str, Files]) -> dict[str, Files]:
    """Return some of them, evenly over all."""
    names = list(made)
    step = max(1, -(-len(names) // MOST_MUTANTS))
    return {name: made[name] for name in names[::step]}


def _of_lines(text: str) -> Iterator[tuple[str, str]]:
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"line {at + 1} left out", "".join(lines[:at] + lines[at + 1 :])


def _of_python(text: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    docs = {id(docstring) for docstring in docstrings(tree)}
    before = ast.unparse(tree)
    for at, node in enumerate(ast.walk(tree)):
        if id(node) in docs:
            continue
        changed = copy.deepcopy(tree)
        target = list(ast.walk(changed))[at]
        if what := _mutate(target):
            mutant = ast.unparse(ast.fix_missing_locations(changed))
            if mutant != before:
                yield f"line {getattr(node, 'lineno', 0)}: {what}", mutant + "\n"


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
