"""How `minisandbox run` ends early: a signal to us, a reader that goes away or does not read, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from minisandbox.kernel.host import status_fields
from tests.cli import json_of, started, wait_while


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_us_ends_everything(number: signal.Signals, state_dir: Path) -> None:
    """The exit code is 128 and the signal, and no process, control group or lock is left."""
    with started(state_dir, "--", "sh", "-c", "echo ready; sleep 300 & sleep 300") as process:
        assert process.stdout is not None
        assert b"ready\n" == process.stdout.readline()
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)

    assert (128 + number, b"") == (process.returncode, stderr)
    assert [] == os.listdir(state_dir / "instances")


def test_signal_to_us_is_json_where_asked(state_dir: Path) -> None:
    """There is still exactly one object on stdout."""
    with started(state_dir, "--json", "--", "sleep", "300") as process:
        wait_while(lambda: has_no_launcher(process), process)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=30)

    run = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    assert (143, "Interrupted") == (run.returncode, json_of(run)["error"]["kind"])


def test_reader_that_goes_away_ends_the_command(state_dir: Path) -> None:
    """As in a pipeline with head: quietly, with the exit code of SIGPIPE."""
    with started(state_dir, "--", "yes") as process:
        assert process.stdout is not None
        assert b"y\n" == process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        stderr = process.stderr.read()

    assert (128 + signal.SIGPIPE, b"") == (process.wait(), stderr)


def test_full_disk_under_our_stdout_is_our_failure(state_dir: Path) -> None:
    """What cannot be passed on is an error, never silently lost."""
    with open("/dev/full", "wb") as full, started(state_dir, "--", "echo", "lost", stdout=full) as process:
        _, stderr = process.communicate(timeout=30)

    assert 125 == process.returncode
    assert b"minisandbox: cannot pass on what the command printed: No space left on device\n" == stderr


@pytest.mark.slow
def test_slow_reader_slows_the_command_down(state_dir: Path) -> None:
    """Half a gigabyte does not pile up in our memory for a reader that has not begun, and none of it is lost."""
    size = 1 << 29
    words = ("--output", "none", "--", "head", "-c", str(size), "/dev/zero")
    with started(state_dir, *words, bufsize=0) as process:
        assert process.stdout is not None
        read_bytes = len(process.stdout.read(1))
        wait_while(lambda: works(process), process)
        peak_kib = int(status_fields(Path(f"/proc/{process.pid}/status").read_text())["VmHWM"].split()[0])
        while chunk := process.stdout.read(1 << 20):
            read_bytes += len(chunk)

    assert (size, 0) == (read_bytes, process.wait())
    assert peak_kib < 200 * 1024


def has_no_launcher(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has not started a launcher yet."""
    return "minisandbox-l" not in [child.name() for child in psutil.Process(process.pid).children()]


def works(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a thread of a process is seen not to sleep at one of 100 looks (proc_pid_stat(5))."""
    for _ in range(100):
        threads = Path(f"/proc/{process.pid}/task").glob("*/stat")
        if {path.read_text().rpartition(")")[2].split()[0] for path in threads} != {"S"}:
            return True
        os.sched_yield()
    return False
