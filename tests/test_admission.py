"""Admission: who waits, in which order, for how long, who is refused, and what is kept free of all sandboxes."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

import minisandbox
from minisandbox import Admission, AdmissionError, BrokenError, BusyError, DeadlineError, Limits, Supervisor, UsageError
from minisandbox.kernel.cgroup_layout import detect_layout
from minisandbox.kernel.load import Load, LoadMeter
from minisandbox.runtime.admission import Bookkeeper, Capacity, Demand, Gate
from minisandbox.runtime.background import background
from minisandbox.runtime.queue import LOOK_AGAIN_S, PRESSED_S, AdmissionQueue, Lease
from minisandbox.runtime.status import status_of
from minisandbox.runtime.telemetry import Event, Telemetry
from tests import observer
from tests.kernel import HAS_MAPPED_MEMORY

PROMPT_S = 20.0
GIB = 1 << 30
IDLE = Load(available_bytes=20 * GIB, free_processes=30000, free_descriptors=1000, memory_pressure=0.0)
SMALL = Demand(memory_bytes=GIB, cpus=1.0, processes=64)


class Pool:
    """Stands in for a pool of slots."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.promised = 0
        self.exhausted = False

    def room(self) -> int:
        """Those that nobody has."""
        return self.free

    def take(self, lease: Lease) -> None:
        """Take what was promised, and end its start."""
        self.free -= 1
        lease.start()


class Meter(LoadMeter):
    """A host that is as loaded as a test says."""

    def __init__(self, load: Load = IDLE) -> None:
        self.load = load

    def look(self) -> Load:
        """Say so."""
        return self.load


class Lab:
    """A queue on such a host, and who was let in."""

    def __init__(self, policy: Admission | None = None, load: Load = IDLE) -> None:
        self.meter = Meter(load)
        self.events: list[Event] = []
        telemetry = Telemetry("")
        telemetry.on_event = self.events.append
        books = Bookkeeper(policy or Admission(), Capacity(16 * GIB, 4, 32768))
        self.queue = AdmissionQueue(books, self.meter, telemetry)
        self.order: list[str] = []
        self.leases: list[Lease] = []

    async def ask(self, name: str, pool: Pool, demand: Demand = SMALL, priority: int = 0) -> None:
        """Be let in, and take the slot."""
        lease = await self.queue.admit(demand, pool, priority)
        pool.take(lease)
        self.order.append(name)
        self.leases.append(lease)

    def leave(self, pool: Pool) -> None:
        """The first who was let in goes."""
        pool.free += 1
        self.leases.pop(0).release()


async def settled() -> None:
    """Let everybody do what can be done."""
    await trio.testing.wait_all_tasks_blocked()


# ---- the queue


async def test_those_who_wait_come_in_order_of_priority_and_then_as_they_asked(autojump_clock: object) -> None:
    """Higher numbers first; among equals nobody overtakes."""
    lab, pool = Lab(), Pool(1)
    async with background(lab.queue.serve), trio.open_nursery() as nursery:
        await lab.ask("first", pool)
        for name, priority in (("low", -1), ("a", 0), ("b", 0), ("high", 5), ("c", 0)):
            nursery.start_soon(lab.ask, name, pool, SMALL, priority)
            await settled()
        for _ in range(5):
            lab.leave(pool)
            await settled()

    assert ["first", "high", "a", "b", "c", "low"] == lab.order
    assert () == lab.queue.waiting


async def test_a_large_one_is_not_starved_by_small_ones(autojump_clock: object) -> None:
    """It waits for memory at the head, and those behind wait with it though they would fit."""
    lab, pool = Lab(Admission(memory_overcommit=1.0)), Pool(100)
    large = Demand(memory_bytes=10 * GIB, cpus=None, processes=None)
    async with background(lab.queue.serve), trio.open_nursery() as nursery:
        await lab.ask("large", pool, large)
        nursery.start_soon(lab.ask, "another", pool, large)
        await settled()
        nursery.start_soon(lab.ask, "small", pool)
        await settled()
        waiting = [str(ticket.waits_for) for ticket in lab.queue.waiting]
        lab.leave(pool)
        await settled()

    assert ("large", {"another", "small"}) == (lab.order[0], set(lab.order[1:]))  # the last two are let in at once
    assert 3 == len(lab.order)
    assert ["memory_promised: 10,240 MiB asked for, 6,144 MiB left"] * 2 == waiting


async def test_pools_of_slots_do_not_wait_for_each_other(autojump_clock: object) -> None:
    """One waits for a slot of a template; others are let in past it."""
    lab, full, other = Lab(), Pool(0), Pool(2)
    async with background(lab.queue.serve), trio.open_nursery() as nursery:
        nursery.start_soon(lab.ask, "full", full)
        await settled()
        await lab.ask("other", other)
        nursery.cancel_scope.cancel()

    assert ["other"] == lab.order


