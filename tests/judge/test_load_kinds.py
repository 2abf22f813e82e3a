"""Tasks with suites and scripts, read from directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.errors import TaskError
from minisandbox.judge.assignment import FileCheck, RequestCheck, ScriptWork, StateWork, SuiteWork
from minisandbox.judge.load import load_task
from tests.judge.submissions import write_files

SUITE = 'format = 1\nname = "x"\n[pytest]\nfail_to_pass = ["tests/test_a.py::test_a"]\nbase = "base"\n'
STATE = """format = 1
name = "x"
[state]
services = [{ command = ["./server"] }]
[[state.checks]]
id = "a"
path = "out"
answer = "42"
[[state.checks]]
id = "b"
port = 8000
request = "x"
"""
SCRIPT = 'format = 1\nname = "x"\n[script]\nrewards = ["a", "b"]\nroot = "/app"\n'


def test_a_suite_is_read(tmp_path: Path) -> None:
    """With all that is below its directories, by names that are relative to them."""
    files: dict[str, str | bytes] = {
        "judge.toml": SUITE,
        "files/tests/test_a.py": "",
        "files/tests/data/x": b"\0",
        "base/a.py": "a = 1",
    }
    work = load_task(write_files(tmp_path / "task", files)).work

    assert isinstance(work, SuiteWork)
    assert ["tests/data/x", "tests/test_a.py"] == [file.path for file in work.files]
    assert [("a.py", b"a = 1")] == [(file.path, file.content) for file in work.base]


def test_a_script_is_read(tmp_path: Path) -> None:
    """Whether its files can be executed is kept."""
    folder = write_files(tmp_path / "task", {"judge.toml": SCRIPT, "tests/test.sh": "true", "tests/run": "true"})
    (folder / "tests" / "run").chmod(0o755)
    work = load_task(folder).work

    assert isinstance(work, ScriptWork)
    assert [("run", True), ("test.sh", False)] == [(file.path, file.executable) for file in work.files]
    assert (("a", "b"), "/app") == (work.rewards, work.root)


def test_checks_of_a_state_are_read(tmp_path: Path) -> None:
    """Of files and of services."""
    work = load_task(write_files(tmp_path / "task", {"judge.toml": STATE})).work

    assert isinstance(work, StateWork)
    assert (FileCheck(id="a", path="out", answer=b"42"), RequestCheck(id="b", port=8000, request=b"x")) == work.checks
    assert (("./server",),) == tuple(service.command for service in work.services)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SUITE + "[script]\n", "exactly one of"),
        ('format = 1\nname = "x"\n', "exactly one of"),
        (SUITE.replace('"tests/test_a.py::test_a"', ""), "no test"),
        (SCRIPT.replace('"a", "b"', '"a", "a"'), "no test"),
        (SCRIPT + "pass_at = 0\n", "pass_at"),
        (SCRIPT + 'files = "nowhere"\n', "no such directory"),
        (STATE + 'path = "x"\n', "exactly one of path and port"),
        (STATE.replace('"b"', '"a"'), "one id"),
        (SCRIPT + "other = 1\n", "other"),
        ('visible = ["c"]\n' + SCRIPT, "no test has the id 'c'"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, message: str) -> None:
    """A task that cannot be judged is refused when it is read."""
    files = {"judge.toml": text, "files/tests/test_a.py": "", "tests/test.sh": "", "base/a.py": ""}
    with pytest.raises(TaskError, match=message):
        load_task(write_files(tmp_path / "task", files))


def test_links_in_a_task_are_refused(tmp_path: Path) -> None:
    """What they lead to may be another thing tomorrow."""
    folder = write_files(tmp_path / "task", {"judge.toml": SCRIPT, "tests/test.sh": "true"})
    (folder / "tests" / "link").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match="neither"):
        load_task(folder)
