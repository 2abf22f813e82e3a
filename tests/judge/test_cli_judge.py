"""The command `minisandbox judge`, and the directory of a task that it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minisandbox.cli.main import main
from minisandbox.errors import TaskError
from minisandbox.judge.load import load_task
from tests.judge.submissions import write_files

HEAD = 'format = 1\nname = "t"\n'
STDIO = HEAD + '[stdio]\nlanguage = "python"\nsource = "main.py"\n'
CALL = '[[function.calls]]\nid = "a"\nfunction = "f"\nexpected = 1\n'
FUNCTION = HEAD + '[function]\nmodule = "m"\n'
TEST = {"tests/1.in": "3", "tests/1.ans": "6"}

WRONG = {
    "no test": ({"judge.toml": STDIO}, "there is no test"),
    "no call": ({"judge.toml": FUNCTION + "calls = []"}, "there is no test"),
    "no answer": ({"judge.toml": STDIO, "tests/1.in": "3"}, "there is no 1.ans"),
    "no input": ({"judge.toml": STDIO, **TEST, "tests/2.ans": "3"}, "no input of that name"),
    "no kind": ({"judge.toml": HEAD}, "exactly one of"),
    "two kinds": ({"judge.toml": STDIO + '[function]\nmodule = "m"\n' + CALL, **TEST}, "exactly one of"),
    "two calls of one id": ({"judge.toml": FUNCTION + CALL + CALL}, "have one id"),
    "an unknown key": ({"judge.toml": HEAD + "x = 1\n"}, "unknown|not known|x"),
    "NaN for a tolerance": (
        {"judge.toml": STDIO + 'checker = {type = "floats", absolute = nan}\n', **TEST},
        "tolerance",
    ),
    "a date": ({"judge.toml": FUNCTION + CALL.replace("expected = 1", "expected = 1979-05-27")}, "not plain data"),
    "a way out": ({"judge.toml": STDIO + '[artifacts]\npaths = ["../x"]\n', **TEST}, "plain names"),
    "no file": ({}, "cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_task_is_named(tmp_path: Path, name: str) -> None:
    """With its file, and before anything is judged."""
    files, message = WRONG[name]
    with pytest.raises(TaskError, match=message):
        load_task(write_files(tmp_path / "task", files))


@pytest.mark.requires_root
def test_judging_from_the_command_line(tmp_path: Path, state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run, replay, explain, verify: and a ledger that was edited is found."""
    task = write_files(tmp_path / "task", {"judge.toml": STDIO, **TEST})
    right = write_files(tmp_path / "right", {"main.py": "print(2 * int(input()))"})
    wrong = write_files(tmp_path / "wrong", {"main.py": "print(5)"})
    own = ["--judge-dir", str(tmp_path / "judge")]
    both = [*own, "--state-dir", str(state_dir)]

    assert 0 == main(["judge", "run", *both, "--json", str(task), str(right)])
    episode = json.loads(capsys.readouterr().out)["episode"]
    assert 1 == main(["judge", "run", *both, str(task), str(wrong)])
    assert "wrong answer" in capsys.readouterr().out
    assert 0 == main(["judge", "replay", *both, episode])
    assert "the same decision" in capsys.readouterr().out
    assert 0 == main(["judge", "explain", *own, episode])
    assert "accepted" in capsys.readouterr().out
    assert 0 == main(["judge", "verify-ledger", *own])
    assert "3 of 3 ledgers" in capsys.readouterr().out

    ledger = tmp_path / "judge" / "episodes" / episode / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"AC"', b'"WA"'))
    assert 65 == main(["judge", "verify-ledger", *own, "--json"])
    (damaged,) = json.loads(capsys.readouterr().out)["damaged"]
    assert (episode, 4) == (damaged["episode"], damaged["line"])