async def test_a_wait_can_be_cancelled_and_leaves_nothing(autojump_clock: object) -> None:
    """Who is behind one that gives up takes its place; nothing stays booked."""
    lab, pool = Lab(), Pool(1)
    async with background(lab.queue.serve), trio.open_nursery() as nursery:
        await lab.ask("first", pool)
        with trio.move_on_after(1):
            await lab.queue.admit(SMALL, pool, priority=9)
        nursery.start_soon(lab.ask, "second", pool)
        await settled()
        lab.leave(pool)
        await settled()
        lab.leave(pool)

    assert ["first", "second"] == lab.order
    assert (0, 0, 0) == (pool.promised, lab.queue.books.booked.sandboxes, lab.queue.books.booked.starting)
    assert ["cancelled", "admitted"] == [event["outcome"] for event in lab.events if event["event"] == "unqueued"]


async def test_a_wait_has_a_deadline(autojump_clock: object) -> None:
    """The error says where it was in the queue and for what it waited."""
    lab, pool = Lab(), Pool(0)
    async with background(lab.queue.serve):
        with pytest.raises(DeadlineError, match=r"within 2 s; it was number 1 of 1 .*slots: 1 asked for, 0 left"):
            await lab.queue.admit(SMALL, pool, deadline_s=2.0)
        with pytest.raises(BusyError, match="deadline_s=None"):
            await lab.queue.admit(SMALL, pool, deadline_s=0)

    assert () == lab.queue.waiting


@pytest.mark.parametrize(
    ("gate", "load"),
    [
        (Gate.MEMORY_FREE, Load(100 << 20, 30000, 1000, None)),
        (Gate.PROCESSES, Load(20 * GIB, 10, 1000, None)),
        (Gate.DESCRIPTORS, Load(20 * GIB, 30000, 3, None)),
    ],
)
async def test_a_host_that_is_full_is_waited_for(gate: Gate, load: Load, autojump_clock: object) -> None:
    """While something of ours could make room; it is looked at again without anybody's doing."""
    lab, pool = Lab(), Pool(9)
    async with background(lab.queue.serve), trio.open_nursery() as nursery:
        await lab.ask("first", pool)
        lab.meter.load = load
        nursery.start_soon(lab.ask, "second", pool)
        await settled()
        waits_for = lab.queue.waiting[0].waits_for
        lab.meter.load = IDLE
        await trio.sleep(2 * LOOK_AGAIN_S)

    assert waits_for is not None
    assert (gate, ["first", "second"]) == (waits_for.gate, lab.order)


async def test_a_host_that_is_full_of_others_refuses(autojump_clock: object) -> None:
    """Nothing of ours is open, so waiting would be for nothing: it says what there is too little of, by how much."""
    lab = Lab(load=Load(100 << 20, 30000, 1000, None))
    with pytest.raises(AdmissionError, match="memory_free: 128 MiB asked for, 100 MiB left: 28 MiB too much") as caught:
        await lab.queue.admit(SMALL, Pool(9))

    assert ("memory_free", 128 << 20, 100 << 20) == (caught.value.limit, caught.value.asked, caught.value.free)
    assert caught.value.retryable


async def test_pressure_slows_starts_down_and_stops_none(autojump_clock: object) -> None:
    """One start a second is let in, however the pressure came about."""
    lab, pool = Lab(load=Load(20 * GIB, 30000, 1000, 90.0)), Pool(9)
    async with background(lab.queue.serve):
        begun = trio.current_time()
        for name in "abcd":
            await lab.ask(name, pool)
        lasted_s = trio.current_time() - begun

    assert 3 * PRESSED_S <= lasted_s <= 3 * (PRESSED_S + 2 * LOOK_AGAIN_S)


async def test_no_more_starts_are_under_way_than_the_cores_can_serve(autojump_clock: object) -> None:
    """A start that ended makes room for the next, though it stays open."""
    lab, pool = Lab(Admission(starts_per_core=0.5)), Pool(9)
    async with background(lab.queue.serve), trio.open_nursery() as nursery:
        leases = [await lab.queue.admit(SMALL, pool) for _ in range(2)]
        nursery.start_soon(lab.ask, "third", pool)
        await settled()
        before = list(lab.order)
        leases[0].start()
        await settled()

    assert ([], ["third"]) == (before, lab.order)


