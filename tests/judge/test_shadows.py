"""What would be imported in the place of a task's test modules is known by its path."""

from __future__ import annotations

import pytest

from minisandbox.judge.shadows import protected_names, shadowing

FILES = ("tests/__init__.py", "tests/cases.py", "tests/data/numbers.txt", "tests/unit/test_a.py")


@pytest.mark.parametrize(
    ("path", "paths", "expected"),
    [
        ("tests.py", (".",), True),
        ("tests/__init__.py", (".",), True),
        ("tests.cpython-311-x86_64-linux-gnu.so", (".",), True),
        ("cases.py", (".", "tests"), True),
        ("cases/__init__.py", (".", "tests"), True),
        ("src/tests/cases.py", ("src", "."), True),
        ("src/tests/more.py", ("src", "."), True),
        ("unit/test_a.py", (".", "tests"), True),
        ("cases.py", (".",), False),
        ("src/tests/cases.py", (".",), False),
        ("mathlib/cases.py", (".", "tests"), False),
        ("testsuite.py", (".",), False),
        ("numbers.txt", (".", "tests"), False),
    ],
)
def test_a_module_by_the_name_of_a_test_module_is_one(path: str, paths: tuple[str, ...], expected: bool) -> None:
    """As a module, a package or an extension, from whichever directory is searched."""
    names = protected_names(FILES, ["tests"], paths)

    assert expected == shadowing(path, names, paths)


def test_a_package_with_tests_in_it_is_none() -> None:
    """The submission is in that package, and only the tests are the task's."""
    names = protected_names(["mathlib/tests/test_core.py"], ["mathlib/tests"], ["."])

    assert not shadowing("mathlib/core.py", names, ["."])
    assert not shadowing("mathlib/__init__.py", names, ["."])
    assert shadowing("mathlib/tests.py", names, ["."])
