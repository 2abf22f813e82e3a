"""Whether a source in Python looks into what runs it: frames, the collector, pytest's own modules, ctypes or /proc.

It is part of the ingest process, which has nothing to lose: the parser reads bytes of strangers. It imports nothing but
the standard library, and runs nothing of what it reads. Who hides what it does is not found; who does not, is told.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable

MODULES = frozenset({"_pytest", "ctypes", "_ctypes"})
NAMES = frozenset(
    {
        *("_getframe", "_current_frames", "currentframe", "f_back", "f_locals", "f_globals"),
        *("tb_frame", "gi_frame", "cr_frame", "ag_frame", "get_objects", "get_referrers", "get_referents"),
    }
)
PROC = "/proc/"

FILE_MAX_BYTES = 128 << 10
"""Of a source that is parsed. A tree takes some hundred times the memory of its source."""

TOTAL_MAX_BYTES = 4 << 20
"""Of all sources that are parsed, so that a large submission takes no longer than it may."""

_WORDS = re.compile("|".join(map(re.escape, sorted({*MODULES, *NAMES, PROC}))).encode())


def may_introspect(source: bytes) -> bool:
    """Return whether a source has a word in it that is worth parsing it."""
    return _WORDS.search(source) is not None


def introspects(source: bytes) -> bool:
    """Return whether a source imports, names or opens one of these; what is no Python does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(_is_one(node) for node in ast.walk(tree))


def _is_one(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return _any_module(alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return _any_module([node.module or ""]) or any(alias.name in NAMES for alias in node.names)
    if isinstance(node, ast.Attribute):
        return node.attr in NAMES
    if isinstance(node, ast.Constant):
        return _is_word(node.value)
    return False


def _any_module(names: Iterable[str]) -> bool:
    return any(name.partition(".")[0] in MODULES for name in names)


def _is_word(value: object) -> bool:
    """Return whether a constant is a path below /proc, or a name as `getattr` and `import_module` take it."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return isinstance(text, str) and (text.startswith(PROC) or text in NAMES or _any_module([text]))
