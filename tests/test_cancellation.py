"""Ends that nobody planned: cancelled, closed, killed. Each is prompt and typed, and nothing is left of the sandbox."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from minisandbox import BrokenError, ClosedError, ExitReason, Limits, Sandbox, Supervisor, open_supervisor
from tests import observer
from tests.census import own_cgroups

PROMPT_S = 10.0
TREE = "sleep 300 & setsid sh -c 'sleep 300 & sleep 300' & (trap '' TERM; sleep 300 & echo on; wait)"


# ---- cancelling


async def test_cancelling_a_run_kills_its_tree_and_nothing_else(sandbox: Sandbox) -> None:
    """Whatever it started, in whatever session, is gone; another command of the sandbox goes on; it can be used again."""
    async with trio.open_nursery() as nursery:
        other = await observer.start(nursery, sandbox, "echo on; exec sleep 300")
        (survivor,) = observer.workload()
        victim = await observer.start(nursery, sandbox, TREE)
        doomed = [process for process in observer.workload() if process != survivor]
        with observer.watched(doomed) as pidfds:
            victim.scope.cancel()
            await victim.wait(PROMPT_S)
            await observer.wait_ended(pidfds)
        again = await sandbox.run(["echo", "alive"])
        alone = observer.workload()
        other.scope.cancel()

    assert len(doomed) >= 5
    assert (None, None) == (victim.result, victim.error)
    assert [survivor] == alone
    assert again.stdout == b"alive\n"


async def test_a_timeout_of_the_caller_is_one(sandbox: Sandbox) -> None:
    """trio's own deadline ends a command that is deaf to signals, and says so in trio's own way."""
    with trio.move_on_after(0.2) as scope:
        await sandbox.run("trap '' TERM INT; while :; do :; done")

    assert scope.cancelled_caught
    await observer.wait_no_workload(sandbox)


async def test_a_cancelled_run_gives_everything_back(sandbox: Sandbox) -> None:
    """Twenty of them, cancelled at different moments, leave no descriptor, no zombie, and an account that starts at zero."""
    await sandbox.run(["true"], stdin=b"x")
    before = observer.descriptors()
    for milliseconds in range(20):
        with trio.move_on_after(milliseconds / 1000):
            await sandbox.run("head -c 20M /dev/zero | cat >&2; exec sleep 300", stdin=b"x" * 1_000_000)
    await sandbox.run(["true"], stdin=b"x")
    usage = (await sandbox.run(["true"])).usage

    assert before == observer.descriptors()
    assert usage.memory_peak_bytes is None or usage.memory_peak_bytes < 8 << 20
    await observer.wait_no_workload(sandbox)
    assert [] == observer.zombies()


async def test_a_start_that_is_cancelled_leaves_nothing(supervisor: Supervisor) -> None:
    """At whatever moment: no init, no slot in use, and the next start works."""
    async with supervisor.open_sandbox():
        pass
    for step in range(30):
        with trio.move_on_after(step / 5000):
            async with supervisor.open_sandbox():
                await trio.sleep_forever()
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run(["echo", "alive"])
        inits = observer.inits()

    assert (b"alive\n", 1, ()) == (result.stdout, len(inits), supervisor.quarantined)
    assert supervisor.live == 0


@pytest.mark.parametrize("direction", ["read", "write"])
async def test_a_transfer_that_is_cancelled_leaves_the_sandbox_usable(sandbox: Sandbox, direction: str) -> None:
    """And no descriptor of it stays open."""
    data = bytes(32 << 20)
    await sandbox.write_file("/tmp/file", data)
    transfer: Callable[[], Awaitable[object]] = lambda: sandbox.read_file("/tmp/file")  # noqa: E731
    if direction == "write":
        transfer = lambda: sandbox.write_file("/tmp/other", data)  # noqa: E731
    await transfer()
    before = observer.descriptors()
    for step in range(12):
        with trio.move_on_after(step / 1000):
            await transfer()
    result = await sandbox.run(["echo", "alive"])

    assert result.stdout == b"alive\n"
    assert before == observer.descriptors()


# ---- closing


async def test_closing_kills_what_runs_and_is_prompt(supervisor: Supervisor) -> None:
    """Reports 17, 36, tool report 37: commands, background processes and locked directories do not hold it up."""
    async with trio.open_nursery() as nursery:
        async with supervisor.open_sandbox() as sandbox:
            await sandbox.run("mkdir -p /tmp/a/b && chmod 000 /tmp/a; (sleep 300 &); exit 1")
            running = await observer.start(nursery, sandbox, TREE)
            with observer.watched([*observer.inits(), *observer.workload()]) as pidfds:
                begun = trio.current_time()
                nursery.start_soon(observer.wait_ended, list(pidfds))
                await running_is_visible(pidfds)
                await close_now(sandbox, supervisor)
                took = trio.current_time() - begun
                await observer.wait_ended(pidfds)
        await running.wait()

    assert isinstance(running.error, ClosedError | BrokenError)
    assert took < PROMPT_S


async def running_is_visible(pidfds: list[int]) -> None:
    """Check that there is something to be killed."""
    assert len(pidfds) >= 6
    await trio.lowlevel.checkpoint()
