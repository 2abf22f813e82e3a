"""The tasks in `examples/tasks` hold, and hidden inputs refuse a submission that knows what is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio

from minisandbox.judge.assignment import StdioWork
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.check import CHECKS
from minisandbox.tasks.checks.case import Case, is_accepted
from minisandbox.tasks.directory import load_task_directory
from minisandbox.tasks.hidden import HIDDEN, with_hidden_test
from minisandbox.tasks.sets import exercises
from minisandbox.tasks.source import directories
from minisandbox.tasks.task import Task
from minisandbox.tasks.workshop import Workshop
from tests.tasks.samples import DEADLINE_S, files

EXAMPLES = directories(Path(__file__).parents[2] / "examples" / "tasks")
QUESTION = {"question": "Show the lines with a.", "ip_file": ["in.txt"]}


CHEAP = (
    "T06",
    "T10",
    "T16",
    "T17",
    "T19",
    "T18",
    "T04",
    "T05",
    "T09",
    "T14",
    "T22",
    "T23",
    "T01",
    "T02",
    "T03",
    "T13",
    "T20",
)
"""All but T07, T08, T11 and T12, which judge dozens of times; `minisandbox task check` makes them, too."""


@pytest.mark.slow
@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
async def test_no_check_of_an_example_fails(workshop: Callable[[Task, int], Workshop], folder: Path) -> None:
    """And none needs a second look."""
    case = Case(workshop=workshop(load_task_directory(folder), 2), origin=folder)
    checks = {check.id: check for check in CHECKS}
    with trio.fail_after(DEADLINE_S):
        seen = {name: await checks[name].look(case) for name in CHEAP}

    assert {} == {name: each for name, each in seen.items() if each.status in (Status.FAILED, Status.WARNED)}


def exercise(
    *solutions: str, lines: str = "ab\nxx\nca\nyy\nzz\n", answer: str = "ab\nca\n", sort_op: bool = False
) -> Task:
    """Return an exercise with these solutions."""
    said = {**QUESTION, "ref_solution": list(solutions), "op_file": answer, "sort_op": sort_op}
    made = exercises.task_of("cli-001", msgspec.convert(said, exercises._Question), files(in_dot_txt=lines))
    assert isinstance(made, Task)
    return made


async def test_a_hidden_test_refuses_who_prints_what_is_seen(workshop: Callable[[Task, int], Workshop]) -> None:
    """It has other files, and each solution passes it."""
    seen = exercise("grep a in.txt", "sed -n /a/p in.txt")
    hidden = await with_hidden_test(workshop(seen, 1))
    assert isinstance(hidden, Task)
    assert isinstance(hidden.assignment.work, StdioWork)
    cheat = files(solution_dot_sh="printf 'ab\\nca\\n'\n")
    honest = {"solution": hidden.solution, **hidden.accepted}

    assert ["shown", HIDDEN] == [test.id for test in hidden.assignment.work.cases]
    assert ("shown",) == hidden.assignment.visible
    assert is_accepted((await workshop(seen, 1).try_files({"cheat": cheat}))["cheat"])
    assert not is_accepted((await workshop(hidden, 1).try_files({"cheat": cheat}))["cheat"])
    assert all(is_accepted(verdict) for verdict in (await workshop(hidden, 1).try_files(honest)).values())


async def test_solutions_that_differ_elsewhere_give_no_hidden_test(workshop: Callable[[Task, int], Workshop]) -> None:
    """Nobody knows then what is right."""
    said = await with_hidden_test(workshop(exercise("grep a in.txt", "printf 'ab\\nca\\n'"), 1))

    assert isinstance(said, str)
    assert "the solutions differ: reference-2" in said


async def test_a_file_of_the_submission_does_not_hide_that_of_a_test(workshop: Callable[[Task, int], Workshop]) -> None:
    """The inputs of a test lie over what the submission brings, directories in their place too."""
    hidden = await with_hidden_test(workshop(exercise("grep a in.txt"), 1))
    assert isinstance(hidden, Task)
    own = {**hidden.solution, **files(in_dot_txt="ab\n")}
    folder = {**hidden.solution, "in.txt/inside": own["in.txt"]}
    bare = msgspec.structs.replace(hidden, files={})
    verdicts = await workshop(bare, 1).try_files({"own": own, "folder": folder})

    assert all(is_accepted(verdict) for verdict in verdicts.values())
