"""`minisandbox run` on real sandboxes: output, exit codes, limits, JSON, and every way of ending early."""

from __future__ import annotations

import base64
import http.server
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli import environment, json_of, minisandbox, started

ALL_BYTES = bytes(range(256))


def test_output_and_exit_code_are_the_programs(state_dir: Path) -> None:
    """Both streams come as they are, byte for byte, and nothing of ours is among them."""
    script = "import os; os.write(1, bytes(range(256))); os.write(2, b'no newline'); os._exit(3)"
    run = minisandbox(state_dir, "run", "--", "python3", "-c", script)

    assert (3, ALL_BYTES, b"no newline") == (run.returncode, run.stdout, run.stderr)


def test_stdin_is_passed_on(state_dir: Path) -> None:
    """A command reads all that we are given, and then the end."""
    data = ALL_BYTES * 4096
    run = minisandbox(state_dir, "run", "--", "cat", stdin=data)

    assert (0, data) == (run.returncode, run.stdout)


def test_stdin_beyond_the_bound_is_refused(state_dir: Path) -> None:
    """More than 64 MiB is an error that says what to do, before anything is started."""
    with started(state_dir, "--", "cat", stdin=subprocess.PIPE) as process:
        stdout, stderr = process.communicate(bytes((64 << 20) + 1))

    assert (125, b"") == (process.returncode, stdout)
    assert b"minisandbox: stdin is larger than 64 MiB; show it as a file with --bind\n" == stderr


def test_output_comes_live(state_dir: Path) -> None:
    """What was printed can be read while the command still runs."""
    with started(state_dir, "--", "sh", "-c", "echo first; exec sleep 300") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        still_running = process.poll() is None

    assert (b"first\n", True) == (line, still_running)


def test_signal_becomes_an_exit_code(state_dir: Path) -> None:
    """A program that a signal ended exits with 128 and its number, as in a shell."""
    run = minisandbox(state_dir, "run", "--", "sh", "-c", "kill -SEGV $$")

    assert (128 + signal.SIGSEGV, b"", b"") == (run.returncode, run.stdout, run.stderr)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--", "/nosuch"), 127, "/nosuch"),
        (("--", "/etc/passwd"), 126, "/etc/passwd"),
        (("--cwd", "/nosuch", "--", "true"), 125, "/nosuch"),
        (("--user", "nosuch", "--", "true"), 125, "nosuch"),
        (("--rootfs", "nosuch", "--", "true"), 125, "nosuch"),
        (("--bind", "/nosuch:/mnt", "--", "true"), 125, "/nosuch"),
    ],
)
def test_failure_to_start_is_told_from_the_program(
    words: tuple[str, ...], code: int, said: str, state_dir: Path
) -> None:
    """126 and 127 as in a shell, 125 for all else of ours, and the line names what was wrong."""
    run = minisandbox(state_dir, "run", *words)

    assert (code, b"") == (run.returncode, run.stdout)
    assert run.stderr.startswith(b"minisandbox: ")
    assert said in run.stderr.decode()


@pytest.mark.enforces("control-groups", "memory-limit")
@pytest.mark.parametrize(
    ("options", "script", "code", "reason"),
    [
        ("--wall-time 0.2", "sleep 300", 137, "ended by the wall-time limit of 0.2 s"),
        ("--cpu-time 0.2", "while :; do :; done", 137, "ended by the CPU-time limit of 0.2 s"),
        (
            "--memory 32M",
            "exec dd if=/dev/zero of=/dev/null bs=64M count=1",
            137,
            "ended by the memory limit of 32 MiB",
        ),
        ("--output 1K", "while :; do echo; done", 137, "ended by the limit of 1 KiB on stdout"),
        ("--output 1K", "while :; do echo >&2; done", 137, "ended by the limit of 1 KiB on stderr"),
        (
            "--disk 1M --inodes 99",
            "head -c 2M /dev/zero > /tmp/x || exit 7",
            7,
            "failed with its disk full: the limit is 1 MiB and 99 files",
        ),
    ],
)
def test_limit_is_named(options: str, script: str, code: int, reason: str, state_dir: Path) -> None:
    """The last line of stderr says which limit ended the command, and the exit code is the program's."""
    run = minisandbox(state_dir, "run", *options.split(), "--", "/bin/sh", "-c", script)

    assert code == run.returncode
    assert f"minisandbox: {reason}" == run.stderr.decode().splitlines()[-1]


@pytest.mark.enforces("processes-limit")
def test_process_limit_is_named(state_dir: Path) -> None:
    """A command that asks for too many processes is ended."""
    script = "for i in 1 2 3 4 5 6 7 8; do sleep 300 & done; wait"
    run = minisandbox(state_dir, "run", "--processes", "4", "--", "/bin/sh", "-c", script)

    assert run.returncode != 0
    assert b"minisandbox: ended by the limit of 4 processes\n" in run.stderr


def test_none_lifts_a_limit(state_dir: Path) -> None:
    """The policy's limits of output and open files are gone, others stay."""
    run = minisandbox(state_dir, "run", "--json", "--output", "none", "--open-files", "none", "--", "true")

    limits = json_of(run)["limits"]
    assert (None, None, None) == (limits["stdout_bytes"], limits["stderr_bytes"], limits["open_files"])
    assert limits["memory_bytes"] is not None


