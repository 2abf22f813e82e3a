"""The event log: what is in it, what is not, and that nothing waits for it or fails with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from minisandbox import Limits, UsageError, open_supervisor
from minisandbox.runtime.background import background
from minisandbox.runtime.events import BACKLOG_LINES, EventLog, opened_events
from tests.rootless import needed_degradations


def read(path: Path) -> list[dict[str, Any]]:
    """Return the events in a file."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


async def test_a_life_is_logged_from_start_to_close(state_dir: Path, tmp_path: Path) -> None:
    """In order, with the stages of the start, exit reasons and usage; and no word of the command line."""
    log = tmp_path / "events.jsonl"
    async with open_supervisor(state_dir=state_dir, degrade=needed_degradations(), events=log) as supervisor:
        async with supervisor.open_sandbox(trace=True) as sandbox:
            await sandbox.run("echo s3cret; exit 3", env={"TOKEN": "s3cret"})
            await sandbox.run(["sleep", "60"], limits=Limits(wall_time_s=0.05))
    events = read(log)

    kinds = ["started", "opened", "run_begin", "run_end", "run_begin", "run_end", "closed"]
    assert kinds == [event["event"] for event in events]
    assert {"clone", "overlay", "root"} <= events[0]["stages"].keys()
    ends = [(event["exit_reason"], event["exit_code"]) for event in events if event["event"] == "run_end"]
    assert [("exited", 3), ("wall_time", None)] == ends
    assert 1 == len({(event["instance"], event["sandbox"]) for event in events})
    assert b"s3cret" not in log.read_bytes()
    assert 0o600 == log.stat().st_mode & 0o777


async def test_argv_is_logged_for_those_who_ask(state_dir: Path) -> None:
    """A function gets each event as it happens."""
    events: list[Mapping[str, object]] = []
    async with open_supervisor(
        state_dir=state_dir, events=events.append, event_argv=True, self_test=False
    ) as supervisor:
        async with supervisor.open_sandbox() as sandbox:
            await sandbox.run(["echo", "hi"])

    assert [["echo", "hi"]] == [event["argv"] for event in events if event["event"] == "run_begin"]


async def test_a_receiver_that_fails_fails_nothing(state_dir: Path) -> None:
    """What it raises is counted, and the sandbox is closed as any other."""

    def fail(_: object) -> None:
        raise RuntimeError("a bug")

    async with open_supervisor(
        state_dir=state_dir, degrade=needed_degradations(), events=fail, self_test=False
    ) as supervisor:
        async with supervisor.open_sandbox() as sandbox:
            result = await sandbox.run(["true"])
        lost, live = supervisor.telemetry.events_lost, supervisor.live

    assert (True, 5, 0) == (result.ok, lost, live)


async def test_a_full_disk_loses_events_and_nothing_else(state_dir: Path) -> None:
    """/dev/full says ENOSPC to every write (full(4))."""
    async with open_supervisor(
        state_dir=state_dir, degrade=needed_degradations(), events=Path("/dev/full"), self_test=False
    ) as supervisor:
        async with supervisor.open_sandbox() as sandbox:
            result = await sandbox.run(["true"])
        telemetry = supervisor.telemetry

    assert result.ok
    assert 5 == telemetry.events_lost


async def test_a_line_that_was_torn_spoils_no_other(tmp_path: Path) -> None:
    """What was written in part is counted as lost, and the next line begins on a line of its own."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK)
    os.write(write_fd, b"x" * 65536)  # full (pipe(7))
    os.read(read_fd, 4096)
    lost: list[int] = []
    log = EventLog(write_fd, lost.append)
    async with background(log.serve):
        log.add({"big": "y" * 6000})
        with trio.fail_after(10):
            await log.wait_written()
        os.read(read_fd, 65536)
        log.add({"small": 1})
        with trio.fail_after(10):
            await log.wait_written()
    last = os.read(read_fd, 65536).splitlines()[-1]
    os.close(read_fd)
    os.close(write_fd)

    assert ([1], {"small": 1}) == (lost, msgspec.json.decode(last))


async def test_what_waits_is_bounded() -> None:
    """Nothing is written meanwhile, as with a disk that hangs: the rest is counted."""
    lost: list[int] = []
    log = EventLog(-1, lost.append)
    for _ in range(BACKLOG_LINES + 7):
        log.add({})

    assert [1] * 7 == lost


async def test_a_log_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    """Before anything is started, with the path."""
    with pytest.raises(UsageError, match=r"cannot write the event log .*missing"):
        async with opened_events(tmp_path / "missing" / "log", lambda _: None):
            pass
