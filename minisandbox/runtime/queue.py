"""The queue for admission: whoever asks for a sandbox is let in at once, or waits in order until there is room.

Higher priorities go first, equals as they came, and nobody overtakes: one that is large is not starved by small ones.
Only those of another pool of slots (a template's) pass by one that waits for a slot. Nothing runs while nobody waits.
"""

from __future__ import annotations

import time
from bisect import insort
from dataclasses import dataclass, field
from typing import Protocol

import trio

from minisandbox.errors import BusyError, ClosedError, DeadlineError, UsageError
from minisandbox.kernel.load import LoadMeter
from minisandbox.runtime.admission import OF_THE_HOST, Bookkeeper, Demand, Gate, Shortage
from minisandbox.runtime.telemetry import Telemetry, outcome_of
from minisandbox.spec import MAX_SECONDS

LOOK_AGAIN_S = 0.25
"""How often the host is looked at while somebody waits for it."""

PRESSED_S = 1.0
"""Under pressure one start is admitted so often. It goes on, however the pressure came about."""


PASSING = frozenset({Gate.STARTS, Gate.MEMORY_PRESSURE})
"""These pass by themselves."""

WAIT = "close a sandbox, raise max_sandboxes, or let it wait: deadline_s=None"


class Room(Protocol):
    """A pool of slots."""

    promised: int
    """Slots that were promised to those who were let in and did not take them yet."""

    @property
    def exhausted(self) -> bool:
        """Whether there will never be any again."""

    def room(self) -> int:
        """Return how many could be had now, or soon without anybody's doing."""


@dataclass(order=True, slots=True)
class Ticket:
    """One who asked."""

    rank: tuple[int, int]
    """Sorts by falling priority, then by number."""
    demand: Demand = field(compare=False)
    pool: Room = field(compare=False)
    since: float = field(compare=False)
    """Unix time."""
    waits_for: Shortage | None = field(default=None, compare=False)
    settled: trio.Event = field(default_factory=trio.Event, compare=False)
    lease: Lease | None = field(default=None, compare=False)
    error: Exception | None = field(default=None, compare=False)

    @property
    def priority(self) -> int:
        """What the caller gave."""
        return -self.rank[0]

    @property
    def number(self) -> int:
        """How many asked before, itself counted."""
        return self.rank[1]


class Lease:
    """What was booked for one who is in. Give it back once, with `release`."""

    __slots__ = ("_demand", "_pool", "_queue", "_released", "_starting", "_unplaced")

    def __init__(self, queue: AdmissionQueue, demand: Demand, pool: Room) -> None:
        self._queue, self._demand, self._pool = queue, demand, pool
        self._released, self._starting, self._unplaced = False, True, True

    def place(self) -> None:
        """It has a slot: none is kept for it any more."""
        if self._unplaced:
            self._unplaced = False
            self._pool.promised -= 1

    def start(self) -> None:
        """It has started, or it is not going to."""
        self.place()
        if self._starting:
            self._starting = False
            self._queue.books.booked.starting -= 1
            self._queue.change()

    def release(self) -> None:
        """All of it is free again. Harmless when called twice."""
        self.start()
        if not self._released:
            self._released = True
            self._queue.books.release(self._demand)
            self._queue.change()


