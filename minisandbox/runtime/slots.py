"""The pool of slots: what a sandbox needs that takes long to make, used by one after another.

A slot that comes back cools until it is proved empty; what is not empty in time is quarantined, never handed out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import trio

from minisandbox.errors import BusyError, CgroupError, StartError
from minisandbox.kernel.cgroup import CgroupTree, SlotCgroup
from minisandbox.kernel.launcher import Launcher
from minisandbox.kernel.protocol import SLOT_IDS, WARDEN_ID

COOLING_S = 0.02
"""The kernel takes a mount namespace apart a few ticks after its last process (delayed_mntput)."""

COOLING_DEADLINE_S = 10.0


@dataclass(slots=True)
class Slot:
    """Ids, namespaces (in the launcher) and control groups for one sandbox at a time."""

    number: int
    uid_base: int
    cgroup: SlotCgroup
    returned_at: float = 0.0

    @property
    def warden_uid(self) -> int:
        """The host id of the init of a sandbox in this slot."""
        return self.uid_base + WARDEN_ID


class SlotPool:
    """Hands out slots. `serve` must run beside it to take back those that cool."""

    def __init__(self, launcher: Launcher, cgroups: CgroupTree, uid_base: int, limit: int) -> None:
        self._launcher = launcher
        self._cgroups = cgroups
        self._uid_base = uid_base
        self._limit = limit
        self._numbers = list(reversed(range(limit)))
        self._free: list[Slot] = []
        self._cooling: deque[Slot] = deque()
        self._returned = trio.Event()
        self.quarantined: list[Slot] = []

    async def acquire(self) -> Slot:
        """Return a clean slot, making one where none is free. Raises BusyError when all are in use."""
        if not self._free:
            self._take_back_clean(trio.current_time())
        if self._free:
            return self._free.pop()
        if not self._numbers:
            limit = self._limit
            raise BusyError(f"all {limit} slots of this supervisor are in use; close a sandbox or raise max_sandboxes")
        return await self._make(self._numbers.pop())

    async def _make(self, number: int) -> Slot:
        uid_base = self._uid_base + number * SLOT_IDS
        try:
            await self._launcher.make_slot(number, uid_base)
        except StartError:
            self._numbers.append(number)  # the launcher keeps nothing of a slot that it could not make
            raise
        return Slot(number, uid_base, self._cgroups.open_slot(number))

    def release(self, slot: Slot) -> None:
        """Take a slot back whose sandbox is gone."""
        slot.returned_at = trio.current_time()
        self._cooling.append(slot)
        self._returned.set()

    def quarantine(self, slot: Slot) -> None:
        """Never hand this slot out again: something of its sandbox could not be proved gone."""
        self.quarantined.append(slot)

    async def serve(self) -> None:
        """Take slots back as they cool, until cancelled."""
        while True:
            await self._returned.wait()
            self._returned = trio.Event()
            while self._cooling:
                await trio.sleep(COOLING_S)
                self._take_back_clean(trio.current_time() - COOLING_S)

    def _take_back_clean(self, returned_before: float) -> None:
        for _ in range(len(self._cooling)):
            slot = self._cooling.popleft()
            if slot.returned_at > returned_before:
                self._cooling.append(slot)
            elif _is_clean(slot):
                self._free.append(slot)
            elif trio.current_time() - slot.returned_at > COOLING_DEADLINE_S:
                self.quarantine(slot)
            else:
                self._cooling.append(slot)


def _is_clean(slot: Slot) -> bool:
    try:
        return slot.cgroup.is_clean()
    except CgroupError:
        return False
