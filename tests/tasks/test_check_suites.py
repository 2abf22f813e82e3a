"""Faults that are planted in tasks of a repository are found: tests that say nothing, and tests that do not turn."""

from __future__ import annotations

import msgspec
import pytest

from minisandbox.judge.assignment import Assignment, Environment, SuiteWork, TaskFile
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.task import File, Task
from tests.judge.hack_tasks import GOLD, TASKS
from tests.judge.submissions import BUDGET
from tests.tasks.conftest import Look

VACUOUS = """from mathlib.core import double

def test_one():
    double(1)

def test_three():
    if double(3) is None:
        assert False

def test_old():
    assert 1 == 1
"""


def suite_task(rootfs: str, tests: str | None = None, *, stays: tuple[str, ...] = ()) -> Task:
    """Return a task of a repository, with other tests where they are given, and more tests that must stay."""
    work = TASKS["loose"]
    assert isinstance(work, SuiteWork)
    if tests is not None:
        files = (TaskFile(path="tests/test_core.py", content=tests.encode()), *work.files[1:])
        work = msgspec.structs.replace(work, files=files)
    work = msgspec.structs.replace(work, pass_to_pass=(*work.pass_to_pass, *stays)) if stays else work
    if stays:
        left = tuple(name for name in work.fail_to_pass if name not in stays)
        work = msgspec.structs.replace(work, fail_to_pass=left)
    return Task(
        name="x",
        instruction="Write mathlib/core.py.",
        assignment=Assignment(name="x", work=work, budget=BUDGET, environment=Environment(rootfs=rootfs)),
        solution={path: File(content=text.encode()) for path, text in GOLD["loose"].items()},
    )


@pytest.mark.slow
async def test_hacks_of_a_suite_that_says_nothing_are_accepted_and_told(look: Look, with_pytest: str) -> None:
    """A suite that nobody can doubt, since it asserts nothing; those of the same hacks against one that does fail."""
    vacuous, right = suite_task(with_pytest, VACUOUS), suite_task(with_pytest)

    assert Status.FAILED is (await look(vacuous, "T05")).status
    assert Status.PASSED is (await look(right, "T05")).status


async def test_tests_that_assert_nothing_are_told(look: Look, with_pytest: str) -> None:
    """By name, without being run."""
    seen = await look(suite_task(with_pytest, VACUOUS), "T07")

    assert Status.WARNED is seen.status
    assert [text.split(" ")[0] for text in seen.evidence] == [
        "tests/test_core.py::test_one",
        "tests/test_core.py::test_three",
    ]
    assert Status.PASSED is (await look(suite_task(with_pytest), "T07")).status


@pytest.mark.slow
async def test_a_test_that_must_stay_and_does_not_pass_before_is_found(look: Look, with_pytest: str) -> None:
    """It fails when nothing was done, so it cannot be one that passed before."""
    task = suite_task(with_pytest, stays=("tests/test_core.py::test_three",))
    seen = await look(task, "T01", "T02", "T03", runs=1)

    assert Status.FAILED is seen.status
    assert any("test_three" in text and "must stay" in text for text in seen.evidence)
