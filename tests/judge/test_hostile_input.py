"""Submissions and tasks that are damaged, hostile or contradictory: a typed error or a verdict, and never a hang."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from minisandbox.errors import StateError, TaskError, UsageError
from minisandbox.judge.assignment import Assignment, Declared, FileCheck, FunctionWork, StateWork, Work, call
from minisandbox.judge.evidence import Code
from minisandbox.judge.load import load_task
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Budget, Outcome
from tests.judge.hack_tasks import TASKS
from tests.judge.submissions import BUDGET, DEADLINE_S, take_in, write_files

STATE = StateWork(checks=(FileCheck(id="out", path="answer.txt", answer=b"42\n"),))
WORKS: dict[str, tuple[str, Work]] = {
    "stdio": ("main.py", TASKS["stdio"]),
    "function": ("solution.py", TASKS["function"]),
    "performance": ("solution.py", TASKS["performance"]),
    "script": ("answer.txt", TASKS["script"]),
    "state": ("answer.txt", STATE),
}


def loop(path: Path) -> None:
    """Make a link to itself."""
    path.symlink_to(path.name)


def deep(path: Path) -> None:
    """Make a directory that is deeper than anybody looks."""
    path.joinpath(*["d"] * 70).mkdir(parents=True)
    path.joinpath(*["d"] * 70, "file").touch()


def sparse(path: Path) -> None:
    """Make a file of a tebibyte that takes no room."""
    path.touch()
    os.truncate(path, 1 << 40)


def link(path: Path) -> None:
    """Make a link to a file of the host."""
    path.symlink_to("/etc/passwd")


def odd_names(path: Path) -> None:
    """Make files whose names are no UTF-8, hold control characters, or are as long as can be."""
    path.touch()
    for name in (b"\xff\xfe", b"a\nb", b"\x1b[2J", b"x" * 255, "\u202egnp.py".encode()):
        Path(os.fsdecode(bytes(path.parent) + b"/" + name)).write_bytes(b"x")


SHAPES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "an empty file": lambda path: path.touch(),
    "junk": lambda path: path.write_bytes(bytes(range(256)) * 99),
    "NUL bytes": lambda path: path.write_bytes(b"\0" * 4096),
    "a directory": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to itself": loop,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link out": link,
    "a sparse file": sparse,
    "a deep tree": deep,
    "odd names": odd_names,
    "a program without end": lambda path: path.write_text("(" * 100_000),
}
REJECTED = {"a sparse file", "a deep tree"}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", WORKS)
async def test_no_shape_of_a_submission_is_our_failure(judge: Judge, tmp_path: Path, kind: str, shape: str) -> None:
    """It gets a verdict without a score, with a code where it is rejected, and in time."""
    name, work = WORKS[kind]
    folder = write_files(tmp_path / "submission", {})
    SHAPES[shape](folder / name)
    assignment = Assignment(name="test", work=work, budget=BUDGET)
    manifest = await take_in(judge, folder, assignment)
    with trio.fail_after(DEADLINE_S):
        decision = (await judge.judge(assignment, manifest)).verdict.decision

    assert Outcome.IE is not decision.verdict
    assert 0.0 == decision.score
    assert (shape in REJECTED) == (decision.verdict is Outcome.REJ)
    if shape in REJECTED:
        assert Code.E23_OVER_BOUNDS.name in [item.code for item in decision.evidence]
    assert all(path.isprintable() for item in decision.evidence for path in item.paths)


async def test_a_blob_that_was_changed_is_no_verdict(judge: Judge, tmp_path: Path) -> None:
    """What the store holds is checked when it is read, and a cell that cannot be laid down is our failure."""
    assignment = Assignment(name="test", work=TASKS["stdio"], budget=BUDGET)
    folder = write_files(tmp_path / "submission", {"main.py": "print(2 * int(input()))\n"})
    manifest = await take_in(judge, folder, assignment)
    digest = manifest.files[0].sha256
    (judge.store.path / "blobs" / digest[:2] / digest).write_bytes(b"print('anything')\n")
    with pytest.raises(StateError, match="was changed"):
        judge.store.get(digest)
    with trio.fail_after(DEADLINE_S):
        verdict = (await judge.judge(assignment, manifest)).verdict

    assert (Outcome.IE, True) == (verdict.decision.verdict, verdict.reward.mask)


FUNCTION = """format = 1
name = "x"
[function]
module = "solution"
[[function.calls]]
id = "a"
function = "f"
args = [1]
expected = 2
"""
STDIO = 'format = 1\nname = "x"\n[stdio]\nlanguage = "python"\nsource = "main.py"\n'
REQUEST = 'format = 1\nname = "x"\n[state]\n[[state.checks]]\nid = "a"\nport = 80\n'
TESTS: dict[str, str | bytes] = {"tests/1.in": "1", "tests/1.ans": "2"}

WRONG: dict[str, tuple[str, dict[str, str | bytes]]] = {
    "not TOML": ("format = ", {}),
    "a key twice": ("format = 1\n" + FUNCTION, {}),
    "another format": (FUNCTION.replace("format = 1", "format = 9"), {}),
    "an unknown key": ("secret = 1\n" + FUNCTION, {}),
    "no tests": (FUNCTION[: FUNCTION.index("[[")], {}),
    "no inputs": (STDIO, {"tests/readme": ""}),
    "no directory of tests": (STDIO, {}),
    "an input without an answer": (STDIO, {"tests/1.in": ""}),
    "an answer without an input": (STDIO, {**TESTS, "tests/2.ans": ""}),
    "two kinds": (STDIO + FUNCTION[FUNCTION.index("[function]") :], TESTS),
    "a checker and an interactor": (
        STDIO + '[stdio.external]\nfile = "c"\nlanguage = "c"\n[stdio.interactor]\nfile = "c"\nlanguage = "c"\n',
        {**TESTS, "c": ""},
    ),
    "two calls with one id": (FUNCTION + FUNCTION[FUNCTION.index("[[") :], {}),
    "a value that is no data": (FUNCTION.replace("expected = 2", "expected = 1979-05-27"), {}),
    "a huge integer": (FUNCTION.replace("expected = 2", f"expected = {'9' * 400}"), {}),
    "a tolerance that is NaN": (FUNCTION.replace('"solution"', '"solution"\ntolerance = nan'), {}),
    "a tolerance below zero": (FUNCTION.replace('"solution"', '"solution"\ntolerance = -1.0'), {}),
    "a checker that is NaN": (STDIO + '[stdio.checker]\ntype = "floats"\nabsolute = nan\n', TESTS),
    "a checker that is none": (STDIO + '[stdio.checker]\ntype = "magic"\n', TESTS),
    "no time": (FUNCTION + "[budget]\ncpu_time_s = 0.0\n", {}),
    "time that is NaN": (FUNCTION + "[budget]\ncpu_time_s = nan\n", {}),
    "waiting for less than nothing": (FUNCTION + "[budget]\nidle_s = -1.0\n", {}),
    "waiting for ever": (FUNCTION + "[budget]\nidle_s = inf\n", {}),
    "memory below zero": (FUNCTION + "[budget]\nmemory_bytes = -1\n", {}),
    "artifacts out of their root": (FUNCTION + '[artifacts]\npaths = ["../x"]\n', {}),
    "no files may be taken in": (FUNCTION + "[artifacts]\nmax_files = 0\n", {}),
    "tests elsewhere": (STDIO + 'tests = "../../.."\n', TESTS),
    "a checker elsewhere": (STDIO + '[stdio.external]\nfile = "/etc/passwd"\nlanguage = "c"\n', TESTS),
    "a port that is none": (REQUEST.replace("80", "80000"), {}),
    "a check that waits for ever": (REQUEST + "within_s = inf\n", {}),
    "a check that waits for NaN": (REQUEST + "within_s = nan\n", {}),
    "a certificate of its own": (f'certificate = "yes"\n{FUNCTION}', {}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_task_that_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    """A TaskError with the file, when it is read; nothing of it is judged."""
    text, files = WRONG[name]
    folder = write_files(tmp_path / "task", {**files, "judge.toml": text})
    with pytest.raises(TaskError) as caught:
        load_task(folder)

    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["tests/1.in", "tests/1.ans", "tests/1.files/x"])
def test_a_task_is_of_plain_files(tmp_path: Path, name: str) -> None:
    """A pipe would hang its reader, and a link lead out of the task."""
    for number, make in enumerate((os.mkfifo, link)):
        folder = write_files(tmp_path / str(number), {**TESTS, "tests/1.files/x": "", "judge.toml": STDIO})
        assert load_task(folder)
        (folder / name).unlink()
        make(folder / name)
        with pytest.raises(TaskError):
            load_task(folder)


def test_a_file_of_a_task_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer beyond it is told, and not read to its end."""
    monkeypatch.setattr("minisandbox.judge.load.MAX_TEST_BYTES", 100)
    folder = write_files(tmp_path / "task", {**TESTS, "tests/1.ans": "x" * 101, "judge.toml": STDIO})
    with pytest.raises(TaskError, match="larger than 100 bytes"):
        load_task(folder)


async def test_arguments_beyond_a_frame_are_the_tasks_fault(judge: Judge, tmp_path: Path) -> None:
    """Not the submission's: there is no verdict on it."""
    work = FunctionWork(module="solution", calls=(call("large", "f", "x" * (2 << 20), expected=1),))
    assignment = Assignment(name="test", work=work, budget=BUDGET)
    manifest = await take_in(judge, write_files(tmp_path / "a", {"solution.py": "def f(x): return 1\n"}), assignment)
    with trio.fail_after(DEADLINE_S):
        verdict = (await judge.judge(assignment, manifest)).verdict

    assert Outcome.IE is verdict.decision.verdict
    assert "more than" in verdict.observations.failures[0]


def test_values_are_checked_where_they_are_made() -> None:
    """Whoever makes a task in Python meets the same bounds."""
    for make in (
        lambda: Budget(idle_s=0.0),
        lambda: Budget(output_bytes=0),
        lambda: Declared(max_total_bytes=-1),
        lambda: Declared(paths=()),
        lambda: Declared(root="relative"),
    ):
        with pytest.raises(UsageError):
            make()
