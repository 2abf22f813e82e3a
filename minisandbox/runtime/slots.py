"""The pool of slots: what a sandbox needs that takes long to make, used by one after another.

A slot that comes back cools until it is proved empty; what is not empty in time is quarantined, never handed out.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

import trio

from minisandbox.errors import BrokenError, BusyError, HostError, StartError
from minisandbox.kernel.capacity import Room
from minisandbox.kernel.cgroup import CgroupTree, KeptMemory, RunCgroup
from minisandbox.kernel.ids import IdRange, Ids, PodIds
from minisandbox.kernel.launcher import Launcher
from minisandbox.runtime.cleanup import Cleanup
from minisandbox.runtime.groups import Groups
from minisandbox.runtime.slot import Heir, Slot, always, configure, is_clean, leaves_are_gone, looks_clean, never
from minisandbox.runtime.telemetry import Telemetry
from minisandbox.spec import Limits

__all__ = ["Heir", "Slot", "SlotPool", "configure", "never"]

COOLING_S = 0.02
"""The kernel takes a mount namespace apart a few ticks after its last process (delayed_mntput)."""

COOLING_DEADLINE_S = 10.0
INHERITANCE_S = 0.2
"""What is still charged to a slot after this is not about to go."""


class SlotPool:
    """Hands out slots. `serve` must run beside it to take back those that cool."""

    def __init__(
        self,
        launcher: Launcher,
        cgroups: CgroupTree,
        ids: Ids,
        limit: int,
        telemetry: Telemetry,
        groups: Groups | None = None,
    ) -> None:
        self._groups = groups or Groups(cgroups)
        self.telemetry, self.cleanup = telemetry, Cleanup(telemetry)
        self._launcher, self._room = launcher, Room()
        self.cgroups = cgroups
        self._ids = ids
        self.limit = limit
        self._numbers = list(reversed(range(limit)))
        self._free: list[Slot] = []
        self._cooling: deque[Slot] = deque()
        self._returned = trio.Event()
        self._settled = trio.Event()
        self.quarantined: list[Slot] = []
        self.promised = 0
        """Slots that are kept for those who were admitted (queue.py)."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when a slot came back."""
        self.can_free: Callable[[], int] = lambda: 0
        """How many more `acquire` could get by closing what nobody asked for."""

    @property
    def exhausted(self) -> bool:
        """Whether all slots are in quarantine."""
        return len(self.quarantined) >= self.limit

    def room(self) -> int:
        """Return how many slots could be had, those that cool counted."""
        return len(self._free) + len(self._cooling) + len(self._numbers) + self.can_free()

    async def acquire(self, limits: Limits) -> Slot:
        """Return a clean slot with these limits, making one where none is free.

        Raises BusyError when all are in use, UsageError when the memory limit is too small for any sandbox.
        """
        await self._launcher.revive()
        slot = await self._acquire()
        slot.is_quiet, slot.residue_bytes = never, 0
        try:
            await self._launcher.ensure_slot(slot.number, slot.uid_base)
            configure(slot, limits)
        except BaseException:
            self.release(slot, [])
            raise
        return slot

    async def _acquire(self) -> Slot:
        slot = self._take_free()
        while slot is None and not self._numbers:
            if not self._cooling:
                limit = self.limit
                raise BusyError(f"all {limit} slots are in use; close a sandbox or raise max_sandboxes")
            await self._settled.wait()
            slot = self._take_free()
        return slot or await self._make(self._numbers.pop())

    def _take_free(self) -> Slot | None:
        """Return a slot that is clean, or that turns out to be at the first look."""
        if self._free:
            return self._free.pop()
        for slot in self._cooling:
            if looks_clean(slot):
                self._cooling.remove(slot)
                return slot
        return None

    async def _make(self, number: int) -> Slot:
        """Make a slot. Shielded: it takes milliseconds, and one that is half made could not be used again.

        Raises HostError when the host cannot hold one more.
        """
        uid_base = self._ids.base(number)
        try:
            self._room.take()
        except HostError:
            self._numbers.append(number)
            raise
        with trio.CancelScope(shield=True):
            try:
                await self._launcher.make_slot(number, uid_base)
            except (StartError, BrokenError):
                self._numbers.append(number)  # the launcher keeps nothing of a slot that it could not make
                raise
        self.telemetry.slots_made += 1
        return Slot(number, uid_base, self._ids.warden_uid(number), self._groups)

    @contextlib.contextmanager
    def lend_ids(self) -> Iterator[Ids]:
        """Lend the ids of a slot that was never made. Raises BusyError when there is none.

        All that an ordinary user opens shares the ids that he has.
        """
        if not self._numbers:
            raise BusyError(f"all {self.limit} slots are made; raise max_sandboxes, of which a template takes one")
        number = self._numbers.pop()
        try:
            yield PodIds(self._ids.base(number)) if isinstance(self._ids, IdRange) else self._ids
        finally:
            self._numbers.append(number)
            self.on_room()

    def nested(self, launcher: Launcher, ids: Ids, limit: int) -> SlotPool:
        """Return the pool of a pod's launcher, whose slots share one range of ids."""
        pool = SlotPool(launcher, self.cgroups, ids, limit, self.telemetry, self._groups)
        pool.on_room = self.on_room
        return pool

    def remove(self) -> None:
        """Remove the groups of all slots, once their launcher has ended. What is not empty stays until all goes."""
        for slot in (*self._free, *self._cooling, *self.quarantined):
            slot.leaves = [leaf for leaf in slot.leaves if not leaf.remove()]
            self._groups.remove(slot)

    def release(self, slot: Slot, leaves: list[RunCgroup], heirs: tuple[Heir, ...] = ()) -> None:
        """Take a slot back whose sandbox is gone, and the leaves of its commands."""
        slot.leaves, slot.heirs, slot.is_quiet = leaves, heirs, never
        slot.returned_at = trio.current_time()
        self._cooling.append(slot)
        self._returned.set()
        self.on_room()

    def renew(self, slot: Slot) -> None:
        """Let a slot have other groups when it needs some, after `Slot.give_memory`."""
        self._groups.drop(slot)

    def open_account(self) -> KeptMemory | None:
        """Return a memory group for what belongs to no slot."""
        return self.cgroups.open_account()

    def quarantine(self, slot: Slot) -> None:
        """Never hand this slot out again: something of its sandbox could not be proved gone."""
        slot.is_quiet = never
        self.quarantined.append(slot)
        self.on_room()  # or rather the lack of it: who waits for the last one must know
        self.telemetry.quarantine(slot)

    async def serve(self) -> None:
        """Take slots back as they cool, until cancelled."""
        while True:
            await self._returned.wait()
            self._returned = trio.Event()
            while self._cooling:
                await trio.sleep(COOLING_S)
                self._take_back(trio.current_time() - COOLING_S)
                self._settled.set()
                self._settled = trio.Event()

    def _is_inherited(self, slot: Slot) -> bool:
        """Give what stays charged to a slot to the layers of its sandbox, and return whether that made it clean."""
        if not slot.heirs or trio.current_time() - slot.returned_at < INHERITANCE_S:
            return False
        if not leaves_are_gone(slot) or slot.cgroup.is_populated():
            return False
        heirs, slot.heirs = slot.heirs, ()
        memory = slot.give_memory()
        self.renew(slot)
        if memory is not None and not any(heir.charge_to(memory) for heir in heirs):
            memory.remove()  # with them, the pages are gone
        return True

    def _take_back(self, returned_before: float) -> None:
        for _ in range(len(self._cooling)):
            slot = self._cooling.popleft()
            if slot.returned_at > returned_before:
                self._cooling.append(slot)
            elif is_clean(slot) or self._is_inherited(slot):
                slot.is_quiet = always
                self._groups.consider(slot)
                self._free.append(slot)
            elif trio.current_time() - slot.returned_at > COOLING_DEADLINE_S:
                self.quarantine(slot)
            else:
                self._cooling.append(slot)
