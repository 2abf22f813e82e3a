"""A memory group without processes: the account of files that are in memory for longer than who wrote them."""

from __future__ import annotations

import os

from minisandbox.kernel.cgroup_hierarchy import Hierarchy, Memory
from minisandbox.kernel.cgroup_v1 import HierarchyV1


class KeptMemory:
    """The memory group of a slot that goes on, without any process, as the account of files that it wrote."""

    __slots__ = ("_memory", "_name", "_tree")

    def __init__(self, tree: Hierarchy, name: str, memory: Memory) -> None:
        self._tree, self._name, self._memory = tree, name, memory

    @classmethod
    def make(cls, tree: Hierarchy, name: str) -> KeptMemory:
        """Make a new group, for files that a process which joins it will write."""
        tree.make(name)
        return cls(tree, name, tree.memory(name))

    def open_join(self) -> int:
        """Return a descriptor of the file that a process joins it by, writing "0"; the caller owns it."""
        file = "tasks" if isinstance(self._tree, HierarchyV1) else "cgroup.procs"
        return self._tree.open(f"{self._name}/{file}", os.O_WRONLY)

    def held_bytes(self) -> int:
        """Return the bytes of files in memory that are charged to it, late by up to `stat_lag_bytes`."""
        return self._memory.charge().shmem_bytes

    def remove(self) -> bool:
        """Remove the group; the kernel keeps what is left of it until its files are gone."""
        return self._tree.remove(self._name)