@pytest.mark.parametrize(
    ("demand", "limit", "text"),
    [
        (Demand(17 * GIB, None, None), "memory_promised", "17,408 MiB asked for, 16,384 MiB left: 1,024 MiB too much"),
        (Demand(None, 5.0, None), "cpus_promised", "5 asked for, 4 left: 1 too much"),
        (Demand(None, None, 40000), "processes", "40000 asked for, 32768 left: 7232 too much"),
    ],
)
async def test_what_the_host_can_never_hold_is_refused_at_once(demand: Demand, limit: str, text: str) -> None:
    """With which limit, and by how much."""
    lab = Lab(Admission(cpus_overcommit=4.0))
    with pytest.raises(AdmissionError, match=text) as caught:
        await lab.queue.admit(demand, Pool(9))

    assert (limit, False) == (caught.value.limit, caught.value.retryable)


def test_overcommit_is_a_number() -> None:
    """Twice the memory of the host is promised, and no more."""
    books = Bookkeeper(Admission(memory_overcommit=2.0), Capacity(16 * GIB, 4, 32768))
    admitted = 0
    while books.shortage(SMALL, IDLE) is None and admitted < 100:
        books.book(SMALL)
        books.booked.starting = 0
        admitted += 1

    assert 32 == admitted


@pytest.mark.parametrize(
    "wrong", [{"memory_overcommit": 0.0}, {"starts_per_core": -1.0}, {"cpus_overcommit": float("inf")}]
)
def test_numbers_that_make_no_sense(wrong: dict[str, float]) -> None:
    """Nothing is admitted by accident, nor everything."""
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Admission(**wrong)  # type: ignore[arg-type]


def test_the_load_of_this_host_can_be_read() -> None:
    """Numbers that can be."""
    with contextlib.closing(LoadMeter(detect_layout())) as meter:
        load = meter.look()

        assert 0 < load.available_bytes <= meter.memory_bytes()
        assert 0 < load.free_processes <= meter.processes()
        assert load.free_descriptors > 0


def test_a_look_for_which_there_is_no_descriptor_says_so() -> None:
    """The host is full of descriptors then; anything else that keeps it from looking stops nobody."""
    meter = LoadMeter(detect_layout())  # it has nothing open yet
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        full = meter.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with contextlib.closing(meter):
        assert (0, True) == (full.free_descriptors, meter.look().free_descriptors > 0)
    assert LoadMeter(detect_layout(), Path("/nonexistent")).look().free_descriptors > 0


# ---- with real sandboxes


async def test_a_burst_is_served_in_order_and_nobody_fails(state_dir: Path) -> None:
    """Thirty at once where four may be open: all of them run, as they came."""
    order: list[int] = []
    async with minisandbox.open_supervisor(
        state_dir=state_dir, max_sandboxes=4, max_parked=0, self_test=False
    ) as supervisor:
        await supervisor.find_rootfs("host")

        async def use(number: int) -> None:
            async with supervisor.open_sandbox() as sandbox:
                order.append(number)
                assert (await sandbox.run(["true"])).ok

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(30):
                    nursery.start_soon(use, number)
                    await trio.testing.wait_all_tasks_blocked(0.001)
        booked = supervisor.queue.books.booked

    assert set(range(30)) == set(order)
    assert all(abs(place - number) < 8 for place, number in enumerate(order)), order  # starts may end out of order
    assert (0, 0, 0) == (booked.sandboxes, booked.memory_bytes, booked.starting)


async def test_a_wait_is_seen_from_outside(state_dir: Path) -> None:
    """In the status that top shows, in the counts that metrics show, and as events."""
    events: list[Event] = []
    async with (
        minisandbox.open_supervisor(
            state_dir=state_dir, max_sandboxes=1, self_test=False, events=events.append
        ) as supervisor,
        trio.open_nursery() as nursery,
    ):
        async with supervisor.open_sandbox():
            nursery.start_soon(_open_and_close, supervisor)
            with trio.fail_after(PROMPT_S):
                await observer.wait_until(lambda: bool(supervisor.queue.waiting), trio.lowlevel.checkpoint)
            header, _ = status_of(supervisor)

    (waiting,) = header.waiting
    told = [event["event"] for event in events if "queued" in str(event["event"])]
    assert (1, "slots: 1 asked for, 0 left", 3) == (header.queued, waiting.waits_for, waiting.priority)
    assert ["queued", "unqueued"] == told
    assert 1 == sum(supervisor.telemetry.wait.counts)


async def _open_and_close(supervisor: Supervisor) -> None:
    async with supervisor.open_sandbox(priority=3):
        pass


async def test_more_memory_than_the_host_has_is_refused(supervisor: Supervisor) -> None:
    """Which limit, and nothing was started."""
    with pytest.raises(AdmissionError, match="memory_promised") as caught:
        async with supervisor.open_sandbox(limits=Limits(memory_bytes=1 << 48)):
            pass

    assert (1 << 48, 0, 0) == (caught.value.asked, supervisor.live, supervisor.queue.books.booked.sandboxes)