class AdmissionQueue:
    """Lets sandboxes in. `serve` must run beside it."""

    def __init__(self, books: Bookkeeper, meter: LoadMeter, telemetry: Telemetry) -> None:
        self.books, self._meter, self.telemetry = books, meter, telemetry
        self._waiting: list[Ticket] = []
        self._number = 0
        self._changed = trio.Event()
        self._closed = False
        self._admitted_at = 0.0

    @property
    def waiting(self) -> tuple[Ticket, ...]:
        """Those who wait, in the order in which they will be let in."""
        return tuple(self._waiting)

    async def admit(self, demand: Demand, pool: Room, priority: int = 0, deadline_s: float | None = None) -> Lease:
        """Return a lease once there is room. Raises DeadlineError, AdmissionError, UsageError; cancelled: out of it."""
        check_wishes(priority, deadline_s)
        self.books.check(demand)
        self._number += 1
        ticket = Ticket((-priority, self._number), demand, pool, time.time())
        if not self._waiting:
            self._try(ticket)
        else:
            ticket.waits_for = self._waiting[-1].waits_for
        if ticket.lease is None and ticket.error is None and deadline_s == 0:
            ticket.error = BusyError(f"no sandbox can be opened now, {ticket.waits_for}; {WAIT}")
        if ticket.lease is None and ticket.error is None:
            await self._wait(ticket, deadline_s)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.lease is not None
        return ticket.lease

    def admit_at_once(self, demand: Demand, pool: Room, count: int) -> list[Lease]:
        """Return so many leases, or raise BusyError when not all fit now: who holds some must not wait for others."""
        self.books.check(demand)
        found = self._shortage(demand, pool, count)
        if found is not None and found.gate not in PASSING:
            raise BusyError(f"{count} sandboxes cannot be opened at once, {found}; close others first")
        return [self._book(demand, pool) for _ in range(count)]

    def is_short(self, demand: Demand, pool: Room) -> bool:
        """Return whether one more would have to wait, so that nothing is started that nobody asked for yet."""
        return bool(self._waiting) or self._shortage(demand, pool) is not None

    def change(self) -> None:
        """Something that those who wait may wait for has changed."""
        if self._waiting:
            self._changed.set()

    async def serve(self) -> None:
        """Let in who waits as soon as there is room, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            self._let_in()
            if any(ticket.waits_for is not None and ticket.waits_for.gate in OF_THE_HOST for ticket in self._waiting):
                with trio.move_on_after(LOOK_AGAIN_S):
                    await self._changed.wait()
                self._changed.set()

    def close(self) -> None:
        """Send everybody away."""
        self._closed = True
        for ticket in self._waiting:
            ticket.error = ClosedError("the supervisor was closed while this sandbox waited for admission")
            ticket.settled.set()

    async def _wait(self, ticket: Ticket, deadline_s: float | None) -> None:
        insort(self._waiting, ticket)
        self.change()
        self.telemetry.queue(ticket.number, ticket.priority, str(ticket.waits_for))
        outcome = "cancelled"
        try:
            with trio.move_on_after(MAX_SECONDS if deadline_s is None else deadline_s):
                await ticket.settled.wait()
            if ticket.lease is None and ticket.error is None:
                ticket.error = self._too_late(ticket, deadline_s)
            outcome = "admitted" if ticket.error is None else outcome_of(ticket.error)
        finally:
            self.telemetry.unqueue(ticket.number, outcome, time.time() - ticket.since)
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self.change()  # who comes next may have waited behind it alone

    def _too_late(self, ticket: Ticket, deadline_s: float | None) -> DeadlineError:
        place = self._waiting.index(ticket) + 1
        return DeadlineError(
            f"a sandbox was not admitted within {deadline_s:g} s; it was number {place} of {len(self._waiting)} in the"
            f" queue, and waited for {ticket.waits_for}; close sandboxes, or give it more time"
        )

    def _let_in(self) -> None:
        """Let in as many as fit, in order."""
        full: set[int] = set()
        for ticket in list(self._waiting):
            if id(ticket.pool) in full:
                continue
            self._try(ticket)
            if ticket.lease is not None or ticket.error is not None:
                self._waiting.remove(ticket)
                ticket.settled.set()
            elif ticket.waits_for is not None and ticket.waits_for.gate is Gate.SLOTS:
                full.add(id(ticket.pool))
            else:
                return

    def _try(self, ticket: Ticket) -> None:
        """Give one a lease if it fits, an error if it never will, and else a reason to wait."""
        ticket.waits_for = self._shortage(ticket.demand, ticket.pool)
        if ticket.waits_for is None:
            ticket.lease = self._book(ticket.demand, ticket.pool)
        elif self._is_hopeless(ticket.waits_for.gate, ticket.pool):
            ticket.error = ticket.waits_for.error(ever=False)

    def _book(self, demand: Demand, pool: Room) -> Lease:
        self.books.book(demand)
        pool.promised += 1
        self._admitted_at = trio.current_time()
        return Lease(self, demand, pool)

    def _is_hopeless(self, gate: Gate, pool: Room) -> bool:
        """Return whether nothing that is open here could ever make room."""
        if gate is Gate.SLOTS:
            return pool.exhausted
        return self.books.booked.sandboxes == 0 and gate in OF_THE_HOST and gate not in PASSING

    def _shortage(self, demand: Demand, pool: Room, count: int = 1) -> Shortage | None:
        if (room := max(0, pool.room() - pool.promised)) < count:
            return Shortage(Gate.SLOTS, count, room)
        found = self.books.shortage(demand, self._meter.look(), count)
        if found is not None and found.gate is Gate.MEMORY_PRESSURE:
            return found if trio.current_time() - self._admitted_at < PRESSED_S else None
        return found


def check_wishes(priority: int, deadline_s: float | None) -> None:
    """Raise UsageError for what is no priority or no deadline."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise UsageError(f"priority is {priority!r}; give a whole number, higher ones first")
    if deadline_s is not None and not 0 <= deadline_s <= MAX_SECONDS:
        raise UsageError(f"deadline_s is {deadline_s!r}; give seconds from 0, or None to wait as long as it takes")
