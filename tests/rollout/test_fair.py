"""The queue: bounded, by priority, fair between groups."""

from __future__ import annotations

from dataclasses import dataclass

import trio
import trio.testing

from minisandbox.rollout.fair import FairQueue


@dataclass(frozen=True)
class Item:
    """Something to queue."""

    name: str
    group: str = "a"
    priority: int = 0


async def filled(*items: Item, limit: int = 100) -> FairQueue[Item]:
    """Return a queue of these, to which no more come."""
    queue: FairQueue[Item] = FairQueue(limit)
    for item in items:
        await queue.put(item)
    queue.end()
    return queue


async def names(queue: FairQueue[Item]) -> str:
    """Take all, and return their names in order."""
    taken = ""
    while (item := await queue.take()) is not None:
        taken += item.name
    return taken


async def test_one_group_keeps_its_order() -> None:
    """First in, first out."""
    assert "123" == await names(await filled(Item("1"), Item("2"), Item("3")))


async def test_the_lower_priority_number_comes_first() -> None:
    """Whatever the groups are, and also when it came later."""
    assert "132" == await names(await filled(Item("1"), Item("2", priority=1), Item("3", "b")))
    assert "21" == await names(await filled(Item("1", priority=5), Item("2", "b", priority=-5)))


async def test_a_large_group_does_not_keep_a_small_one_waiting() -> None:
    """Groups take turns, since each that runs counts."""
    items = [Item(str(number)) for number in range(5)]

    assert "0x1y234" == await names(await filled(*items, Item("x", "b"), Item("y", "b")))


async def test_the_group_with_the_fewest_running_is_next() -> None:
    """What ended counts no more."""
    queue = await filled(*(Item(name) for name in "1234"), *(Item(name, "b") for name in "xyz"))
    first = [await queue.take() for _ in range(4)]
    for item in first:
        if item is not None and item.group == "b":
            queue.done(item)

    assert "1x2y" == "".join(item.name for item in first if item)
    assert Item("z", "b") == await queue.take()


async def test_a_full_queue_holds_its_source_back() -> None:
    """No more is taken from it than there is room for."""
    queue: FairQueue[Item] = FairQueue(2)
    put: list[int] = []

    async def feed() -> None:
        for number in range(5):
            await queue.put(Item(str(number)))
            put.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        await trio.testing.wait_all_tasks_blocked()
        assert ([0, 1], 2) == (put, len(queue))
        assert await queue.take() is not None
        await trio.testing.wait_all_tasks_blocked()
        assert [0, 1, 2] == put
        nursery.cancel_scope.cancel()


async def test_a_queue_that_is_cleared_ends() -> None:
    """Nothing of it is handed out any more, and whoever waits goes on."""
    queue: FairQueue[Item] = FairQueue(1)
    await queue.put(Item("1"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.put, Item("2"))
        await trio.testing.wait_all_tasks_blocked()
        queue.clear()

    assert await queue.take() is None
    assert queue.is_over
