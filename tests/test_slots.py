"""The pool of slots: one sandbox at a time in each, none before it is proved empty, none lost when a start fails."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from minisandbox import BrokenError, BusyError, Limits, StartError, open_supervisor
from minisandbox.kernel.cgroup import CgroupTree, detect_layout
from minisandbox.kernel.ids import IdRange
from minisandbox.kernel.launcher import Launcher
from minisandbox.kernel.protocol import SLOT_IDS
from minisandbox.runtime.background import background
from minisandbox.runtime.slots import COOLING_DEADLINE_S, SlotPool
from minisandbox.runtime.telemetry import Telemetry
from tests.cgroup_lab import Start, new_instance, spawn_program, start

__all__ = ["spawn_program", "start"]  # fixtures, which tests ask for by name

pytestmark = pytest.mark.requires_root

NO_LIMITS = Limits()
BASE = 1 << 28


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    """An open tree of control groups; nothing of it stays."""
    opened = CgroupTree.create(detect_layout(), new_instance())
    yield opened
    assert [] == opened.close()


class Namespaces:
    """Stands in for a launcher that makes slots, fails at it, or takes its time."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        self.failure: Exception | None = None
        self.ready: trio.Event | None = None

    async def revive(self) -> None:
        """It never dies."""

    async def ensure_slot(self, number: int, uid_base: int) -> None:
        """It has each slot that it made."""

    async def make_slot(self, number: int, uid_base: int) -> None:
        """Make a slot as told."""
        if self.ready is not None:
            await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        self.made.append((number, uid_base))


@contextlib.asynccontextmanager
async def pool_of(tree: CgroupTree, namespaces: Namespaces, limit: int) -> AsyncIterator[SlotPool]:
    """A pool that takes slots back."""
    pool = SlotPool(cast(Launcher, namespaces), tree, IdRange(BASE, []), limit, Telemetry(""))
    async with background(pool.serve):
        yield pool


async def test_each_slot_has_ids_of_its_own(tree: CgroupTree, autojump_clock: MockClock) -> None:
    """Ranges do not overlap, and the last one may be used."""
    async with pool_of(tree, Namespaces(), 3) as pool:
        slots = [await pool.acquire(NO_LIMITS) for _ in range(3)]
        with pytest.raises(BusyError, match="max_sandboxes"):
            await pool.acquire(NO_LIMITS)

    assert {BASE, BASE + SLOT_IDS, BASE + 2 * SLOT_IDS} == {slot.uid_base for slot in slots}
    assert all(slot.uid_base <= slot.warden_uid < slot.uid_base + SLOT_IDS for slot in slots)


async def test_a_slot_in_use_is_never_handed_out(tree: CgroupTree, autojump_clock: MockClock) -> None:
    """Report 41: while others come and go, the slot of an open sandbox stays its own."""
    async with pool_of(tree, Namespaces(), 4) as pool:
        leased = await pool.acquire(NO_LIMITS)
        for _ in range(50):
            others = [await pool.acquire(NO_LIMITS) for _ in range(3)]
            assert leased not in others
            assert len({slot.number for slot in others}) == 3
            for slot in others:
                pool.release(slot, [])


async def test_a_slot_that_cools_is_waited_for(tree: CgroupTree, autojump_clock: MockClock) -> None:
    """With one slot in all, a start after an end is no error, and nothing new is made."""
    namespaces = Namespaces()
    async with pool_of(tree, namespaces, 1) as pool:
        for _ in range(20):
            pool.release(await pool.acquire(NO_LIMITS), [])

    assert len(namespaces.made) == 1


async def test_a_slot_that_stays_populated_is_quarantined(
    tree: CgroupTree, start: Start, autojump_clock: MockClock
) -> None:
    """It is not handed out while a process lives in it, and after a deadline never again."""
    async with pool_of(tree, Namespaces(), 2) as pool:
        slot = await pool.acquire(NO_LIMITS)
        run = slot.cgroup.open_run(0)
        start(run, "sh", "-c", "echo up; exec sleep 300", until=b"up\n")
        pool.release(slot, [run])
        other = await pool.acquire(NO_LIMITS)
        await trio.sleep(COOLING_DEADLINE_S + 1)
        quarantined = list(pool.quarantined)

    assert other is not slot
    assert [slot] == quarantined


async def test_a_slot_that_could_not_be_made_can_be_tried_again(tree: CgroupTree, autojump_clock: MockClock) -> None:
    """The failure comes out as it is, and no number is lost."""
    namespaces = Namespaces()
    async with pool_of(tree, namespaces, 1) as pool:
        for _ in range(3):
            namespaces.failure = StartError("cannot make namespaces", "slot_netns", errno.ENOSPC)
            with pytest.raises(StartError, match="slot_netns"):
                await pool.acquire(NO_LIMITS)
        namespaces.failure = None
        slot = await pool.acquire(NO_LIMITS)

    assert slot.number == 0


async def test_a_launcher_that_is_gone_is_said_to_be(tree: CgroupTree, autojump_clock: MockClock) -> None:
    """Every further start gets the same error, not one about too many sandboxes."""
    namespaces = Namespaces()
    namespaces.failure = BrokenError("the launcher is gone")
    async with pool_of(tree, namespaces, 1) as pool:
        for _ in range(3):
            with pytest.raises(BrokenError, match="gone"):
                await pool.acquire(NO_LIMITS)


async def test_a_slot_whose_start_is_cancelled_is_not_lost(tree: CgroupTree, autojump_clock: MockClock) -> None:
    """Given up while its namespaces are made, it is there for the next start."""
    namespaces = Namespaces()

    async def take_and_give_back() -> None:
        pool.release(await pool.acquire(NO_LIMITS), [])

    async with pool_of(tree, namespaces, 1) as pool:
        namespaces.ready = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_and_give_back)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            namespaces.ready.set()
        slot = await pool.acquire(NO_LIMITS)

    assert (0, 1) == (slot.number, len(namespaces.made))


async def test_a_cancelled_start_does_not_lose_its_slot(state_dir: Path) -> None:
    """The same with the real launcher: whenever it is cancelled, the one sandbox that there may be opens afterwards."""
    for step in range(10):
        async with open_supervisor(state_dir=state_dir, max_sandboxes=1) as supervisor:
            with trio.move_on_after(step / 2000):
                async with supervisor.open_sandbox():
                    await trio.sleep_forever()
            async with supervisor.open_sandbox() as sandbox:
                assert (await sandbox.run(["true"])).ok
