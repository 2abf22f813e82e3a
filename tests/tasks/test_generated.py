"""Tests that nobody wrote must tell wrong from right: one that does not is found, and none is made that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from minisandbox.errors import TaskError
from minisandbox.judge.assignment import StdioWork, call
from minisandbox.tasks.by_heart import by_heart_of
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.case import Report, outcomes_of
from minisandbox.tasks.directory import load_task_directory
from minisandbox.tasks.export import write_task
from minisandbox.tasks.hidden import HIDDEN, with_hidden_test
from minisandbox.tasks.task import GENERATED_TESTS, Task
from minisandbox.tasks.workshop import Workshop
from tests.tasks.conftest import Look
from tests.tasks.samples import files, function_task, program_task, write_function_task
from tests.tasks.test_check import with_calls
from tests.tasks.test_examples import exercise

SEEN = {"seen": (b"a b\n", b"A B\n")}


def generated(task: Task, *ids: str, visible: tuple[str, ...] = ("seen",)) -> Task:
    """Return the task with these tests generated."""
    return msgspec.structs.replace(
        task,
        assignment=msgspec.structs.replace(task.assignment, visible=visible),
        metadata={GENERATED_TESTS: list(ids)},
    )


def texts(seen: Report) -> str:
    """Return the evidence of a check that failed."""
    assert Status.FAILED is seen.status
    return "\n".join(seen.evidence)


async def test_a_generated_test_that_tells_is_no_fault(look: Look) -> None:
    """The solution and what is as right pass it, and who knows by heart what can be seen does not."""
    odd = b"q'q\\0%d\n\x80\0"
    task = program_task({**SEEN, "made": (odd, odd.upper())}, accepted={"again": files(main_dot_sh="tr a-z A-Z\n")})
    seen = await look(generated(task, "made"), "T25")

    assert (Status.PASSED, ("made: 2 right submissions pass, a wrong one fails",)) == (seen.status, seen.evidence)


async def test_a_generated_test_that_the_solution_fails_is_found(look: Look) -> None:
    """The answer of the second is wrong."""
    task = program_task({**SEEN, "made": (b"x\n", b"X\n"), "bad": (b"y\n", b"Z\n")})
    said = texts(await look(generated(task, "made", "bad"), "T25"))

    assert "bad: WA for the solution" == said


async def test_a_generated_test_that_another_right_submission_fails_is_found(look: Look) -> None:
    """It asks for more than the instruction, and only the solution does it."""
    other = files(main_dot_sh="tr a-y A-Y\n")
    task = program_task({**SEEN, "made": (b"z\n", b"Z\n")}, accepted={"other": other})

    assert "made: WA for other" == texts(await look(generated(task, "made"), "T25"))


async def test_a_generated_test_that_nobody_wrong_fails_is_found(look: Look) -> None:
    """Its answer is that of the test that can be seen; a rejected submission may be the one that it tells apart."""
    lazy = files(main_dot_sh="head -c 3 | tr ab AB; echo\n")
    task = generated(program_task({**SEEN, "made": (b"A b\n", b"A B\n")}), "made")
    better = msgspec.structs.replace(
        task, rejected={"lazy": files(main_dot_sh="read -r x; case $x in a*) echo A B;; esac\n")}
    )

    assert "none passes what can be seen and fails it" in texts(await look(task, "T25"))
    assert "none" in texts(await look(msgspec.structs.replace(task, rejected={"lazy": lazy}), "T25"))
    assert Status.PASSED is (await look(better, "T25")).status


async def test_a_generated_test_that_is_not_there_is_found(look: Look) -> None:
    """The metadata name a test that somebody took out."""
    assert "gone: there is no such test" == texts(await look(generated(program_task(SEEN), "gone"), "T25"))


async def test_without_generated_tests_there_is_nothing_to_ask(look: Look) -> None:
    """And that is told."""
    seen = await look(program_task(SEEN), "T25")

    assert (Status.SKIPPED, ("no test was generated",)) == (seen.status, seen.evidence)


async def test_generated_calls_are_asked_the_same(look: Look) -> None:
    """Of a function: one call that tells, and one that who knows the others by heart passes."""
    calls = (call("seen", "double", 3, expected=6), call("made", "double", [1], expected=[1, 1]))
    task = with_calls(function_task(), *calls, call("dull", "double", 3.0, expected=6.0))

    assert Status.PASSED is (await look(generated(task, "made"), "T25")).status
    assert texts(await look(generated(task, "dull", visible=("seen", "dull")), "T25")).startswith("dull: of ")


@pytest.mark.parametrize("language", ["shell", "python", "function"])
async def test_what_can_be_seen_is_known_by_heart(workshop: Callable[[Task, int], Workshop], language: str) -> None:
    """Each test that can be seen is passed, whatever its bytes, values and exceptions, and no other."""
    if language == "function":
        seen = (call("a", "f", 1, expected={"x": (1.5, float("inf"))}), call("b", "f", 2, x=b"'", raises="KeyError"))
        task = with_calls(function_task(), *seen, call("c", "g", 1, expected=7))
    else:
        task = program_task({"a": (b"1\n", b"'\\n%s\0\xff"), "b": (b"", b"10\n\n"), "c": (b"2", b"7\n")})
        assert isinstance(task.assignment.work, StdioWork)
        work = msgspec.structs.replace(task.assignment.work, language=language)
        task = msgspec.structs.replace(task, assignment=msgspec.structs.replace(task.assignment, work=work))
    task = generated(task, visible=("a", "b"))
    (verdict,) = (await workshop(task, 1).try_files(by_heart_of(task))).values()

    assert {"a": "AC", "b": "AC", "c": "WA"} == {name: each.value for name, each in outcomes_of(verdict).items()}


async def test_a_hidden_test_that_tells_nothing_is_not_made(workshop: Callable[[Task, int], Workshop]) -> None:
    """The solution prints the same lines in another order, and the checker takes any: who prints them always passes."""
    lines = "".join(f"{letter}{number}\n" for number in range(30) for letter in "ab")
    script = "awk '{ x = substr($0, 1, 1); if (!seen[x]++) print x }' in.txt"
    task = exercise(script, lines=lines, answer="a\nb\n", sort_op=True)

    assert "the solution prints nothing else for other files" == await with_hidden_test(workshop(task, 1))


async def test_what_was_generated_is_written_and_read(
    workshop: Callable[[Task, int], Workshop], look: Look, tmp_path: Path
) -> None:
    """The task that is imported says which test nobody wrote, and its check asks for it."""
    made = await with_hidden_test(workshop(exercise("grep a in.txt"), 1))
    assert isinstance(made, Task)
    write_task(made, tmp_path / "made")
    read = load_task_directory(tmp_path / "made")

    assert (HIDDEN,) == made.generated_tests == read.generated_tests
    assert made.metadata == read.metadata
    assert Status.PASSED is (await look(read, "T25")).status


@pytest.mark.parametrize("given", ['"hidden"', "[1]", "true"])
def test_generated_tests_are_a_list_of_ids(tmp_path: Path, given: str) -> None:
    """Anything else is an error with its line."""
    folder = write_function_task(tmp_path / "double")
    text = (folder / "task.toml").read_text().replace("[metadata]\n", f"[metadata]\n{GENERATED_TESTS} = {given}\n")
    (folder / "task.toml").write_text(text)

    with pytest.raises(TaskError, match=r"task\.toml:3: .*a list of ids"):
        load_task_directory(folder)
