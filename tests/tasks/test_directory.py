"""Directories of tasks: what is right is read and written back, and what is malformed is named with file and line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minisandbox.errors import TaskError
from minisandbox.judge.assignment import FunctionWork, ScriptWork, StdioWork, TestCase
from minisandbox.judge.checkers import Exact
from minisandbox.judge.frames import decode
from minisandbox.judge.spec import Integrity
from minisandbox.tasks import directory as directory_module
from minisandbox.tasks.calls import read_calls, write_calls
from minisandbox.tasks.directory import load_task_directory
from minisandbox.tasks.export import write_task
from minisandbox.tasks.task import Agent, File, Task
from tests.tasks.samples import CALLS, TASK_TOML, files, function_task, program_task, write, write_function_task


def test_a_directory_is_a_task(tmp_path: Path) -> None:
    """All parts of it are where they belong, and a README is nobody's business."""
    folder = write_function_task(tmp_path / "double", environment__files__data_dot_txt="1\n", README_dot_md="about it")
    task = load_task_directory(folder)
    work = task.assignment.work

    assert isinstance(work, FunctionWork)
    assert ("double", "solution", 2) == (task.name, work.module, len(work.calls))
    assert {"data.txt": File(content=b"1\n")} == task.files
    assert {"difficulty": "easy"} == task.metadata
    assert ["solution.py"] == list(task.solution)


def test_a_harbor_task_without_a_table_of_ours_is_one(tmp_path: Path) -> None:
    """It is judged by its tests/test.sh, and claims no more than such a verdict is worth."""
    folder = write(
        tmp_path / "plain",
        task_dot_toml=(
            'version = "1.0"\n[metadata]\nauthor_name = "a"\ntags = ["b"]\n[verifier]\ntimeout_sec = 900.0\n'
            "[agent]\ntimeout_sec = 900.0\n[environment]\nbuild_timeout_sec = 600.0\ncpus = 1\nmemory_mb = 2048\n"
        ),
        instruction_dot_md="Do it.\n",
        tests__test_dot_sh="echo 1 > /logs/verifier/reward.txt\n",
        solution__solve_dot_sh="touch done\n",
    )
    task = load_task_directory(folder)

    assert isinstance(task.assignment.work, ScriptWork)
    assert (Integrity.L1, 900.0, 2 << 30) == (task.assignment.integrity, task.agent.timeout_s, task.agent.memory_bytes)


def remove(name: str) -> Callable[[Path], None]:
    """Return what removes a file of a task."""
    return lambda folder: (folder / name).unlink()