@pytest.mark.requires_root
@pytest.mark.skipif(not HAS_MAPPED_MEMORY, reason=f"snapshots need Linux 6.3, this is {os.uname().release}")
async def test_a_fork_that_does_not_fit_is_refused_whole(state_dir: Path) -> None:
    """Whoever holds some and waits for more could wait for ever; afterwards one that fits works."""
    async with minisandbox.open_supervisor(state_dir=state_dir, max_sandboxes=4, self_test=False) as supervisor:
        async with supervisor.open_sandbox() as sandbox:
            with pytest.raises(BusyError, match="slots: 5 asked for"):
                async with sandbox.fork(5):
                    pass
            async with sandbox.fork(2) as siblings:
                results = [await sibling.run(["true"]) for sibling in siblings]
        booked = supervisor.queue.books.booked

    assert [True, True] == [result.ok for result in results]
    assert (0, 0) == (booked.sandboxes, booked.starting)


# ---- what is kept free


def _cores(line: str) -> Callable[[bytes], str]:
    def find(text: bytes) -> str:
        return next(each.split()[1] for each in text.decode().splitlines() if each.startswith(line))

    return find


@pytest.fixture
def two_cores() -> Iterator[list[int]]:
    """The cores of this process."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("this host gives us one core")
    yield cores


@pytest.mark.requires_root
@pytest.mark.enforces("control-groups")
async def test_nothing_of_a_sandbox_runs_on_a_reserved_core(state_dir: Path, two_cores: list[int]) -> None:
    """Even where it asks for that core by sched_setaffinity(2); without a reserve it may have it."""
    ask = f"taskset -p -c {','.join(map(str, two_cores))} $$ >/dev/null; cat /proc/self/status"
    allowed = []
    for reserve in (0, 1):
        async with minisandbox.open_supervisor(
            state_dir=state_dir, self_test=False, reserve_cpus=reserve
        ) as supervisor:
            if reserve and supervisor.reserved.how != "cpuset":
                pytest.skip("this host has no cpuset controller: bandwidth is kept free on no core in particular")
            async with supervisor.open_sandbox() as sandbox:
                allowed.append(_cores("Cpus_allowed_list")((await sandbox.run(ask)).stdout))
            reserved = supervisor.reserved

    assert (two_cores[-1],) == reserved.cores
    assert str(two_cores[-1]) in allowed[0]
    assert str(two_cores[-1]) not in allowed[1].replace("-", ",").split(",")


@pytest.mark.requires_root
@pytest.mark.enforces("control-groups", "memory-limit")
async def test_sandboxes_together_leave_reserved_memory_alone(state_dir: Path) -> None:
    """All of the host but 256 MiB is reserved: two that may have 200 MiB each do not get 400 together.

    Whoever is killed for it did not reach his own limit: that is our failure and no result of the program.
    """
    with contextlib.closing(LoadMeter(detect_layout())) as meter:
        whole = meter.memory_bytes()
    hog = "head -c 120M /dev/zero | tail -c 120M | (sleep 1; wc -c)"
    limits = Limits(memory_bytes=700 << 20, wall_time_s=60, stdout_bytes=None)
    ended: list[str] = []
    async with minisandbox.open_supervisor(
        state_dir=state_dir,
        self_test=False,
        max_parked=0,
        admission=Admission(free_memory_bytes=0, memory_pressure=None, memory_overcommit=None),
        reserve_memory_bytes=whole - (256 << 20),
    ) as supervisor:
        with pytest.raises(AdmissionError, match="memory_promised: 700 MiB asked for, 256 MiB left"):
            async with supervisor.open_sandbox(limits=limits):
                pass

        async def use_much() -> None:
            async with supervisor.open_sandbox(limits=Limits(memory_bytes=250 << 20)) as sandbox:
                try:
                    ended.append((await sandbox.run(hog)).exit_reason.value)
                except BrokenError as error:
                    ended.append(str(error))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(use_much)
        async with supervisor.open_sandbox(limits=Limits(memory_bytes=64 << 20)) as sandbox:
            again = await sandbox.run(["true"])

    assert again.ok
    assert any("ran out of memory" in each for each in ended), ended
    assert "memory" not in ended


@pytest.mark.parametrize(("cpus", "memory_bytes"), [(10000, 0), (0, 1 << 60), (-1, 0), (0, -1)])
async def test_a_reserve_that_leaves_nothing(state_dir: Path, cpus: int, memory_bytes: int) -> None:
    """It is a mistake, and nothing is started or left."""
    with pytest.raises(UsageError, match="reserve"):
        async with minisandbox.open_supervisor(
            state_dir=state_dir, reserve_cpus=cpus, reserve_memory_bytes=memory_bytes
        ):
            pass
