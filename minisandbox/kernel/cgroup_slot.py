"""The control groups of one slot: its limits and its memory counters, and a leaf for each command that runs in it.

    hierarchy     unified           memory (v1)   pids (v1)     cpu (v1, only with a limit)
    slot          s3                s3            s3            s3
    command       s3/r7             -             s3/r7         -

One memory group a sandbox is enough: it costs the kernel 213 KiB (Linux 6.18), the other controllers 5 to 15 KiB.
It never starts, moves or waits for a process, and holds no descriptor while no command runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from minisandbox.degradation import Degradation, refusal
from minisandbox.errors import CgroupError, HostError
from minisandbox.kernel.cgroup_charge import Charge, field, stat_lag_bytes
from minisandbox.kernel.cgroup_hierarchy import Hierarchy, Memory
from minisandbox.kernel.cgroup_kept import KeptMemory
from minisandbox.kernel.cgroup_run import Hierarchies, RunCgroup
from minisandbox.kernel.cgroup_v1 import HierarchyV1
from minisandbox.spec import Limits

T = TypeVar("T")


class SlotCgroup:
    """The groups of one slot. Made by `CgroupTree.open_slot`; `remove` ends it."""

    def __init__(self, trees: Hierarchies, name: str, done_without: frozenset[Degradation] = frozenset()) -> None:
        self.name = name
        self.kill_untracked: Callable[[], None] = lambda: None
        """How all processes are killed where no control group tells which they are."""
        self._done_without = done_without
        self._trees = trees
        # Made when it is needed: without a limit, a group of the v1 cpu hierarchy says nothing.
        self._cpu_alone = next((tree for tree in trees.v1 if tree.controllers == {"cpu"}), None)
        self._groups: list[Hierarchy] = []
        self._memory: Memory | None = None
        self._memory_bytes: int | None = None
        self._processes: int | None = None
        self._cpus: float | None = None
        self._runs = 0
        self._is_frozen = self._is_given = False
        self._spares: list[RunCgroup] = []
        try:
            self._make()
        except CgroupError:
            self.remove()
            raise

    def configure(self, limits: Limits) -> None:
        """Set the limits of the slot: memory with swap off, processes, CPU bandwidth; only what changed is written.

        Those that were agreed to be done without are left out.
        Raises HostError when another is asked for whose controller this host lacks, UsageError when `cpus` is less
        than the kernel can give.
        """
        without = self._done_without
        if limits.memory_bytes != self._memory_bytes and Degradation.MEMORY_LIMIT not in without:
            _needed(self._memory, Degradation.MEMORY_LIMIT).set_limit(limits.memory_bytes)
            self._memory_bytes = limits.memory_bytes
        if limits.processes != self._processes and Degradation.PROCESSES_LIMIT not in without:
            self._limit_processes(limits.processes)
            self._processes = limits.processes
        if limits.cpus != self._cpus and Degradation.CPUS_LIMIT not in without:
            self._limit_cpus(limits.cpus)
            self._cpus = limits.cpus

    def prepare_spare(self, warden_uid: int) -> None:
        """Make the leaf of the next command ahead of time, so that `open_run` finds it ready."""
        if not self._spares:
            self._spares.append(self._make_leaf())
            self._spares[0].prepare(warden_uid, self._processes)

    def open_run(self, warden_uid: int, processes: int | None = None) -> RunCgroup:
        """Return the leaf of a new command, in which a process with the uid `warden_uid` may start others.

        `processes` limits this command alone; None leaves it with the limit of the slot.
        """
        run = self._spares.pop() if self._spares else self._make_leaf()
        try:
            run.prepare(warden_uid, self._processes if processes is None else processes)
            run.open(self._joined(run.name))
        except CgroupError:
            run.remove()
            raise
        return run

    def take_back(self, run: RunCgroup, cpu_time_s: float, peak: int | None, refused: int) -> bool:
        """Keep the leaf of a command that ended for the next one, if nothing shows that it was used; else return False.

        The counters are those of the command that ended.
        """
        if len(self._spares) > 1 or not run.renew(cpu_time_s, peak, refused):
            return False
        self._spares.append(run)
        return True

    def memory_current(self) -> int:
        """Return the memory charge in bytes, 0 when it is not accounted.

        The kernel keeps up to 64 pages a CPU ready, which count as charged (MEMCG_CHARGE_BATCH, mm/memcontrol.c).
        """
        return self._memory.current() if self._memory else 0

    def reset_memory_peak(self) -> None:
        """Let `memory_peak` start again. On v2 this holds a descriptor until `end_memory_peak`."""
        if self._memory:
            self._memory.reset_peak()

    def memory_peak(self) -> int | None:
        """Return the highest charge in bytes since the reset, or None when this kernel cannot tell.

        v2 before Linux 6.12 cannot reset it, and tells only a peak that is higher than every earlier one.
        """
        return self._memory.peak() if self._memory else None

    def end_memory_peak(self) -> None:
        """Give back what `reset_memory_peak` holds."""
        if self._memory:
            self._memory.close()

    def oom_kills(self) -> int:
        """Return how many processes were killed for the memory limit since the slot was made."""
        return self._memory.oom_kills() if self._memory else 0

    def charge(self) -> Charge:
        """Return what the memory charge consists of; see `stat_lag_bytes` for how late that is."""
        return _needed(self._memory, Degradation.MEMORY_LIMIT).charge()

    @property
    def is_lendable(self) -> bool:
        """Whether another slot may have the groups once they are clean: not while they are frozen or given away."""
        return not self._is_frozen and not self._is_given

    def kernel_bytes(self) -> int:
        """Return what the kernel holds for what was done in the slot: names, inodes, queues; `is_clean` ignores it."""
        return self._memory.kernel_bytes() if self._memory else 0

    def drain(self) -> int:
        """Reclaim page cache and return the bytes that stay charged beside the kernel's own.

        On v1, 0 proves the slot empty; on v2, that less than `stat_lag_bytes` is left. What stays may also be cache
        of files that processes elsewhere have mapped. It takes 0.35 ms, 20 ms with 20 MB of cache (Linux 6.18).
        """
        return self._memory.drain() if self._memory else 0

    def is_clean(self) -> bool:
        """Return whether the slot may be handed out again: no process, and no anonymous or shared memory charged.

        Page cache may be left, see `charge`. memory.stat is late by up to `stat_lag_bytes` until the kernel's next
        flush, within 2 s. So little is verified by `drain`, which may mistake page cache for it: ask again after 2 s.
        As little may be hidden too, but not in a slot that has rested for 2 s.
        """
        if self.is_populated():
            return False
        if self._memory is None:
            return True
        charge = self._memory.charge()
        told = charge.anon_bytes + charge.shmem_bytes
        return told == 0 or (told <= stat_lag_bytes() and self._memory.drain() == 0)

    def is_populated(self) -> bool:
        """Return whether a live process is in the slot, in whatever leaf."""
        return self._trees.members is not None and self._trees.members.is_populated(self.name)

    def kill(self) -> None:
        """Kill every process of the slot, frozen or stopped or not. On v2 this does not wait for their end."""
        if self._trees.members is None:
            self.kill_untracked()
            return
        self._trees.members.kill(self.name)
        # A leaf remembers the kill: what a process from elsewhere clones into it dies at birth (cgroup_post_fork).
        self._remove_spares()
        if self._trees.members is not self._trees.unified:
            # Without cgroup.kill, pids.max was set to 0 meanwhile.
            self._limit_processes(self._processes)

    def give_memory(self) -> KeptMemory | None:
        """Return the memory group, with what is charged to it, for somebody else; None when none is accounted.

        No process may be in it ever again; call `remove_rest` instead of `remove`.
        """
        memory, tree = self._memory, self._trees.memory
        self._is_given = True
        return None if memory is None or tree is None else KeptMemory(tree, self.name, memory)

    def remove_rest(self) -> None:
        """Remove all groups but that of memory."""
        self._remove_spares()
        self.end_memory_peak()
        for tree in self._groups:
            if tree is not self._trees.memory:
                tree.remove(self.name)

    def freeze(self, value: int) -> None:
        """Stop all processes of the slot (1), or let them go on (0). Raises HostError where that cannot be."""
        self._is_frozen = value != 0
        tree = self._trees.members
        if tree is None or not tree.write_optional(f"{self.name}/cgroup.freeze", str(value)):
            raise HostError("this host cannot freeze processes: that needs the unified hierarchy of Linux 5.2")

    def is_frozen(self) -> bool:
        """Return whether all processes have stopped."""
        tree = self._trees.members
        return tree is not None and b"frozen 1" in tree.read(f"{self.name}/cgroup.events")

    def processes(self) -> set[int]:
        """Return the process ids in the slot."""
        return set() if self._trees.members is None else self._trees.members.pids(self.name)

    def remove(self) -> bool:
        """Remove the groups and return True, or False while a process or the leaf of a command is in them."""
        self._remove_spares()
        self.end_memory_peak()
        self._groups = [tree for tree in self._groups if not tree.remove(self.name)]
        return not self._groups

    def _make(self) -> None:
        for tree in self._trees.all:
            if tree is not self._cpu_alone:
                self._make_group(tree)
        if self._trees.unified_pids:
            self._trees.unified_pids.enable(self.name, frozenset({"pids"}))
        if self._trees.memory:
            self._memory = self._trees.memory.memory(self.name)

    def _make_group(self, tree: Hierarchy) -> None:
        tree.make(self.name)
        self._groups.append(tree)

    def _make_leaf(self) -> RunCgroup:
        self._runs += 1
        return RunCgroup(self._trees, f"{self.name}/r{self._runs}", self._refused, lambda: self.kill_untracked())

    def _remove_spares(self) -> None:
        self._spares = [spare for spare in self._spares if not spare.remove()]

    def _joined(self, leaf: str) -> Iterator[tuple[HierarchyV1, str]]:
        """Yield the v1 groups that a process of a command joins: its leaf where there is one, else the slot."""
        for tree in self._trees.v1:
            if tree in self._trees.leaves:
                yield tree, leaf
            elif tree in self._groups:
                yield tree, self.name

    def _refused(self) -> int:
        """Return how many processes the limit of the slot refused, as far as the leaf of the command does not tell.

        v1, and v2 before Linux 6.10, count where the fork was tried (cgroup-v2.rst, pids.events.local).
        """
        if self._trees.unified_pids is None:
            return 0
        text = self._trees.unified_pids.read_optional(f"{self.name}/pids.events.local")
        return field(text or b"", b"max") or 0

    def _limit_processes(self, processes: int | None) -> None:
        tree = _needed(self._trees.pids, Degradation.PROCESSES_LIMIT)
        tree.write(f"{self.name}/pids.max", "max" if processes is None else str(processes))

    def _limit_cpus(self, cpus: float | None) -> None:
        tree = _needed(self._trees.cpu, Degradation.CPUS_LIMIT)
        if tree not in self._groups:
            self._make_group(tree)
        tree.set_bandwidth(self.name, cpus)


def _needed(found: T | None, degradation: Degradation) -> T:
    """Return what was found, or raise HostError: a limit is never left out silently."""
    if found is None:
        raise refusal(degradation)
    return found
