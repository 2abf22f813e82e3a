"""A mirror of what tests take from modules beside them: those modules raise, so that no test that needs one can pass.

A submission that has put a module of its own in their place, while it was imported, does not notice, and passes. Only
an import at the top of a test file counts, which is made whatever else holds. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from minisandbox.judge.shadows import module_names

RAISING = b"raise AssertionError\n"
_OTHERS = ("__init__.py", "conftest.py")
"""Modules that pytest imports by itself: a failure of these says nothing about a test."""


class DataMirror(NamedTuple):
    """What is changed, and who must notice."""

    modules: frozenset[str]
    """The files that raise."""
    test_files: frozenset[str]
    """The files none of whose tests can pass then."""


def data_mirror(files: Mapping[str, str], test_files: Iterable[str], paths: Iterable[str]) -> DataMirror:
    """Return what can be changed of the files of a task, by path with their source."""
    tests, places = set(test_files), tuple(paths)
    beside = [path for path in files if path.endswith(".py") and path not in tests and not path.endswith(_OTHERS)]
    needed = {test: {path for path in beside if _is_needed(path, test, files[test], places)} for test in tests}
    return DataMirror(
        modules=frozenset(path for paths_ in needed.values() for path in paths_),
        test_files=frozenset(test for test, found in needed.items() if found),
    )


def _is_needed(module: str, test: str, source: str, paths: tuple[str, ...]) -> bool:
    names = set(module_names(module, paths))
    return any(name in names or name == module for name in _imports(test, source))


def _imports(test: str, source: str) -> Iterator[str]:
    """Yield what a file is sure to import: dotted names, and the files that relative imports may mean."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            both = (node.module or "", *(f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names))
            yield from both if not node.level else (_relative(test, node.level, name) for name in both)


def _relative(test: str, level: int, name: str) -> str:
    folders = test.split("/")[:-level]
    return "/".join([*folders, *name.split(".")]) + ".py"
