"""Modules beside tests, which raise in a mirror: only those are told that every run of a test file imports."""

from __future__ import annotations

import pytest

from minisandbox.judge.data_mirror import DataMirror, data_mirror

FILES = {"tests/__init__.py": "", "tests/conftest.py": "", "tests/cases.py": "X = 1\n", "tests/data.txt": ""}


def mirrored(source: str, paths: tuple[str, ...] = (".",)) -> DataMirror:
    """Return what is changed for one test file."""
    return data_mirror({**FILES, "tests/test_a.py": source}, ["tests/test_a.py"], paths)


@pytest.mark.parametrize(
    "source",
    [
        "from tests.cases import X\n",
        "import tests.cases\n",
        "import os, tests.cases as cases\n",
        "from tests import cases\n",
        "from .cases import X\n",
        "from . import cases\n",
        "from ..tests.cases import X\n",
    ],
)
def test_a_module_that_is_imported_first_of_all_raises(source: str) -> None:
    """Whichever way it is named."""
    assert DataMirror(frozenset({"tests/cases.py"}), frozenset({"tests/test_a.py"})) == mirrored(source)


def test_names_are_those_of_the_directories_that_are_searched() -> None:
    """`cases` is the module where the tests' own directory is one of them."""
    assert mirrored("import cases\n", (".", "tests")).modules
    assert not mirrored("import cases\n").modules


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from tests.cases import X\nexcept ImportError:\n    X = 1\n",
        "if False:\n    import tests.cases\n",
        "def test_a():\n    import tests.cases\n",
        "import tests\nimport tests.conftest\n",
        "from mathlib import cases\n",
        "no python",
    ],
)
def test_what_may_not_be_imported_is_left(source: str) -> None:
    """Else who is honest might pass."""
    assert (frozenset(), frozenset()) == mirrored(source)
