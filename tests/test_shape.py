"""Modules and functions stay short enough to be read at one go: the bounds hold, and the measure is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON_MODULE, PYTHON_FUNCTION = 300, 40
C_FILE, C_FUNCTION = 350, 60

TESTS = sorted((ROOT / "tests").rglob("*.py"))
PYTHON_FILES = [
    *(path for folder in ("minisandbox", "bench", "examples") for path in sorted((ROOT / folder).rglob("*.py"))),
    ROOT / "hatch_build.py",
]
C_FILES = [path for suffix in ("*.c", "*.h") for path in sorted((ROOT / "minisandbox").rglob(suffix))]

C_NOISE = re.compile(
    r"""
    /\*.*?\*/ | //[^\n]*                        # comments
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'  # strings and characters
    | ^[ \t]*\#(?:\\\n|[^\n])*                  # directives, with the lines they continue on
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def python_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function, from `def` to its end."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def c_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function, from the first line of its declaration to its closing brace."""
    code = C_NOISE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    depth, start, header = 0, 0, ""
    for brace in re.finditer(r"[{};]", code):
        if brace[0] == "{":
            if depth == 0:
                header = code[start : brace.start()]
            depth += 1
        elif brace[0] == "}":
            depth -= 1
        if depth > 0:
            continue
        name = re.search(r"(\w+)\s*\(", header)
        if name and brace[0] == "}" and "=" not in header:
            yield name[1], code.count("\n", start + len(header) - len(header.lstrip()), brace.start()) + 1
        start, header = brace.end(), ""


@pytest.mark.parametrize("path", [*PYTHON_FILES, *TESTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_python_functions_are_short(path: Path) -> None:
    """Each function keeps to the bound, in the tests too."""
    too_long = {name: lines for name, lines in python_functions(path.read_text()) if lines > PYTHON_FUNCTION}

    assert {} == too_long


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_module_is_short(path: Path) -> None:
    """A module keeps to the bound; tests, one file for each module, need not."""
    lines = path.read_text().count("\n")

    assert lines <= PYTHON_MODULE


@pytest.mark.parametrize("path", C_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_c_file_is_short(path: Path) -> None:
    """A file and each of its functions keep to the bounds."""
    source = path.read_text()
    too_long = {name: lines for name, lines in c_functions(source) if lines > C_FUNCTION}

    lines = source.count("\n")

    assert {} == too_long
    assert lines <= C_FILE


def test_measure_of_python_functions() -> None:
    """Methods, async and nested functions are all seen, the outer one with the inner one's lines."""
    source = "class A:\n    async def outer(self):\n        def inner():\n            pass\n        return inner\n"

    assert [("outer", 4), ("inner", 2)] == list(python_functions(source))


def test_measure_of_c_functions() -> None:
    """Braces in strings, comments and directives do not count, and neither tables nor structs are functions."""
    source = """
#define OPEN(x) \\
    { x
/* int no(void) { */
struct point { int x; };
static const int table[] = { f(1), 2 };
static int
first(int a, char b)
{
    if (a == '{') { puts("}"); }
    return 0;
}

void second(void) { }
"""

    assert [("first", 6), ("second", 1)] == list(c_functions(source))
