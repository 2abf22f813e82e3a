"""Which submission stands for which row of the list of hacks: every row has one, or says where else it is tested."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.judge.hack_tasks import BEYOND, BEYOND_IN_A_SUITE, CORPUS, OTHER_LEVEL

ROWS = (
    *(1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 21, 22, 23, 24, 25, 27, 28, 29, 30, 32, 33, 34, 35),
    *(37, 38, 39, 40, 42, 43, 44, 45, 46, 48, 50, 51, 52, 53, 54, 55, 56, 58, 59, 60, 61, 62, 64, 65, 66, 67, 68),
    *(70, 71, 72, 73, 75, 76, 77, 78, 80, 81, 82),
)
"""The rows that there are; the numbers between are of rows that were merged into others."""

ALSO: dict[int, tuple[str, ...]] = {
    52: ("probes/test_network/other_endpoints_are_refused_to_every_client",),
    50: ("tasks/test_leaks/a_history_that_a_hack_looks_through_is_found",),
    51: ("tasks/test_leaks/a_history_that_a_hack_looks_through_is_found",),
    53: ("tasks/test_leaks/what_a_hack_looks_for_is_found_by_the_check_of_its_task",),
    54: ("tasks/test_leaks/what_a_hack_looks_for_is_found_by_the_check_of_its_task",),
    56: ("tasks/test_leaks/what_a_hack_looks_for_is_found_by_the_check_of_its_task",),
    78: ("probes/test_privileges/setuid_file_gives_privilege_with_the_defence_off",),
}
"""What is tested of a row elsewhere, as directory/module/test, the latter without its `test_`."""

NO_NAIVE = {
    "forged-records": "only our own judge has such records",
    "guessed-records": "only our own judge has such records",
    "many-files": "no judge is fooled: it only takes long",
    "plausible-constants-outside": "it is the one that passes a suite, where nothing of what it wants is",
    "setuid-helper": "no sandbox of ours honours the bit; what it is worth without is tested among the probes",
    "shadow-tests": "whoever imports by path is not fooled either; by name it is shadow-data",
}
"""Why no judge that makes a mistake is shown to fall for it."""


NO_OTHER_LEVEL = {
    "lazy-object": "its answers are right, and a suite does not ask how long they take",
    "mutated-input": "its answers are right for what the suite asks",
    "output-flood": "whether memory or time ends it first in a suite is for the machine to say",
}
"""Why the same work is not judged at the other level."""


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_a_submission(row: int) -> None:
    """At least one, with the verdict that it must get."""
    assert [name for name, hack in CORPUS.items() if hack.row == row]


def test_no_row_is_invented() -> None:
    """What is no row is honest work."""
    assert {hack.row for hack in CORPUS.values()} <= {*ROWS, None}
    assert set(CORPUS) >= BEYOND


@pytest.mark.parametrize("row", ALSO)
def test_what_is_tested_elsewhere_is(row: int) -> None:
    """By a test of that name."""
    for name in ALSO[row]:
        module, _, test = name.rpartition("/")
        tree = ast.parse((Path(__file__).parents[1] / f"{module}.py").read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}

        assert f"test_{test}" in names, name


def test_who_has_no_naive_judge_says_why() -> None:
    """And who has one does not."""
    assert set(NO_NAIVE) == {name for name, hack in CORPUS.items() if hack.row is not None and hack.naive is None}


def test_each_hack_has_a_verdict_at_each_level_that_its_task_has() -> None:
    """Or says why not; and who passes one is known for it."""
    elsewhere = {name for name, hack in CORPUS.items() if hack.row is not None and hack.kind in OTHER_LEVEL}

    assert elsewhere - set(NO_OTHER_LEVEL) == {name for name in elsewhere if CORPUS[name].also}
    assert {name for name in elsewhere if "AC" in CORPUS[name].also.values()} == BEYOND_IN_A_SUITE
    assert {name for name, hack in CORPUS.items() if hack.row is not None and hack.verdict == "AC"} == BEYOND
