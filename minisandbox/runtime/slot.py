"""A slot: ids, namespaces and control groups for one sandbox at a time, and the proof that the last one is gone.

Who has it and when it is handed out is the pool's affair (slots.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from minisandbox.errors import CgroupError, HostError
from minisandbox.kernel.cgroup import KeptMemory, RunCgroup, SlotCgroup
from minisandbox.runtime.groups import Groups, set_limits
from minisandbox.spec import Limits


class Heir(Protocol):
    """A layer that outlives the sandboxes upon it. They are charged for pages that they add to it by reading holes."""

    def charge_to(self, memory: KeptMemory) -> bool:
        """Take over a memory group; False when it is gone itself."""


def never() -> bool:
    """Answer that a slot is not quiet."""
    return False


def always() -> bool:
    """Answer that it is, as one that is free."""
    return True


@dataclass(slots=True, eq=False)
class Slot:
    """Ids, namespaces (in the launcher) and, while it needs them, control groups for one sandbox at a time."""

    number: int
    uid_base: int
    warden_uid: int
    """Who starts commands in its control groups: the init of a sandbox in it."""
    groups: Groups
    limits: Limits = field(default_factory=Limits)
    is_quiet: Callable[[], bool] = field(default=never)
    residue_bytes: int = 0
    leaves: list[RunCgroup] = field(default_factory=list)
    """Of the commands of the last sandbox, still to be removed."""
    returned_at: float = 0.0
    heirs: tuple[Heir, ...] = ()
    """Who can take what stays charged to it, as long as they are there."""

    @property
    def cgroup(self) -> SlotCgroup:
        """Its control groups, lent to it when it has none. Do not keep them: they are its own only in use."""
        return self.groups.of(self)

    @property
    def group_name(self) -> str:
        """The name of its control groups, empty when it has none."""
        group = self.groups.lent_to(self)
        return "" if group is None else group.name

    def give_memory(self) -> KeptMemory | None:
        """Return the memory group, for what stays charged to it; None when nothing is. Then `SlotPool.renew` it."""
        self.is_quiet = never
        return self.groups.give_memory(self)


def configure(slot: Slot, limits: Limits) -> None:
    """Give a slot its limits. Raises UsageError when the kernel cannot enforce them."""
    slot.limits = limits
    set_limits(slot.cgroup, limits)


def leaves_are_gone(slot: Slot) -> bool:
    """Remove the leaves of the last sandbox's commands, and return whether none stays."""
    slot.leaves = [leaf for leaf in slot.leaves if not leaf.remove()]
    return not slot.leaves


def looks_clean(slot: Slot) -> bool:
    """Quick: no process, nothing charged. What is charged may be clean all the same; `is_clean` finds out."""
    try:
        if not leaves_are_gone(slot):
            return False
        group = slot.groups.lent_to(slot)
        if group is None:  # it was proved when they were taken back, and nothing was run since
            return True
        if group.is_populated():
            return False
        charge = group.charge()
        return charge.anon_bytes + charge.shmem_bytes == 0
    except HostError:  # no memory is accounted here
        return True
    except CgroupError:
        return False


def is_clean(slot: Slot) -> bool:
    """Return whether nothing of the last sandbox is left in its groups."""
    try:
        group = slot.groups.lent_to(slot)
        return leaves_are_gone(slot) and (group is None or group.is_clean())
    except CgroupError:
        return False
