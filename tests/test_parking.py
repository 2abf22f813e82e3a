"""Parked sandboxes: started ahead for kinds that are opened often, each handed out once, and as good as a fresh one."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
import trio

from minisandbox import ExitReason, Limits, Supervisor, open_supervisor
from tests import observer

MIB = 1 << 20


async def open_often(supervisor: Supervisor, times: int = 6, **options: object) -> None:
    """Make a kind of sandbox one that is worth parking."""
    for _ in range(times):
        async with supervisor.open_sandbox(**options):  # type: ignore[arg-type]
            pass


async def wait_parked(supervisor: Supervisor, number: int) -> None:
    """Wait until so many are parked, and no other is open."""
    await observer.wait_until(
        lambda: supervisor.parking.parked == len(observer.inits()) == number, trio.lowlevel.checkpoint
    )
    assert supervisor.live == 0


async def test_a_kind_that_is_opened_often_is_parked(supervisor: Supervisor) -> None:
    """Not at the first sight of it; and what is parked is not counted as open."""
    async with supervisor.open_sandbox():
        first = supervisor.parking.parked
    await open_often(supervisor)
    await wait_parked(supervisor, 4)

    assert (0, 0, 4) == (first, supervisor.live, len(observer.inits()))


async def test_a_parked_sandbox_is_handed_out_once(supervisor: Supervisor) -> None:
    """Each has its own files, whoever had the slot before, and no two are the same."""
    await open_often(supervisor)
    await wait_parked(supervisor, 4)
    seen = []
    for number in range(12):
        async with supervisor.open_sandbox() as sandbox:
            look = f"ls /tmp; ps -e -o comm= | grep -c sleep; touch /tmp/{number}; sleep 300 >/dev/null 2>&1 &"
            seen.append((await sandbox.run(look)).stdout)
    async with contextlib.AsyncExitStack() as stack:
        sandboxes = [await stack.enter_async_context(supervisor.open_sandbox()) for _ in range(8)]
        numbers = {sandbox.slot.number for sandbox in sandboxes}

    assert [b"0\n"] * 12 == seen
    assert len(numbers) == 8


async def test_a_parked_sandbox_has_what_was_asked_for(supervisor: Supervisor) -> None:
    """Limits, user, environment and host name are those of the one who opens it, not of those who came before."""
    await open_often(supervisor, limits=Limits(memory_bytes=512 * MIB), env={"A": "before"})
    await wait_parked(supervisor, 4)
    parked = supervisor.parking.parked
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=48 * MIB), env={"A": "mine"}) as small:
        handed_out = parked - supervisor.parking.parked
        memory = await small.run(["python3", "-c", "bytearray(1 << 28)"])
        shown = await small.run(["printenv", "A"])
    async with supervisor.open_sandbox(limits=Limits(disk_bytes=MIB)) as narrow:
        disk = await narrow.run("head -c 2M /dev/zero > /tmp/x")
    async with supervisor.open_sandbox(policy="strict", hostname="other") as other:
        named = await other.run("id -u; hostname; ls /proc/sys 2>/dev/null")

    assert handed_out == 1
    assert [ExitReason.MEMORY, ExitReason.DISK] == [memory.exit_reason, disk.exit_reason]
    assert (b"mine\n", b"65534\nother\n") == (shown.stdout, named.stdout)


async def test_a_parked_sandbox_that_died_is_not_handed_out(supervisor: Supervisor) -> None:
    """Whatever killed it, the one who asks gets one that works, and no slot is lost.

    The supervisor reads nothing between the deaths and the first one who asks.
    """
    await open_often(supervisor)
    await wait_parked(supervisor, 4)
    inits = observer.inits()
    with observer.watched(inits) as pidfds:
        for init in inits:
            init.kill()
        while not all(observer.ended(pidfds)):
            time.sleep(0.001)  # not trio's: its reactor would read of the deaths
    results = []
    for _ in range(6):
        async with supervisor.open_sandbox() as sandbox:
            results.append(await sandbox.run(["true"]))

    assert (True, ()) == (all(result.ok for result in results), supervisor.quarantined)


async def test_parked_sandboxes_make_room(state_dir: Path) -> None:
    """As many can be open as there may be: what is parked is given up for one that is asked for."""
    async with open_supervisor(state_dir=state_dir, max_sandboxes=4, max_parked=3) as supervisor:
        await open_often(supervisor)
        await wait_parked(supervisor, 3)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                sandbox = await stack.enter_async_context(supervisor.open_sandbox(hostname="another-kind"))
                assert (await sandbox.run(["true"])).ok
            assert (4, 0) == (supervisor.live, supervisor.parking.parked)


async def test_what_is_not_asked_for_any_more_is_closed(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some time without demand nothing of the kind runs."""
    monkeypatch.setattr("minisandbox.runtime.parking.IDLE_S", 0.3)
    async with open_supervisor(state_dir=state_dir) as supervisor:
        await open_often(supervisor)
        await wait_parked(supervisor, 4)
        with observer.watched(observer.inits()) as pidfds:
            await observer.wait_ended(pidfds)

        assert len(pidfds) >= 4
        assert 0 == supervisor.parking.parked


async def test_closing_the_supervisor_closes_what_is_parked(state_dir: Path) -> None:
    """Also while more is being started."""
    with contextlib.ExitStack() as stack:
        async with open_supervisor(state_dir=state_dir) as supervisor:
            await open_often(supervisor)
            pidfds = stack.enter_context(observer.watched(observer.inits()))
        await observer.wait_ended(pidfds, 1.0)


async def test_nothing_is_parked_when_that_is_not_wanted(state_dir: Path) -> None:
    """With `max_parked=0` a sandbox is there only while it is open."""
    async with open_supervisor(state_dir=state_dir, max_parked=0) as supervisor:
        await open_often(supervisor)

        assert ([], 0) == (observer.inits(), supervisor.parking.parked)
