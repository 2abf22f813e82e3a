"""Control groups, lent to slots: who has nothing running and nothing charged does not need any.

A memory group costs the kernel more than all else of a sandbox: some 200 KiB, and 1 KiB for every 64 superblocks that
the host ever had at once, of which each sandbox has four (shrinker_info, mm/shrinker.c). So there are few of them for
many sandboxes that wait. A slot asks for its groups whenever it needs them (`Groups.of`), and gets them with its limits
set; once there are `kept`, those that were not needed for longest go back. They go only when it is proved that nothing
of their sandbox is left in them, by what a used slot must prove too, and that the kernel holds nothing for it either.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from minisandbox.errors import CgroupError, UsageError
from minisandbox.kernel.cgroup import CgroupTree, KeptMemory, SlotCgroup
from minisandbox.spec import Limits

KEPT = 512
"""So many groups may be lent before those come back that are not needed. With 10,000 sandboxes, 40 KiB for each."""

SETTLED_S = 2.5
"""Counters of memory are late by up to 2 s (`stat_lag_bytes`): before that nothing is proved."""

LOOKS = 4
"""How many borrowers are looked at each time one asks: they are found in the order of their last need."""

RESIDUE_BYTES = 64 << 10
"""The kernel's own memory that may stay in a group that comes back, such as names that it remembers."""

RESIDUES_BYTES = 4 * RESIDUE_BYTES
"""The same for one borrower in all: who would leave more keeps its group."""


class Borrower(Protocol):
    """A slot, as groups see it."""

    limits: Limits
    residue_bytes: int
    """What the kernel kept for it in groups that it gave back."""

    @property
    def is_quiet(self) -> Callable[[], bool]:
        """Whether nothing of its sandbox runs, is about to run, or waits in a group to be removed."""


class _Loan:
    __slots__ = ("group", "kernel_bytes", "used_at")

    def __init__(self, group: SlotCgroup) -> None:
        self.group, self.used_at = group, time.monotonic()
        self.kernel_bytes = group.kernel_bytes()


class Groups:
    """The groups of one supervisor's slots."""

    def __init__(self, tree: CgroupTree, kept: int | None = None) -> None:
        self._tree, self._kept = tree, KEPT if kept is None else kept
        self._numbers = 0
        self._free: list[SlotCgroup] = []
        self._leaving: list[SlotCgroup] = []
        """Those that could not be removed at once."""
        self._loans: dict[Borrower, _Loan] = {}
        self._order: OrderedDict[Borrower, None] = OrderedDict()
        """Who may have become quiet since it was looked at last, in the order of their last need."""

    def of(self, borrower: Borrower) -> SlotCgroup:
        """Return the groups of a borrower, lent to it with its limits set if it had none.

        Raises CgroupError when they cannot be made, UsageError when the kernel cannot enforce its limits.
        """
        loan = self._loans.get(borrower)
        if loan is None:
            self.collect()
            group = self._free.pop() if self._free else self._make()
            try:
                set_limits(group, borrower.limits)
                loan = _Loan(group)
            except BaseException:
                self._free.append(group)
                raise
            self._loans[borrower] = loan
        self._order[borrower] = None
        self._order.move_to_end(borrower)
        loan.used_at = time.monotonic()
        return loan.group

    def lent_to(self, borrower: Borrower) -> SlotCgroup | None:
        """Return the groups that a borrower has now, None when it has none."""
        loan = self._loans.get(borrower)
        return None if loan is None else loan.group

    def consider(self, borrower: Borrower) -> None:
        """Take note that a borrower may have become quiet without using its groups."""
        if borrower in self._loans:
            self._order[borrower] = None

    def give_memory(self, borrower: Borrower) -> KeptMemory | None:
        """Return the memory group of a borrower for somebody else; None when nothing can be charged to it."""
        group = self.lent_to(borrower)
        return None if group is None else group.give_memory()

    def drop(self, borrower: Borrower) -> None:
        """Take away what is left of a borrower's groups after `give_memory`; it gets others when it needs them.

        Those are made here if there are no others, where nobody waits for them.
        """
        if (group := self._end(borrower)) is not None:
            group.remove_rest()
        if not self._free:
            with contextlib.suppress(CgroupError):  # who needs them gets the error himself
                self._free.append(self._make())

    def remove(self, borrower: Borrower) -> None:
        """Remove the groups of a borrower that is gone. What is not empty stays until all goes."""
        if (group := self._end(borrower)) is not None:
            group.remove()

    def _end(self, borrower: Borrower) -> SlotCgroup | None:
        loan = self._loans.pop(borrower, None)
        self._order.pop(borrower, None)
        return None if loan is None else loan.group

    def _make(self) -> SlotCgroup:
        self._numbers += 1
        return self._tree.open_slot(self._numbers)

    def collect(self) -> None:
        """Take groups back from those who do not need them, as long as too many are lent.

        Who still needs them is not looked at again before it used them: so that costs one look a use, whoever is there.
        """
        for _ in range(LOOKS):
            if len(self._loans) < self._kept or not self._order or not self._tree.tells_charges:
                return
            borrower = next(iter(self._order))
            loan = self._loans[borrower]
            if time.monotonic() - loan.used_at < SETTLED_S:
                return
            is_spent = _is_spent(borrower, loan)
            self._order.pop(borrower, None)
            if is_spent:
                del self._loans[borrower]
                self._take(loan.group)

    def _take(self, group: SlotCgroup) -> None:
        is_enough = len(self._free) >= LOOKS and len(self._loans) + len(self._free) >= self._kept
        if is_enough or group.kernel_bytes() > RESIDUES_BYTES:
            self._leaving = [each for each in (*self._leaving, group) if not each.remove()]
        else:
            self._free.append(group)


def set_limits(group: SlotCgroup, limits: Limits) -> None:
    """Give groups their limits. Raises UsageError when the kernel cannot enforce them."""
    try:
        group.configure(limits)
    except CgroupError:
        group.drain()  # what the last sandbox left in caches may be more than the new limit
        try:
            group.configure(limits)
        except CgroupError as error:
            raise UsageError(f"these limits cannot be set; is memory_bytes too small for a sandbox? {error}") from error


def _is_spent(borrower: Borrower, loan: _Loan) -> bool:
    """Return whether nothing of a borrower is in its groups, and note what little the kernel keeps for it there."""
    try:
        if not borrower.is_quiet() or not loan.group.is_lendable or not loan.group.is_clean():
            return False
        left = loan.group.kernel_bytes() - loan.kernel_bytes
        if left > RESIDUE_BYTES:
            loan.group.drain()
            left = loan.group.kernel_bytes() - loan.kernel_bytes
    except CgroupError:
        return False
    if left > RESIDUE_BYTES or borrower.residue_bytes + left > RESIDUES_BYTES:
        return False
    borrower.residue_bytes += max(0, left)
    return True
