"""What of the host is kept from all sandboxes of an instance together: cores and memory for whoever trains beside them.

A limit on the tree of the instance, whatever is in it. Cores are kept free by a cpuset where there is the controller:
then nothing of a sandbox ever runs on them. Elsewhere bandwidth alone is kept free, on no core in particular.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from minisandbox.errors import CgroupError, HostError, UsageError
from minisandbox.kernel.cgroup_hierarchy import Hierarchy
from minisandbox.kernel.cgroup_layout import CgroupLayout
from minisandbox.kernel.cgroup_run import Hierarchies
from minisandbox.kernel.cgroup_v1 import HierarchyV1
from minisandbox.kernel.cgroup_v2 import enable_below


@dataclass(frozen=True, slots=True)
class Reserved:
    """What is kept free, and how."""

    cpus: int = 0
    memory_bytes: int = 0
    cores: tuple[int, ...] = ()
    """Numbers of the cores on which no sandbox runs; none where bandwidth alone is kept free."""
    how: str = ""
    """"cpuset" or "bandwidth"; empty when no core is reserved."""


def check_reserve(cpus: int, memory_bytes: int, cores: int, host_bytes: int) -> None:
    """Raise UsageError when nothing would be left for sandboxes."""
    for name, value in (("reserve_cpus", cpus), ("reserve_memory_bytes", memory_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{name} is {value!r}; give a whole number, 0 for none")
    if cpus >= cores:
        raise UsageError(f"reserve_cpus is {cpus} of {cores} cores, which leaves none for sandboxes; reserve fewer")
    if memory_bytes >= host_bytes:
        raise UsageError(
            f"reserve_memory_bytes is {memory_bytes} of {host_bytes}, which leaves none for sandboxes; reserve less"
        )


class Reserve:
    """Makes the limits. What it opens belongs to the tree, which closes it."""

    def __init__(self, layout: CgroupLayout, trees: Hierarchies, name: str) -> None:
        self._layout, self._trees, self._name = layout, trees, name
        self.opened: list[Hierarchy] = []
        """Further trees of the instance, to be cleared with the others."""
        self.join_fds: list[int] = []
        """What the launcher must join beside the group of inits."""

    def keep_memory(self, most_bytes: int) -> None:
        """Let all sandboxes together have no more than this. Raises HostError without the controller."""
        if self._trees.memory is None:
            raise HostError("memory cannot be reserved: this host has no memory controller that is ours to use")
        self._trees.memory.memory(".").set_limit(most_bytes)

    def keep_cpus(self, count: int) -> Reserved:
        """Keep so many cores free of sandboxes, or that much bandwidth. Raises HostError when neither can be."""
        tree = self._cpuset()
        if tree is None:
            return self._keep_bandwidth(count)
        own = tree.path.parent
        is_v1 = isinstance(tree, HierarchyV1)
        usable = _cores(_first(own, "cpuset.effective_cpus", "cpuset.cpus.effective", "cpuset.cpus"))
        check_reserve(count, 0, len(usable), 1)
        if is_v1:  # a new group has none of either, and takes no process without
            tree.write("cpuset.mems", _first(own, "cpuset.effective_mems", "cpuset.mems"))
        tree.write("cpuset.cpus", ",".join(map(str, usable[:-count])))
        if is_v1:
            self.join_fds.append(tree.open("tasks", os.O_WRONLY))
        return Reserved(cpus=count, cores=tuple(usable[-count:]), how="cpuset")

    def _cpuset(self) -> Hierarchy | None:
        own = self._layout.v1.get("cpuset")
        if own is not None:
            return self._make(own)
        unified = self._trees.unified
        if unified is None or self._layout.unified is None:
            return None
        if "cpuset" not in (self._layout.unified / "cgroup.controllers").read_text().split():
            return None
        enable_below(self._layout.unified, frozenset({"cpuset"}))
        return unified

    def _make(self, own: Path) -> Hierarchy:
        path = own / self._name
        try:
            path.mkdir(mode=0o755)
        except OSError as error:
            raise CgroupError(f"cannot make control group {path}: {error.strerror}") from error
        self.opened.append(HierarchyV1(path, frozenset({"cpuset"})))
        if not self.opened[-1].lock():
            raise CgroupError(f"control group {path} is being removed by somebody else; try again")
        return self.opened[-1]

    def _keep_bandwidth(self, count: int) -> Reserved:
        tree, cores = self._trees.cpu, len(os.sched_getaffinity(0))
        if tree is None:
            raise HostError("cores cannot be reserved: this host has neither a cpuset nor a cpu controller for us")
        check_reserve(count, 0, cores, 1)
        tree.set_bandwidth(".", float(cores - count))
        if isinstance(tree, HierarchyV1):
            self.join_fds.append(tree.open("tasks", os.O_WRONLY))
        return Reserved(cpus=count, how="bandwidth")


def _first(own: Path, *names: str) -> str:
    for name in names:
        try:
            return (own / name).read_text().strip()
        except FileNotFoundError:
            continue
    raise CgroupError(f"{own} says nothing about its cores; is it covered?")


def _cores(text: str) -> list[int]:
    """Return the numbers in a list such as 0-3,8 (cpuset(7), "List format")."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