def put(name: str, text: str | bytes) -> Callable[[Path], None]:
    """Return what writes a file of a task."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def link(name: str, target: str) -> Callable[[Path], None]:
    """Return what puts a symbolic link into a task."""
    return lambda folder: (folder / name).symlink_to(target)


MALFORMED: dict[str, tuple[Callable[[Path], None], str, int, str]] = {
    "no description": (remove("task.toml"), "task.toml", 0, "No such file"),
    "no TOML": (put("task.toml", "version = \n"), "task.toml", 1, "not TOML"),
    "a key given twice": (put("task.toml", 'version = "1"\nversion = "1"\n'), "task.toml", 2, "not TOML"),
    "an unknown key": (put("task.toml", TASK_TOML + "language = 1\n"), "task.toml", 8, "language"),
    "an unknown table": (put("task.toml", "[nothing]\na = 1\n" + TASK_TOML), "task.toml", 1, "nothing"),
    "a wrong type": (put("task.toml", "[agent]\ntimeout_sec = 'x'\n" + TASK_TOML), "task.toml", 2, "agent.timeout_sec"),
    "NaN": (put("task.toml", TASK_TOML + "[agent]\ntimeout_sec = nan\n"), "task.toml", 9, "agent.timeout_sec"),
    "no time": (put("task.toml", TASK_TOML + "[verifier]\ntimeout_sec = 0\n"), "task.toml", 9, "verifier.timeout_sec"),
    "a tolerance that is NaN": (put("task.toml", TASK_TOML + "tolerance = nan\n"), "task.toml", 8, "tolerance"),
    "a budget that is none": (
        put("task.toml", TASK_TOML + "[minisandbox.budget]\ncpu_time_s = -1.0\n"), "task.toml", 4, "greater than 0"
    ),
    "two versions": (put("task.toml", 'schema_version = "2"\n' + TASK_TOML), "task.toml", 2, "differ"),
    "a certificate of its own": (
        put("task.toml", TASK_TOML.replace("calls =", 'certificate = "yes"\ncalls =')), "task.toml", 5, "certificate"
    ),
    "two kinds": (
        put("task.toml", TASK_TOML + "[minisandbox.stdio]\nlanguage = 'c'\nsource = 'a'\n"), "task.toml", 8, "one kind"
    ),
    "a warm module that is no name": (
        put("task.toml", TASK_TOML.replace("calls =", 'warm = ["os", "import os"]\ncalls =')), "task.toml", 5, "module"
    ),
    "a warm Python that is no list": (
        put("task.toml", TASK_TOML.replace("calls =", "warm = true\ncalls =")), "task.toml", 5, "warm"
    ),
    "another format": (
        put("task.toml", TASK_TOML.replace("calls =", "format = 2\ncalls =")), "task.toml", 5, "format 2",
    ),
    "a description that is too large": (put("task.toml", "#" * (2 << 20)), "task.toml", 0, "larger than"),
    "two descriptions": (put("judge.toml", "format = 1\n"), "task.toml", 0, "contradicts judge.toml"),
    "no instruction": (remove("instruction.md"), "instruction.md", 0, "No such file"),
    "an empty instruction": (put("instruction.md", " \n"), "instruction.md", 0, "says nothing"),
    "an instruction that is no text": (put("instruction.md", b"\xff\xfe"), "instruction.md", 0, "not UTF-8"),
    "no tests": (remove("tests/calls.jsonl"), "tests/calls.jsonl", 0, "No such file"),
    "empty tests": (put("tests/calls.jsonl", "\n\n"), "tests/calls.jsonl", 0, "no test"),
    "a call that is none": (put("tests/calls.jsonl", CALLS + "{}\n"), "tests/calls.jsonl", 3, "missing"),
    "a call with an unknown key": (
        put("tests/calls.jsonl", '{"id": "a", "function": "f", "arg": ""}\n'), "tests/calls.jsonl", 1, "arg"
    ),
    "two calls with one id": (put("tests/calls.jsonl", CALLS + CALLS), "tests/calls.jsonl", 3, "'small'"),
    "a call that computes": (
        put("tests/calls.jsonl", CALLS.replace("(3,)", "(len('a'),)")), "tests/calls.jsonl", 1, "no call"
    ),
    "arguments that are no tuple": (
        put("tests/calls.jsonl", CALLS.replace("(3,)", "3")), "tests/calls.jsonl", 1, "tuple"
    ),
    "nested too deeply": (
        put("tests/calls.jsonl", CALLS.replace("(3,)", "(" * 500 + ")" * 500)), "tests/calls.jsonl", 1, "no call"
    ),
    "an unknown file": (put("answers.txt", "6"), "", 0, "answers.txt is nothing"),
    "a link": (link("solution/more.py", "/etc/passwd"), "solution/more.py", 0, "neither a plain file"),
    "a link for the tests": (
        lambda folder: (remove("tests/calls.jsonl")(folder), link("tests/calls.jsonl", "/etc/hostname")(folder))[0],
        "task.toml", 5, "must be in the directory",
    ),
    "a pipe": (lambda folder: os.mkfifo(folder / "solution" / "pipe"), "solution/pipe", 0, "neither a plain file"),
    "a Dockerfile alone": (put("environment/Dockerfile", "FROM x\n"), "task.toml", 4, "not built here"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_named(tmp_path: Path, name: str) -> None:
    """The error is typed, and names the file, the line where there is one, and what is wrong."""
    change, file, line, said = MALFORMED[name]
    folder = write_function_task(tmp_path / "task")
    assert load_task_directory(folder)
    change(folder)
    with pytest.raises(TaskError) as caught:
        load_task_directory(folder)

    assert (folder / file, line) == (caught.value.file, caught.value.line), str(caught.value)
    assert said in str(caught.value)


def test_a_tree_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a file, by all together, and by their number."""
    folder = write_function_task(tmp_path / "task", solution__a_dot_txt="x" * 400, solution__b_dot_txt="x" * 400)
    for bound, most in (("MAX_FILE_BYTES", 300), ("MAX_TREE_BYTES", 700), ("MAX_FILES", 1)):
        with monkeypatch.context() as patch, pytest.raises(TaskError, match=r"larger than|more than"):
            patch.setattr(directory_module, bound, most)
            load_task_directory(folder)


