"""`minisandbox shell` at a terminal that the tests hold the other end of."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import COMMAND, agreeing, environment

DEADLINE_S = 30.0
PROMPT = "inside> "


class Person:
    """Who sits at the terminal: types, and waits for what must appear."""

    def __init__(self, master_fd: int) -> None:
        self._master_fd = master_fd
        self._seen = ""

    def types(self, text: str) -> None:
        """Press keys."""
        os.write(self._master_fd, text.encode())

    def sees(self, pattern: str) -> re.Match[str]:
        """Wait until a pattern appears after what was seen before, and return the match."""
        deadline = time.monotonic() + DEADLINE_S
        while (match := re.search(pattern, self._seen)) is None:
            ready, _, _ = select.select([self._master_fd], [], [], deadline - time.monotonic())
            assert ready, f"no {pattern!r} in {self._seen!r}"
            self._seen += os.read(self._master_fd, 4096).decode(errors="replace")
        self._seen = self._seen[match.end() :]
        return match

    def does(self, command: str, pattern: str) -> re.Match[str]:
        """Type a command, see the pattern in what it prints (not in the echo of it), and the next prompt."""
        self.types(command + "\n")
        self.sees(re.escape(command))
        match = self.sees(pattern)
        self.sees(PROMPT)
        return match


@contextmanager
def shell(state_dir: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Person, int]]:
    """Start a shell in a session of its own on a new terminal of 100 columns; yield it, the person and the terminal."""
    master_fd, terminal_fd = os.openpty()
    set_size(terminal_fd, 100, 30)
    take: Callable[[], int] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # noqa: E731
    process = subprocess.Popen(
        [*COMMAND, *agreeing(["shell", "--env", f"PS1={PROMPT}", *words])],
        env=environment(state_dir),
        stdin=terminal_fd,
        stdout=terminal_fd,
        stderr=terminal_fd,
        start_new_session=True,
        preexec_fn=take,
    )
    try:
        with process:
            try:
                yield process, Person(master_fd), terminal_fd
            finally:
                process.kill()
    finally:
        os.close(master_fd)
        os.close(terminal_fd)


def set_size(fd: int, columns: int, rows: int) -> None:
    """Change the size of a terminal, as a window does."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_shell_is_a_terminal_inside(state_dir: Path) -> None:
    """It has a terminal of the sandbox with the size of ours, follows its changes, and its exit code passes."""
    with shell(state_dir, "--", "sh") as (process, person, terminal_fd):
        before = termios.tcgetattr(terminal_fd)
        person.sees(PROMPT)
        person.does("tty", "/dev/pts/0\r\n")
        person.does("stty size", "30 100\r\n")
        set_size(terminal_fd, 120, 40)
        person.does(
            "trap 'stty size; trap - WINCH' WINCH; until stty size | grep 40; do :; done; stty size", "40 120\r\n"
        )
        during = termios.tcgetattr(terminal_fd)
        person.types("exit 7\n")
        code = process.wait(DEADLINE_S)
        after = termios.tcgetattr(terminal_fd)

    assert 7 == code
    assert before == after
    assert before != during


def test_interrupt_key_is_the_sandboxes(state_dir: Path) -> None:
    """Ctrl-C interrupts what runs inside, and the shell goes on."""
    with shell(state_dir, "--", "sh") as (process, person, _):
        person.sees(PROMPT)
        person.types("sh -c 'echo begun; exec sleep 300'\n")  # the foreground process itself says that it is there
        person.sees("\nbegun\r\n")
        person.types("\x03")
        person.sees(PROMPT)
        person.does("echo code $?", "code 130\r\n")
        person.types("exit\n")

        assert 0 == process.wait(DEADLINE_S)


def test_default_shell_is_bash(state_dir: Path) -> None:
    """Without a command, the rootfs's bash is started, in the directory and with the variables that were asked for."""
    with shell(state_dir, "--cwd", "/tmp", "--env", "WORD=two") as (process, person, _):
        person.sees(PROMPT)
        person.does('echo "$PWD $WORD ${BASH_VERSION:+bash} $TERM"', "/tmp two bash dumb\r\n")
        person.types("exit\n")
        code = process.wait(DEADLINE_S)

    assert 0 == code


@pytest.mark.parametrize(
    ("words", "code", "said"), [(("--", "/nosuch"), 127, "/nosuch"), (("--cwd", "/nosuch"), 125, "/nosuch")]
)
def test_failure_to_start_is_told_from_the_shell(words: tuple[str, ...], code: int, said: str, state_dir: Path) -> None:
    """As with run: one line, and the exit code is ours."""
    with shell(state_dir, *words) as (process, person, _):
        person.sees(f"minisandbox: .*{said}.*\r\n")

        assert code == process.wait(DEADLINE_S)


@pytest.mark.slow
def test_policys_time_limits_do_not_hold_for_a_person(state_dir: Path, tmp_path: Path) -> None:
    """A shell outlives the wall-time limit of its policy."""
    policy = tmp_path / "hasty.toml"
    policy.write_text("format = 1\n\n[limits]\nwall_time_s = 0.2\n")
    with shell(state_dir, "--policy", str(policy), "--", "sh") as (process, person, _):
        person.sees(PROMPT)
        person.does("sleep 0.5; echo still $((40 + 2))", "still 42\r\n")
        person.types("exit\n")

        assert 0 == process.wait(DEADLINE_S)


def test_time_limit_that_was_given_holds(state_dir: Path) -> None:
    """It ends the shell, and is named once the terminal is ours again."""
    with shell(state_dir, "--wall-time", "0.5", "--", "sh") as (process, person, _):
        person.sees("minisandbox: ended by the wall-time limit of 0.5 s\r\n")

        assert 128 + signal.SIGKILL == process.wait(DEADLINE_S)


def test_signal_to_us_gives_the_terminal_back(state_dir: Path) -> None:
    """SIGTERM ends the shell and restores our terminal."""
    with shell(state_dir, "--", "sh") as (process, person, terminal_fd):
        before = termios.tcgetattr(terminal_fd)
        person.sees(PROMPT)
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE_S)
        after = termios.tcgetattr(terminal_fd)

    assert 128 + signal.SIGTERM == code
    assert before == after
