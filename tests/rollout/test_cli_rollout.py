"""`minisandbox rollout` as a user runs it: what it says, how it is ended, and that a run goes on where it was ended."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minisandbox.rollout.database import DATABASE_NAME
from tests.cli import COMMAND, agreeing, environment, json_of, minisandbox
from tests.tasks.samples import write

pytestmark = [pytest.mark.requires_root, pytest.mark.slow]

PATIENCE_S = 60.0
TASK_TOML = """version = "1.0"
[[minisandbox.state.checks]]
id = "says-hello"
path = "hello.txt"
"""
_ANSWER = r"echo {\"action\": {\"type\": \"submit\"}}"
SLOW = f"slow=command:sh -c 'read begin; read first; sleep 0.2; {_ANSWER}; read rest'"
"""A policy that thinks for a moment."""


def write_tasks(folder: Path, *names: str) -> Path:
    """Write tasks of one file each, which are judged fast."""
    for name in names:
        write(
            folder / name,
            task_dot_toml=TASK_TOML,
            instruction_dot_md="Write hello.txt.\n",
            tests__README_dot_md="The checks are in task.toml.\n",
            solution__hello_dot_txt="hello\n",
        )
    return folder


def rollout(state_dir: Path, tasks: Path, out: Path, *words: str) -> dict[str, Any]:
    """Run it to its end, and return what it says of it."""
    said: dict[str, Any] = json_of(minisandbox(state_dir, "rollout", str(tasks), "--out", str(out), "--json", *words))
    return said


@contextlib.contextmanager
def begun(state_dir: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Begin a run for the block; it heeds SIGINT also where these tests run in the background."""
    command = ["env", "--default-signal=INT,TERM", *COMMAND, *agreeing(["rollout", *map(str, words)])]
    with subprocess.Popen(
        command, env=environment(state_dir), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def recorded(out: Path) -> list[tuple[str, str, int]]:
    """Return the keys of the episodes that are recorded, in order."""
    with contextlib.closing(sqlite3.connect(f"file:{out / DATABASE_NAME}?mode=ro", uri=True)) as database:
        return sorted(database.execute("SELECT task, policy, sample FROM episodes"))


def wait_recorded(process: subprocess.Popen[bytes], out: Path, count: int) -> None:
    """Wait until so many episodes are recorded."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        with contextlib.suppress(sqlite3.Error):
            if len(recorded(out)) >= count:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)


def test_tasks_are_played_and_judged(state_dir: Path, tmp_path: Path) -> None:
    """By each policy so many times; what came of each is said, and recorded."""
    tasks = write_tasks(tmp_path / "tasks", "a", "b")
    said = rollout(
        state_dir, tasks, tmp_path / "out", "--policy", "oracle", "--policy", "noop", "--samples", "2", "--seed", "3"
    )

    assert {"oracle": 1.0, "noop": 0.0} == {name: each["mean_reward"] for name, each in said["policies"].items()}
    assert (8, 0, [], None) == (said["episodes"], said["before"], said["malformed"], said["signal"])
    keys = [(task, policy, sample) for task in "ab" for policy in ("noop", "oracle") for sample in range(2)]
    assert keys == recorded(tmp_path / "out")


def test_a_table_is_for_people(state_dir: Path, tmp_path: Path) -> None:
    """With the way to the report."""
    tasks = write_tasks(tmp_path / "tasks", "a")
    run = minisandbox(
        state_dir, "rollout", tasks, "--policy", "oracle", "--out", tmp_path / "out", "--concurrency", "1"
    )

    assert (0, b"") == (run.returncode, run.stderr)
    assert "oracle" in run.stdout.decode()
    assert "minisandbox report" in run.stdout.decode()


def test_a_killed_run_goes_on(state_dir: Path, tmp_path: Path) -> None:
    """Killed by SIGKILL in the middle, twice: at the end each episode is there once, and none is lost."""
    tasks, out = write_tasks(tmp_path / "tasks", *"abcdefgh"), tmp_path / "out"
    words = ["--policy", SLOW, "--samples", "5", "--concurrency", "4"]
    before = 0
    for _ in range(2):
        with begun(state_dir, tasks, "--out", out, *words) as process:
            wait_recorded(process, out, before + 6)
            process.send_signal(signal.SIGKILL)
            process.wait()
        kept = recorded(out)
        assert before + 6 <= len(kept) < 40
        before = len(kept)
    said = rollout(state_dir, tasks, out, *words)

    assert (before, 40 - before) == (said["before"], said["episodes"])
    assert [(task, "slow", sample) for task in "abcdefgh" for sample in range(5)] == recorded(out)
    assert set(kept) <= set(recorded(out))
    again = rollout(state_dir, tasks, out, *words)
    assert (40, 0) == (again["before"], again["episodes"])


def test_the_first_interrupt_lets_episodes_end(state_dir: Path, tmp_path: Path) -> None:
    """What runs is recorded, nothing more begins, and nothing is left."""
    tasks, out = write_tasks(tmp_path / "tasks", *"abcdefgh"), tmp_path / "out"
    words = ["--policy", SLOW, "--samples", "20", "--concurrency", "3", "--json"]
    with begun(state_dir, tasks, "--out", out, *words) as process:
        wait_recorded(process, out, 3)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)

    assert (128 + signal.SIGINT, b"") == (process.returncode, stderr)
    assert b'"signal":2' in stdout
    assert 3 <= len(recorded(out)) < 160
    assert [] == list((state_dir / "instances").iterdir())


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_the_second_interrupt_or_a_term_ends_at_once(
    state_dir: Path, tmp_path: Path, numbers: tuple[signal.Signals, ...]
) -> None:
    """Also what would never end: it is cancelled, not recorded, and played when the run goes on."""
    tasks, out = write_tasks(tmp_path / "tasks", "a"), tmp_path / "out"
    hangs = f"hangs=command:sh -c 'touch {tmp_path}/began; sleep 1000'"
    with begun(state_dir, tasks, "--out", out, "--policy", hangs, "--concurrency", "1") as process:
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        for at, number in enumerate(numbers, 1):
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0 if at < len(numbers) else PATIENCE_S)
        stdout, _ = process.communicate(timeout=PATIENCE_S)

    assert 128 + numbers[0] == process.returncode
    assert b"the same command goes on" in stdout
    assert [] == recorded(out)
    assert [] == list((state_dir / "instances").iterdir())


def test_a_malformed_task_leaves_the_others_alone(state_dir: Path, tmp_path: Path) -> None:
    """It is named with file and line, and the exit code says so."""
    tasks = write_tasks(tmp_path / "tasks", "a", "b", "c")
    (tasks / "b" / "task.toml").write_text("version = \n")
    run = minisandbox(state_dir, "rollout", tasks, "--policy", "oracle", "--out", tmp_path / "out", "--json")
    said = json_of(run)

    assert (65, 2, 1.0) == (run.returncode, said["episodes"], said["policies"]["oracle"]["mean_reward"])
    assert f"{tasks / 'b' / 'task.toml'}:1" in said["malformed"][0]


def test_episodes_without_a_verdict_have_an_exit_code(state_dir: Path, tmp_path: Path) -> None:
    """A root file system that is not there is ours to mend."""
    tasks = write_tasks(tmp_path / "tasks", "a", "b")
    text = TASK_TOML.replace("[[", '[minisandbox.environment]\nrootfs = "no-such"\n[[')
    (tasks / "b" / "task.toml").write_text(text)
    run = minisandbox(state_dir, "rollout", tasks, "--policy", "oracle", "--out", tmp_path / "out", "--json")
    said = json_of(run)

    assert (75, 2, 1) == (run.returncode, said["episodes"], said["policies"]["oracle"]["masked"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--policy", "oracel"], "is no policy"),
        (["--policy", "oracle", "--policy", "oracle"], "a name of its own"),
        (["--policy", "oracle", "--samples", "0"], "samples"),
        (["--policy", "oracle", "--concurrency", "x"], "concurrency"),
        (["--policy", "oracle", "--concurrency", "4-2"], "concurrency"),
        (["--policy", "oracle", "--turns", "0"], "turns"),
        (["--policy", "oracle", "--think-time", "soon"], "soon"),
        (["--policy", "oracle", "--parameters", "[1]"], "JSON object"),
        (["--policy", "oracle", "--key-variable", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--policy", "oracle", "--tries", "0"], "tries"),
    ],
)
def test_what_cannot_be_is_refused(state_dir: Path, tmp_path: Path, words: list[str], error: str) -> None:
    """Before anything is opened, and nothing is made."""
    tasks = write_tasks(tmp_path / "tasks", "a")
    run = minisandbox(state_dir, "rollout", tasks, "--out", tmp_path / "out", *words)

    assert 64 == run.returncode
    assert error in run.stderr.decode()
    assert not (tmp_path / "out").exists()


def test_tasks_that_are_not_there_are_told_at_once(state_dir: Path, tmp_path: Path) -> None:
    """Also behind others, and nothing is made."""
    tasks = write_tasks(tmp_path / "tasks", "a")
    run = minisandbox(state_dir, "rollout", tasks, "no/such", "--policy", "oracle", "--out", tmp_path / "out")

    assert 64 == run.returncode
    assert "is no set" in run.stderr.decode()
    assert not (tmp_path / "out").exists()


def test_another_run_does_not_go_on_with_this_one(state_dir: Path, tmp_path: Path) -> None:
    """A budget that differs would mix what cannot be compared."""
    tasks = write_tasks(tmp_path / "tasks", "a")
    rollout(state_dir, tasks, tmp_path / "out", "--policy", "noop")
    run = minisandbox(state_dir, "rollout", tasks, "--policy", "noop", "--out", tmp_path / "out", "--turns", "3")

    assert 125 == run.returncode
    assert "begun with" in run.stderr.decode()


def test_no_limit_can_be_asked_for(state_dir: Path, tmp_path: Path) -> None:
    """Of each part of the budget."""
    tasks = write_tasks(tmp_path / "tasks", "a")
    names = ("turns", "tokens", "wall-time", "verdict-time", "turn-time", "think-time")
    words = [word for name in names for word in (f"--{name}", "none")]
    said = rollout(state_dir, tasks, tmp_path / "out", "--policy", "oracle", *words)

    assert 1.0 == said["policies"]["oracle"]["mean_reward"]


def test_the_key_of_a_server_is_recorded_nowhere(state_dir: Path, tmp_path: Path) -> None:
    """It is sent, and that is all."""
    from tests.rollout.endpoint import in_order, listening, says

    tasks, out, key = write_tasks(tmp_path / "tasks", "a"), tmp_path / "out", "k" * 40
    with listening(in_order(says(("submit", {})))) as server:
        words = ["--policy", server.url, "--model", "m", "--parameters", '{"top_p": 0.5}', "--key-variable", "KEY"]
        run = subprocess.run(
            [*COMMAND, *agreeing(["rollout", str(tasks), "--out", str(out), *words])],
            env=environment(state_dir) | {"KEY": key},
            capture_output=True,
            timeout=PATIENCE_S,
        )

    assert (0, b"") == (run.returncode, run.stderr)
    assert (f"Bearer {key}", "m", 0.5) == (
        server.headers[0]["Authorization"],
        server.asked[0]["model"],
        server.asked[0]["top_p"],
    )
    written = [path for path in out.rglob("*") if path.is_file()]
    assert [] == [path for path in written if key.encode() in path.read_bytes()]
    assert os.environ.get("KEY") is None


def test_a_terminal_shows_how_far_it_is(state_dir: Path, tmp_path: Path) -> None:
    """Drawn anew on stderr while it goes on: counts, what runs, and what each policy earned."""
    tasks = write_tasks(tmp_path / "tasks", "a", "b")
    ours, theirs = pty.openpty()
    words = ["rollout", str(tasks), "--policy", SLOW, "--samples", "4", "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [*COMMAND, *agreeing(words)],
        env=environment(state_dir) | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # EIO, once nobody has it open any more
            while chunk := os.read(ours, 65536):
                drawn += chunk
        os.close(ours)
        process.wait(PATIENCE_S)

    assert 0 == process.returncode
    assert b"episodes in" in drawn
    assert b"run, up to" in drawn
    assert b"mean reward" in drawn