def test_a_task_is_written_and_read_back(tmp_path: Path) -> None:
    """Its digest is the same, whatever it has."""
    case = TestCase(id="a", input=b"\xff\0", answer=b"b\n", files={"in/x y.txt": b"1\n"})
    odd = program_task({}, metadata={"a": [1, "b"], "odd key": 'with "quotes"\n'})
    assert isinstance(odd.assignment.work, StdioWork)
    work = msgspec.structs.replace(odd.assignment.work, cases=(case,), checker=Exact())
    odd = msgspec.structs.replace(odd, assignment=msgspec.structs.replace(odd.assignment, work=work, visible=("a",)))
    odd = msgspec.structs.replace(odd, files={"x/y": File(content=b"z", executable=True)})
    tasks: list[Task] = [
        odd,
        function_task(accepted={"other": files(solution_dot_py="def double(x):\n    return 2 * x\n")}),
        function_task(rejected={"wrong": files(solution_dot_py="")}, metadata={"id": "1"}),
        function_task(agent=Agent(warm=("numpy", "os.path"))),
        function_task(agent=Agent(warm=())),
    ]
    for number, task in enumerate(tasks):
        write_task(task, tmp_path / str(number))

        assert task == load_task_directory(tmp_path / str(number))
        assert task.digest == load_task_directory(tmp_path / str(number)).digest


def test_every_part_of_a_task_is_in_its_digest() -> None:
    """A certificate is lost by any change, but for the name of the certificate itself."""
    task = function_task()
    changes: list[dict[str, Any]] = [
        {"instruction": "other"}, {"files": files(a="")}, {"solution": {}}, {"accepted": {"a": {}}},
        {"rejected": {"a": {}}}, {"metadata": {"a": 1}}, {"name": "other"},
        {"agent": Agent(warm=())}, {"agent": Agent(warm=("numpy",))},
        {"assignment": msgspec.structs.replace(task.assignment, integrity=Integrity.L1)},
    ]  # fmt: skip
    digests = {msgspec.structs.replace(task, **change).digest for change in changes}
    named = msgspec.structs.replace(task.assignment, certificate="x")

    assert len(changes) == len(digests - {task.digest})
    assert task.digest == msgspec.structs.replace(task, assignment=named).digest


def test_calls_keep_their_types(tmp_path: Path) -> None:
    """Tuples, sets, bytes and None are what they were."""
    line = """{"id": "a", "function": "f", "args": "((1, 2), {3}, b'x', None, 1.5)", "kwargs": "{'k': [True]}"}\n"""
    calls = read_calls(line.encode(), tmp_path)

    assert (((1, 2), {3}, b"x", None, 1.5), {"k": [True]}) == decode(calls[0].arguments)
    assert calls == read_calls(write_calls(calls), tmp_path)
