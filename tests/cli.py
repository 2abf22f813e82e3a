"""Runs the command line as a user does: another process, with a state directory of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.rootless import needed_degradations

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "minisandbox")
DEADLINE_S = 60.0


def environment(state_dir: Path) -> dict[str, str]:
    """Return the variables for the command; coverage and the like of the tests stay out of it."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "MINISANDBOX_STATE_DIR": str(state_dir),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def agreeing(words: Sequence[str]) -> list[str]:
    """Return a command line that opens sandboxes with what this host needs for this user; nothing more for root."""
    if words[:1] not in (["run"], ["shell"], ["rollout"]):
        return list(words)
    return [words[0], *(word for name in needed_degradations() for word in ("--degrade", name)), *words[1:]]


def minisandbox(
    state_dir: Path, *words: str | Path, stdin: bytes | None = None, under: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[bytes]:
    """Run one command line to its end, behind the words of `under`; without `stdin` it gets /dev/null."""
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run(
        [*under, *COMMAND, *agreeing(list(map(str, words)))],
        env=environment(state_dir),
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
        **given,
    )


def json_of(run: subprocess.CompletedProcess[bytes]) -> Any:
    """Return the one JSON object that was printed, and check that nothing else was."""
    assert run.stderr == b""
    return msgspec.json.decode(run.stdout)


@contextmanager
def started(state_dir: Path, *words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start `minisandbox run` with these words for the block."""
    given: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    } | options
    with subprocess.Popen([*COMMAND, *agreeing(["run", *words])], env=environment(state_dir), **given) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_while(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a condition no longer holds, which takes milliseconds. Fails when the process ends before that."""
    while condition():
        assert process.poll() is None, "it ended"
        os.sched_yield()
