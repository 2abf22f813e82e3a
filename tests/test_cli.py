"""The command line but for `run` and `shell`: help, policies, rootfs, and what becomes of bad input."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli import COMMAND, ROOT, environment, json_of, minisandbox, wait_while

COMMANDS = (
    "",
    "run",
    "shell",
    "doctor",
    "policy",
    "policy check",
    "policy list",
    "rootfs",
    "rootfs list",
    "rootfs build",
    "rootfs import",
    "rootfs inspect",
    "rootfs remove",
    "rootfs gc",
)

WRONG_POLICY = 'format = 1\n\n[limits]\nmemory_bytes = "512M"\nmemory_byte = "1G"\n'


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command: str, tmp_path: Path) -> None:
    """--help of every command exits with 0 and has an example that names it."""
    run = minisandbox(tmp_path, *command.split(), "--help")

    assert (0, b"") == (run.returncode, run.stderr)
    assert b"examples:\n" in run.stdout
    assert f"minisandbox {command}".strip() in run.stdout.decode().partition("examples:\n")[2]


def test_version_is_printed(tmp_path: Path) -> None:
    """--version names the program and exits with 0."""
    run = minisandbox(tmp_path, "--version")

    assert (0, b"") == (run.returncode, run.stderr)
    assert run.stdout.startswith(b"minisandbox")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 64, "COMMAND"),
        ("frobnicate", 64, "frobnicate"),
        ("policy list --frobnicate", 64, "--frobnicate"),
        ("policy list -- ls", 64, "takes no --"),
        ("rootfs build nosuch", 64, "nosuch"),
        ("policy check nosuch", 64, "nosuch"),
        ("run", 125, "no command"),
        ("run --frobnicate -- true", 125, "--frobnicate"),
        ("run --mem 64M -- true", 125, "--mem"),
        ("run --memory=-5M -- true", 125, "--memory"),
        ("run --memory 64Q -- true", 125, "--memory"),
        ("run --memory 0 -- true", 125, "memory_bytes"),
        ("run --wall-time nan -- true", 125, "wall_time_s"),
        ("run --processes 1.5 -- true", 125, "--processes"),
        ("run --network lan -- true", 125, "--network"),
        ("run --allow example.org -- true", 125, "HOST:PORT"),
        ("run --allow a.example:80 --network host -- true", 125, "allow list"),
        ("run --env NOVALUE -- true", 125, "NOVALUE"),
        ("run --env =value -- true", 125, "=value"),
        ("run --bind /srv -- true", 125, "SRC:DST"),
        ("run --bind /srv:relative -- true", 125, "relative"),
        ("run --bind /srv:/srv:wx -- true", 125, "SRC:DST"),
        ("run --user Nobody -- true", 125, "Nobody"),
        ("run --hostname -x -- true", 125, "--hostname"),
        ("run --policy nosuch -- true", 125, "nosuch"),
        ("shell", 125, "terminal"),
    ],
)
def test_bad_input_is_one_line(words: str, code: int, said: str, tmp_path: Path) -> None:
    """What cannot be asked for is said in one line of stderr, with its exit code, and nothing is made."""
    state = tmp_path / "state"
    run = minisandbox(state, *words.split())

    assert (code, b"") == (run.returncode, run.stdout)
    assert run.stderr.startswith(b"minisandbox: ")
    assert 1 == run.stderr.count(b"\n")
    assert said in run.stderr.decode()
    assert not list(state.glob("**/*.json"))


def test_bad_input_is_json_where_asked(tmp_path: Path) -> None:
    """With --json the error is an object on stdout, and stderr is empty."""
    run = minisandbox(tmp_path, "run", "--json", "--memory", "64Q", "--", "true")

    error = json_of(run)["error"]
    assert 125 == run.returncode
    assert ("UsageError", None, None) == (error["kind"], error["stage"], error["errno"])
    assert "--memory" in error["message"]


def test_json_of_the_command_is_not_ours(tmp_path: Path) -> None:
    """An option behind -- belongs to the program, also when we fail."""
    run = minisandbox(tmp_path, "run", "--policy", "nosuch", "--", "true", "--json")

    assert (125, b"") == (run.returncode, run.stdout)
    assert run.stderr.startswith(b"minisandbox: ")


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    """Without --debug there is never a traceback."""
    run = minisandbox(tmp_path, "run", "--debug", "--policy", "nosuch", "--", "true")

    assert 125 == run.returncode
    assert b"Traceback" in run.stderr


def test_policies_are_listed(tmp_path: Path) -> None:
    """The list has every policy file, with its limits, as a table and as JSON."""
    names = sorted(path.stem for path in (ROOT / "policies").glob("*.toml"))
    table = minisandbox(tmp_path, "policy", "list")
    listed = json_of(minisandbox(tmp_path, "policy", "list", "--json"))["policies"]

    assert names == [policy["name"] for policy in listed]
    assert names == [line.split()[0] for line in table.stdout.decode().splitlines()[1:]]
    assert all(policy["limits"]["memory_bytes"] for policy in listed)


def test_a_right_policy_is_summed_up(tmp_path: Path) -> None:
    """A policy that is fine exits with 0 and says who runs what."""
    run = minisandbox(tmp_path, "policy", "check", ROOT / "policies" / "strict.toml")

    assert (0, b"") == (run.returncode, run.stderr)
    assert b"ok; user nobody, 0 capabilities, network none" in run.stdout


def test_a_wrong_policy_is_located(tmp_path: Path) -> None:
    """An unknown key is named with file and line, for people and as JSON, and the exit code is 65."""
    file = tmp_path / "mine.toml"
    file.write_text(WRONG_POLICY)
    run = minisandbox(tmp_path, "policy", "check", file)
    as_json = minisandbox(tmp_path, "policy", "check", "--json", file)

    error = json_of(as_json)["error"]
    assert (65, 65) == (run.returncode, as_json.returncode)
    assert f"minisandbox: {file}:5: " in run.stderr.decode()
    assert ("PolicyError", str(file), 5) == (error["kind"], error["file"], error["line"])


def test_list_of_rootfs_makes_no_state_directory(tmp_path: Path) -> None:
    """Before the first build, the recipes are listed as not built, and nothing is made."""
    state = tmp_path / "state"
    listed = json_of(minisandbox(state, "rootfs", "list", "--json"))["rootfs"]

    assert {("busybox", False), ("host", False)} <= {(row["name"], row["built"]) for row in listed}
    assert not state.exists()


@pytest.mark.requires_root
def test_rootfs_is_built_and_listed(tmp_path: Path) -> None:
    """A build prints the digest that the list then shows; a second one finds the same."""
    state = tmp_path / "state"
    built = json_of(minisandbox(state, "rootfs", "build", "--json", "host"))
    again = minisandbox(state, "rootfs", "build", "host")
    listed = json_of(minisandbox(state, "rootfs", "list", "--json"))["rootfs"]

    assert built["digest"].startswith("sha256:")
    assert built["digest"] in again.stdout.decode()
    assert {"host": built["digest"]} == {row["name"]: row["digest"] for row in listed if row["built"]}


@pytest.mark.requires_root
def test_state_dir_option_goes_before_the_environment(tmp_path: Path) -> None:
    """--state-dir is used, and the directory of $MINISANDBOX_STATE_DIR is not made."""
    run = minisandbox(tmp_path / "environment", "rootfs", "build", "host", "--state-dir", tmp_path / "option")

    assert 0 == run.returncode
    assert ["option"] == sorted(os.listdir(tmp_path))


@pytest.mark.requires_root
def test_terminated_build_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM while a build waits for another one ends it with 143, and what it had begun is removed."""
    state = tmp_path / "state"
    assert 0 == minisandbox(state, "rootfs", "build", "host").returncode
    words = [*COMMAND, "rootfs", "build", "--rebuild", "host"]
    with subprocess.Popen(["flock", state / "rootfs" / "host.lock", "cat"], stdin=subprocess.PIPE) as holder:
        with subprocess.Popen(words, env=environment(state), stderr=subprocess.PIPE) as build:
            wait_while(lambda: waits_for_no_lock(build), build)
            build.send_signal(signal.SIGTERM)
            stderr = build.communicate(timeout=30)[1]
        assert holder.stdin is not None
        holder.stdin.close()

    assert (143, b"") == (build.returncode, stderr)
    assert [] == os.listdir(state / "tmp")


