"""Actions in a real sandbox: what a policy sees of them, and what it is told when it is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

import minisandbox
from minisandbox.rollout.actions import FILE_MAX_BYTES, bounded, perform
from minisandbox.rollout.spec import Action, Edit, Outcome, Read, Run, Submit, Write
from minisandbox.spec import ExitReason
from minisandbox.tasks.environment import open_environment
from tests.rollout.players import DEADLINE_S, file_task

ROOT = "/submission"


class Desk:
    """A sandbox to act in."""

    def __init__(self, sandbox: minisandbox.Sandbox) -> None:
        self.sandbox = sandbox

    async def do(self, action: Action, *, within_s: float | None = 60.0, outcome_bytes: int = 1000) -> Outcome:
        """Do one thing, in time."""
        with trio.fail_after(DEADLINE_S):
            return await perform(action, self.sandbox, ROOT, within_s=within_s, outcome_bytes=outcome_bytes)


@pytest.fixture
async def desk(supervisor: minisandbox.Supervisor) -> AsyncIterator[Desk]:
    """A sandbox of a task."""
    async with open_environment(supervisor, file_task(note="a b a\n")) as sandbox:
        yield Desk(sandbox)


async def test_a_command_runs_where_the_task_is_worked_on(desk: Desk) -> None:
    """With its input, and its output, exit code and usage come back."""
    outcome = await desk.do(Run(command="pwd; cat; ls; echo no >&2; exit 3", stdin=b"in\n"))

    assert (b"/submission\nin\nnote\n", b"no\n") == (outcome.stdout, outcome.stderr)
    assert (ExitReason.EXITED, 3, False) == (outcome.exit_reason, outcome.exit_code, outcome.truncated)
    assert outcome.usage is not None


@pytest.mark.parametrize(("own_s", "within_s"), [(0.2, 60.0), (None, 0.2), (60.0, 0.2)])
async def test_a_command_ends_at_the_nearer_of_its_bounds(desk: Desk, own_s: float | None, within_s: float) -> None:
    """Its own, or that of a turn."""
    outcome = await desk.do(Run(command="sleep 100", wall_time_s=own_s), within_s=within_s)

    assert ExitReason.WALL_TIME is outcome.exit_reason


async def test_long_output_shows_both_ends(desk: Desk) -> None:
    """As much as the budget says, and it says that something is left out."""
    outcome = await desk.do(Run(command="seq 10000"), outcome_bytes=100)

    assert outcome.truncated
    assert outcome.stdout.startswith(b"1\n2\n")
    assert outcome.stdout.endswith(b"9999\n10000\n")
    assert 100 == len(outcome.stdout)


async def test_output_that_just_fits_is_whole(desk: Desk) -> None:
    """Nothing is left out of as much as is allowed."""
    outcome = await desk.do(Run(command="printf 0123456789"), outcome_bytes=10)

    assert (b"0123456789", False) == (outcome.stdout, outcome.truncated)
    assert (b"0189", b"01289") == (bounded(b"0123456789", 4), bounded(b"0123456789", 5))


async def test_files_are_written_read_and_edited(desk: Desk) -> None:
    """In directories that are made, and what could be executed stays so."""
    assert Outcome() == await desk.do(Write(path="deep/er/run", content=b"#!/bin/sh\necho one\n", executable=True))
    assert Outcome() == await desk.do(Edit(path="deep/er/run", old="one", new="two"))
    assert b"#!/bin/sh\necho two\n" == (await desk.do(Read(path="deep/er/run"))).stdout
    assert b"two\n" == (await desk.do(Run(command="deep/er/run"))).stdout
    assert Outcome() == await desk.do(Write(path="/etc/own", content=b"x"))
    assert b"x" == (await desk.do(Read(path="/etc/own"))).stdout


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (Read(path="absent"), "No such file"),
        (Read(path="."), "directory"),
        (Read(path="/proc/self/status"), "cannot read"),
        (Read(path="nul\0"), "path"),
        (Write(path="note/below", content=b""), "cannot write"),
        (Write(path="/proc/x", content=b""), "cannot write"),
        (Edit(path="note", old="a", new="b"), "2 times"),
        (Edit(path="note", old="z", new="b"), "0 times"),
        (Edit(path="note", old="", new="b"), "0 times"),
        (Edit(path="absent", old="a", new="b"), "No such file"),
        (Run(command="nul\0"), "NUL"),
        (Run(command="x" * (1 << 20)), "longer than"),
    ],
)
async def test_what_cannot_be_done_is_told(desk: Desk, action: Action, error: str) -> None:
    """The sandbox goes on, and so does the episode."""
    outcome = await desk.do(action)

    assert error in (outcome.error or ""), outcome
    assert b"ok\n" == (await desk.do(Run(command="echo ok"))).stdout


async def test_a_file_that_is_too_large_is_not_read(desk: Desk) -> None:
    """A command can show a part of it."""
    assert (await desk.do(Run(command=f"head -c {FILE_MAX_BYTES + 1} /dev/zero > big"))).exit_code == 0

    assert "larger than" in ((await desk.do(Read(path="big"))).error or "")


async def test_a_missing_shell_or_directory_is_no_failure_of_ours(desk: Desk) -> None:
    """Whatever a policy removes, it is told so."""
    await desk.do(Run(command="rm -rf /submission"))
    assert "working directory" in ((await desk.do(Run(command="true"))).error or "")
    await desk.do(Write(path="/submission/new", content=b""))
    await desk.do(Run(command="mv /bin /elsewhere"))

    assert "/bin/sh" in ((await desk.do(Run(command="true"))).error or "")


@pytest.mark.enforces("control-groups", "memory-limit")
async def test_a_full_disk_and_a_full_memory_are_told(desk: Desk) -> None:
    """They are limits that were hit, and nothing that is tried again."""
    full = await desk.do(Run(command="cat /dev/zero > /tmp/fill"))
    assert full.exit_reason in (ExitReason.DISK, ExitReason.MEMORY)
    again = await desk.do(Write(path="more", content=b"x" * 100_000))

    assert "cannot write" in (again.error or "")


async def test_submitting_does_nothing(desk: Desk) -> None:
    """It only ends the episode."""
    assert Outcome() == await desk.do(Submit(note="done"))
