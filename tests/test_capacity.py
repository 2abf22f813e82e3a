"""What this host can hold: each limit is told, and more than that is refused with the limit and by how much."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

import minisandbox
from minisandbox.errors import HostError
from minisandbox.kernel.capacity import FDS_KEPT, Ceiling, Room, check_capacity, read_capacity, refusal
from tests.cli import json_of
from tests.cli import minisandbox as command

FILES = "open files of the supervisor"


@pytest.fixture
def few_files() -> Iterator[int]:
    """Let this process have so many open files and no more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FDS_KEPT + 64, before[1]))
    try:
        yield 64
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_limits_are_told_in_the_order_in_which_they_are_reached() -> None:
    """The first is the one that counts, and those that every Linux has are there."""
    capacity = read_capacity()
    allowed = [ceiling.allows for ceiling in capacity]

    assert sorted(allowed) == allowed
    assert {"process ids", "threads", FILES, "bytes of memory"} <= {ceiling.name for ceiling in capacity}
    assert all(ceiling.advice and ceiling.each > 0 and ceiling.used >= 0 for ceiling in capacity)


def test_refusal_says_which_limit_and_by_how_much() -> None:
    """Ten of two each, where four are used of fifteen: nine too many."""
    ceiling = Ceiling(name="pegs", limit=15, used=4, each=2, advice="buy more")

    assert 5 == ceiling.allows
    assert (
        "this host cannot hold 10 more sandboxes, but 5: it has 15 pegs, 4 are used, each sandbox takes 2: 9 too many;"
        " buy more"
    ) == refusal(ceiling, 10)


def test_what_is_used_beyond_a_limit_allows_nothing() -> None:
    """A limit that was lowered below what is used is no negative room."""
    assert 0 == Ceiling(name="pegs", limit=3, used=5, each=1, advice="").allows


def test_more_than_the_host_holds_is_refused(few_files: int) -> None:
    """The limit that was lowered is the one that is named."""
    check_capacity(1)
    with pytest.raises(HostError, match=f"cannot hold {few_files} more sandboxes.* {FILES}.*too many"):
        check_capacity(few_files)


def test_room_looks_again_when_half_is_taken(few_files: int) -> None:
    """A limit that was lowered since is seen before what it allowed then is used up."""
    room, taken = Room(), 0
    room.take()
    resource.setrlimit(resource.RLIMIT_NOFILE, (FDS_KEPT + 8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with pytest.raises(HostError, match=FILES):
        while taken < few_files:
            room.take()
            taken += 1

    assert taken < few_files / 2


@pytest.mark.requires_root
async def test_sandbox_that_the_host_cannot_hold_is_refused_and_the_others_live(
    state_dir: Path, few_files: int
) -> None:
    """The refusal names the limit; what is open can be used, and what is closed makes room."""
    with trio.fail_after(60):
        async with (
            minisandbox.open_supervisor(state_dir=state_dir, max_parked=0, max_sandboxes=256) as supervisor,
            AsyncExitStack() as stack,
        ):
            first = await stack.enter_async_context(supervisor.open_sandbox())
            with pytest.raises(HostError, match=FILES):
                for _ in range(few_files):
                    await stack.enter_async_context(supervisor.open_sandbox())
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            assert (await first.run(["true"])).ok
            async with supervisor.open_sandbox() as sandbox:
                assert (await sandbox.run(["true"])).ok


def test_doctor_says_which_limit_comes_first(state_dir: Path) -> None:
    """As JSON with every limit, for people as a table."""
    capacity = json_of(command(state_dir, "doctor", "--json"))["capacity"]
    shown = command(state_dir, "doctor").stdout.decode()

    assert capacity[0]["allows"] == min(ceiling["allows"] for ceiling in capacity)
    assert capacity[0]["name"] in shown
    assert "how many sandboxes this host can hold more" in shown
