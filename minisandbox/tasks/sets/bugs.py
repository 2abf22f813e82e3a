"""Bugs that `swesmith` makes by rules: a function or a class of a file is changed so that it may well be wrong.

Of that package only its rules for Python are used; whether a bug is one, tests say, see `repositories`. The same bugs
are made every time. It reads and writes nothing but a file of its own.
"""

from __future__ import annotations

import ast
import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from minisandbox.errors import UsageError

PACKAGE = "minisandbox[repositories]"


class Bug(msgspec.Struct, frozen=True, kw_only=True):
    """A file with a bug."""

    path: str
    entity: str
    """The function or class that was changed."""
    rule: str
    explanation: str
    """What a rule says of all its bugs."""
    source: str
    """All of the file."""


def bugs_of(path: str, source: str, seed: str) -> Iterator[Bug]:
    """Yield bugs of a file, one for each function or class that a rule fits, in an order that the seed decides.

    Raises UsageError when `swesmith` is not installed.
    """
    chance = random.Random(f"{seed}/{path}")
    entities = _entities(source)
    chance.shuffle(entities)
    for entity in entities:
        rules = _rules()
        chance.shuffle(rules)
        for rule in rules:
            made = type(rule)(likelihood=rule.likelihood, seed=chance.randrange(1 << 30))
            bug = _bug(path, source, entity, made)
            if bug is not None:
                yield bug
                break


def _bug(path: str, source: str, entity: Any, rule: Any) -> Bug | None:
    if not rule.can_change(entity):
        return None
    rewritten = rule.modify(entity)
    if rewritten is None:
        return None
    changed = spliced(source, rewritten.rewrite, entity.line_start, entity.line_end)
    if not _differs(source, changed):
        return None
    return Bug(path=path, entity=entity.name, rule=rule.name, explanation=rewritten.explanation, source=changed)


def spliced(source: str, new: str, first: int, last: int) -> str:
    """Return a text with other lines in the place of some, from 1, as deep as the first of them was."""
    lines = source.splitlines(keepends=True)
    old = lines[first - 1]
    indent = old[: len(old) - len(old.lstrip())]
    put = [f"{indent}{line}" if line.strip() else line for line in new.strip("\n").splitlines(keepends=True)]
    return "".join([*lines[: first - 1], *put, "\n", *lines[last:]])


def _differs(before: str, after: str) -> bool:
    """Return whether a file is still Python, and another program than before."""
    try:
        return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    except (SyntaxError, ValueError, RecursionError):
        return False


def _entities(source: str) -> list[Any]:
    try:
        from swesmith.bug_gen.adapters.python import get_entities_from_file_py
    except ImportError as error:
        raise UsageError(f"bugs are made by the package swesmith: pip install '{PACKAGE}'") from error
    found: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="minisandbox-bugs-") as folder:
        file = Path(folder, "module.py")
        file.write_text(source, encoding="utf8")
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # it leaves the file to the collector
            get_entities_from_file_py(found, str(file))
    return found


def _rules() -> list[Any]:
    from swesmith.bug_gen.procedural.python import MODIFIERS_PYTHON

    return list(MODIFIERS_PYTHON)