@pytest.mark.enforces("control-groups", "memory-limit", "single-id")
def test_json_is_one_object(state_dir: Path) -> None:
    """Everything about the command is in it, with the limits that held and the steps of the start."""
    run = minisandbox(
        state_dir, "run", "--json", "--trace", "--memory", "64m", "--", "sh", "-c", "echo out; echo err >&2; exit 3"
    )

    result = json_of(run)
    assert 3 == run.returncode
    assert ("exited", 3, None) == (result["exit_reason"], result["exit_code"], result["signal"])
    assert ("out\n", "err\n", None, None) == tuple(
        result[name] for name in ("stdout", "stderr", "stdout_base64", "stderr_base64")
    )
    assert (False, False, []) == (result["stdout_truncated"], result["stderr_truncated"], result["degraded"])
    assert 64 << 20 == result["limits"]["memory_bytes"]
    assert {"wall_time_s", "cpu_time_s", "memory_peak_bytes", "processes_peak", "stdout_bytes"} <= result[
        "usage"
    ].keys()
    assert {"clone", "overlay", "root"} <= result["timing"]["stages"].keys()
    assert 0 < result["timing"]["start_s"] < 30


def test_json_has_bytes_as_base64(state_dir: Path) -> None:
    """Output that is not UTF-8 is not bent into text."""
    run = minisandbox(state_dir, "run", "--json", "--", "printf", r"\377\0")

    result = json_of(run)
    assert (None, b"\xff\0", "") == (result["stdout"], base64.b64decode(result["stdout_base64"]), result["stderr"])


@pytest.mark.parametrize(
    ("program", "code", "kind"), [("/nosuch", 127, "CommandNotFoundError"), ("/etc", 126, "CommandNotExecutableError")]
)
def test_json_of_a_failure(program: str, code: int, kind: str, state_dir: Path) -> None:
    """A failure of ours is an error object with the same exit code as without --json."""
    run = minisandbox(state_dir, "run", "--json", program)

    assert (code, kind) == (run.returncode, json_of(run)["error"]["kind"])


@pytest.mark.enforces("control-groups", "memory-limit", "single-id")
def test_options_of_the_sandbox_hold(state_dir: Path, tmp_path: Path) -> None:
    """User, host name, variable, working directory and binds are those that were asked for."""
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_text("shown\n")
    options = f"--user 1234 --hostname box --env WORD=two=2 --cwd /mnt --bind {tmp_path}:/mnt --network none"
    run = minisandbox(
        state_dir, "run", *options.split(), "--", "sh", "-c", 'id -u; hostname; echo "$WORD"; cat file; : > file'
    )

    assert b"1234\nbox\ntwo=2\nshown\n" == run.stdout
    assert b"Read-only file system" in run.stderr


class NotFound(http.server.BaseHTTPRequestHandler):
    """Knows nothing, and says so."""

    def do_GET(self) -> None:
        """Answer 404."""
        self.send_error(404)

    def log_message(self, *_anything: object) -> None:
        """Keep quiet."""


def test_allowed_endpoints_are_reached_and_no_others(state_dir: Path, tmp_path: Path) -> None:
    """--allow may be repeated; --network none takes away what the policy allows; the default allows nothing."""
    policy = tmp_path / "open.toml"
    script = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])"
    with http.server.HTTPServer(("127.0.0.1", 0), NotFound) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"127.0.0.1:{server.server_port}"
        policy.write_text(f"format = 1\nnetwork.allow = ['{endpoint}']\n")
        words = ["python3", "-c", script, f"http://{endpoint}/"]
        options = (
            f"--allow a.example:1 --allow {endpoint}",
            f"--policy {policy}",
            f"--policy {policy} --network none",
            "",
        )
        said = [minisandbox(state_dir, "run", *given.split(), "--", *words).stderr for given in options]
        server.shutdown()

    assert [True, True, False, False] == [b"404" in text for text in said]


def test_writable_bind_reaches_the_host(state_dir: Path, tmp_path: Path) -> None:
    """What the command writes into a bind with :rw is on the host afterwards."""
    run = minisandbox(state_dir, "run", "--bind", f"{tmp_path}:/mnt:rw", "--", "sh", "-c", "echo kept > /mnt/file")

    assert (0, b"") == (run.returncode, run.stderr)
    assert "kept\n" == (tmp_path / "file").read_text()


@pytest.mark.requires_root
def test_nothing_is_imported_that_draws(state_dir: Path) -> None:
    """A run starts without the modules that only tables and progress bars need."""
    words = [sys.executable, "-X", "importtime", "-m", "minisandbox", "run", "--", "true"]
    run = subprocess.run(words, env=environment(state_dir), stdin=subprocess.DEVNULL, capture_output=True, check=True)

    imported = {line.split("|")[-1].strip().partition(".")[0] for line in run.stderr.decode().splitlines()}
    assert "minisandbox" in imported
    assert "rich" not in imported


def test_command_without_dashes(state_dir: Path) -> None:
    """The first word that is no option begins the command, and its options are its own."""
    run = minisandbox(state_dir, "run", "--cwd", "/tmp", "ls", "-d", "--", ".")

    assert (0, b".\n") == (run.returncode, run.stdout)


def test_python_outside_usr_is_shown(state_dir: Path) -> None:
    """--python-prefix shows this very Python, and puts it first on PATH."""
    prefix = Path(sys.base_prefix)
    if prefix.is_relative_to("/usr"):
        pytest.skip("the Python of these tests is in /usr")
    name = f"python3.{sys.version_info.minor}"
    run = minisandbox(
        state_dir, "run", "--python-prefix", prefix, "--", name, "-c", "import sys; print(sys.base_prefix)"
    )

    assert (f"{prefix}\n", b"") == (run.stdout.decode(), run.stderr)