def test_closed_standard_streams_do_no_harm(tmp_path: Path) -> None:
    """With stdin, stdout and stderr closed the command still ends with its exit code."""
    words = " ".join(COMMAND)
    closed = subprocess.run(
        ["/bin/sh", "-c", f"{words} policy list <&- >&- 2>&-"],
        env=environment(tmp_path),
        capture_output=True,
        check=False,
    )

    assert (0, b"", b"") == (closed.returncode, closed.stdout, closed.stderr)


def test_full_disk_under_our_stdout_is_one_line(tmp_path: Path) -> None:
    """What cannot be printed is an error, and Python adds nothing of its own at exit."""
    with open("/dev/full", "wb") as full:
        words = [*COMMAND, "policy", "list"]
        run = subprocess.run(words, env=environment(tmp_path), stdout=full, stderr=subprocess.PIPE, check=False)

    assert 125 == run.returncode
    assert b"No space left on device" in run.stderr
    assert 1 == run.stderr.count(b"\n")


def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """A table into a pipe that nobody reads ends quietly, with the exit code of SIGPIPE."""
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with open(write_fd, "wb") as pipe:
        words = [*COMMAND, "policy", "list"]
        run = subprocess.run(words, env=environment(tmp_path), stdout=pipe, stderr=subprocess.PIPE, check=False)

    assert (128 + signal.SIGPIPE, b"") == (run.returncode, run.stderr)


def waits_for_no_lock(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process waits for no lock on a file (proc_locks(5))."""
    return f"-> FLOCK  ADVISORY  WRITE {process.pid} " not in Path("/proc/locks").read_text()
