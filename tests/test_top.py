"""`minisandbox top` and the status socket: what they show is what runs, and asking disturbs nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from minisandbox import Supervisor, open_supervisor
from minisandbox.cli.top import head_lines
from minisandbox.images.state import STATUS_SUFFIX, StateDir
from minisandbox.runtime.status import reaching, status_of
from minisandbox.runtime.top import find_sockets, look
from tests import cli, observer
from tests.rootless import needed_degradations


async def top(state_dir: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command beside the supervisors of this process."""
    return await trio.to_thread.run_sync(lambda: cli.minisandbox(state_dir, "top", "--once", *words))


def rows_of(seen: Any, supervisor: Supervisor) -> list[Any]:
    """Return the rows of one supervisor; others may run on this host."""
    return [row for row in seen["rows"] if row["instance"] == supervisor.telemetry.instance]


@pytest.mark.enforces("control-groups", "memory-limit", "processes-limit")
async def test_it_shows_what_each_sandbox_does(supervisor: Supervisor, state_dir: Path) -> None:
    """One that is busy and one whose last command exited with 3, with their counters."""
    async with supervisor.open_sandbox() as busy, supervisor.open_sandbox() as idle, trio.open_nursery() as nursery:
        await observer.start(nursery, busy, "echo on; while :; do :; done")
        await idle.run("exit 3")
        seen = cli.json_of(await top(state_dir, "--json"))
        table = (await top(state_dir)).stdout.decode()
        nursery.cancel_scope.cancel()
    first, second = rows_of(seen, supervisor)

    assert [1, 0] == [first["sandbox"]["running"], second["sandbox"]["running"]]
    assert (1, "exited 3", 0) == (first["processes"], second["sandbox"]["last"], second["processes"])
    assert first["cpus"] > second["cpus"]
    assert 0 < first["memory_bytes"] < first["sandbox"]["memory_limit_bytes"]
    assert "1 running" in table
    assert "exited 3" in table


async def test_it_shows_who_waits_to_be_let_in(state_dir: Path) -> None:
    """Since when, with which priority, and for what."""
    async with (
        open_supervisor(
            state_dir=state_dir, max_sandboxes=1, self_test=False, degrade=needed_degradations()
        ) as supervisor,
        trio.open_nursery() as nursery,
    ):
        async with supervisor.open_sandbox():
            nursery.start_soon(_open, supervisor)
            with trio.fail_after(20):
                await observer.wait_until(lambda: bool(supervisor.queue.waiting), trio.lowlevel.checkpoint)
            header, _ = status_of(supervisor)
            nursery.cancel_scope.cancel()
    first, second = head_lines(header, header.waiting[0].since + 3.0)

    assert "1 queued of 1, 512 MiB promised" in first
    assert "  1. in the queue for 3s, priority 7, waits for slots: 1 asked for, 0 left" == second


async def _open(supervisor: Supervisor) -> None:
    async with supervisor.open_sandbox(priority=7):
        pass


async def test_it_finds_supervisors_of_other_state_directories(supervisor: Supervisor, tmp_path: Path) -> None:
    """By their launchers, whichever directory was named."""
    seen = cli.json_of(await top(tmp_path / "nothing here", "--json"))

    assert supervisor.telemetry.instance in {each["instance"] for each in seen["supervisors"]}


async def test_a_supervisor_that_hangs_is_named(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked from its own loop here, which cannot answer meanwhile."""
    monkeypatch.setattr("minisandbox.runtime.top.PATIENCE_S", 0.1)
    seen = look(supervisor.state.path)

    assert supervisor.telemetry.instance in seen.silent


async def test_one_who_asks_and_does_not_read_holds_up_nobody(supervisor: Supervisor) -> None:
    """Connections are left open and unread; sandboxes go on, and the next one is answered when they are dropped."""
    (path,) = (path for path in find_sockets(supervisor.state.path) if supervisor.telemetry.instance in path.name)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            with reaching(path) as name:
                connection.connect(name)
        async with supervisor.open_sandbox() as sandbox:
            result = await sandbox.run(["true"])
    with trio.fail_after(20):
        seen = await trio.to_thread.run_sync(look, supervisor.state.path)

    assert result.ok
    assert supervisor.telemetry.instance in {each.instance for each in seen.supervisors}


OWNER = """
import sys, trio
from pathlib import Path
from minisandbox import open_supervisor

async def main():
    async with open_supervisor(state_dir=Path(sys.argv[1]), self_test=False):
        print("ready", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.enforces("control-groups", "single-id")
@pytest.mark.usefixtures("state_dir")
async def test_the_socket_of_a_dead_supervisor_is_swept(tmp_path: Path) -> None:
    """It is shown as nothing, and the next start removes it; that of a live one stays."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, env={"PYTHONPATH": str(cli.ROOT)}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"ready\n" == process.stdout.readline()
        with contextlib.ExitStack() as stack:
            pidfds = stack.enter_context(observer.watched([observer.launcher(process.pid)]))
            process.send_signal(signal.SIGKILL)
            await observer.wait_ended(pidfds)
    (dead,) = find_sockets_in(tmp_path)
    seen = look(tmp_path)
    async with open_supervisor(state_dir=tmp_path, self_test=False):
        StateDir.open(tmp_path)
        (live,) = find_sockets_in(tmp_path)
    left = os.listdir(tmp_path / "instances")

    assert dead != live
    assert dead.removesuffix(STATUS_SUFFIX) not in {*seen.silent, *(each.instance for each in seen.supervisors)}
    assert [] == left


def find_sockets_in(state_dir: Path) -> list[str]:
    """Return the names of the sockets of a state directory."""
    return [name for name in os.listdir(state_dir / "instances") if name.endswith(STATUS_SUFFIX)]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """--json without --once would never end, and an interval of 0 would keep a core busy."""
    for words in (["--json"], ["--interval", "0"]):
        run = cli.minisandbox(tmp_path, "top", *words)

        assert 64 == run.returncode
