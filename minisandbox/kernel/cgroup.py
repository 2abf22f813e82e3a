"""The control groups of one instance: a tree below our own group in each hierarchy, with a group per slot.

    minisandbox-<instance>          in every hierarchy that is used
        inits                       all inits together: unified and memory
        s<number>                   for one slot after the other, see cgroup_slot.py
            r<number>               one command, see cgroup_run.py

v2, hybrid and v1 hosts look the same from here (cgroup_v2.py, cgroup_v1.py). Nothing outside the tree is touched,
with one exception that v2 forces: see `enable_below`. Only the tree of one instance, or that of a dead one, is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from minisandbox.degradation import Degradation
from minisandbox.errors import CgroupError, HostError, UsageError
from minisandbox.kernel.cgroup_charge import Charge
from minisandbox.kernel.cgroup_hierarchy import Hierarchy
from minisandbox.kernel.cgroup_kept import KeptMemory
from minisandbox.kernel.cgroup_layout import CONTROLLERS, CgroupKind, CgroupLayout, detect_layout
from minisandbox.kernel.cgroup_reserve import Reserve, Reserved
from minisandbox.kernel.cgroup_run import Hierarchies, RunCgroup
from minisandbox.kernel.cgroup_slot import SlotCgroup
from minisandbox.kernel.cgroup_v1 import HierarchyV1
from minisandbox.kernel.cgroup_v2 import ADVICE, HierarchyV2, enable_below, leave_supervisor_leaf

__all__ = [
    "CgroupKind",
    "CgroupLayout",
    "CgroupTree",
    "Charge",
    "KeptMemory",
    "RunCgroup",
    "SlotCgroup",
    "detect_layout",
]

INSTANCE = re.compile(r"[0-9a-f]{8,16}")
TREE = re.compile(r"minisandbox-([0-9a-f]{8,16})")
CLOSE_DEADLINE_S = 5.0


class CgroupTree:
    """The control groups of one instance. `create` makes them, `close` kills what is in them and removes them.

    `inits_fd` is the v2 directory of the group that holds all inits (-1 on pure v1), `inits_tasks_fds` are the v1
    `tasks` files that an init joins by writing "0". Both are borrowed from the tree.
    """

    def __init__(
        self, layout: CgroupLayout, instance: str, trees: Hierarchies, done_without: frozenset[Degradation]
    ) -> None:
        self.instance = instance
        self._layout, self._trees, self._done_without = layout, trees, done_without
        self.inits_fd = -1
        self.inits_tasks_fds: tuple[int, ...] = ()
        self._accounts = 0
        self.tells_charges = trees.memory is not None and trees.members is not None
        """Whether it can be proved that nothing of a sandbox is left in its groups."""
        self._reserve = Reserve(layout, trees, f"minisandbox-{instance}")
        self.reserved = Reserved()

    @classmethod
    def create(
        cls,
        layout: CgroupLayout,
        instance: str,
        warden_gid: int | None = None,
        done_without: frozenset[Degradation] = frozenset(),
    ) -> CgroupTree:
        """Make the tree of an instance below our own groups. Limits in `done_without` are left out when they are set.

        Members of `warden_gid` may start processes in leaves that are theirs: CLONE_INTO_CGROUP asks for write
        permission on cgroup.procs of the nearest common group too (cgroup-v2.rst, "Delegation Containment").
        Raises UsageError for a bad name, CgroupError when the instance has a tree already, HostError when our own
        groups are not ours to change; then nothing is left.
        """
        name = f"minisandbox-{_checked(instance)}"
        planned = _plan(layout)
        made: list[Hierarchy] = []
        try:
            if layout.unified is not None:
                enable_below(layout.unified, planned[layout.unified])
            for own, controllers in planned.items():
                made.append(_make_root(layout, own / name, controllers))
                if not made[-1].lock():
                    raise CgroupError(
                        f"control group {own / name} is being removed by somebody else; choose a new name"
                    )
            tree = cls(layout, instance, _hierarchies(made), done_without)
            tree._open(warden_gid)
        except BaseException:
            for hierarchy in reversed(made):
                hierarchy.remove_all()
                hierarchy.close()
            _leave(layout)
            raise
        return tree

    @staticmethod
    def sweep(layout: CgroupLayout, alive: Callable[[str], bool], deadline_s: float = CLOSE_DEADLINE_S) -> list[str]:
        """Kill and remove the trees of instances that are not `alive`; return their names.

        A tree that some process holds open is left alone whatever `alive` says: it may belong to a supervisor that
        keeps its state elsewhere. An instance of which something stays, such as a process that the kernel cannot
        kill, is not returned: `instances` still has it, and the next sweep tries again.
        """
        dead = {name: paths for name, paths in _trees_below(layout).items() if not alive(name)}
        return [name for name, paths in dead.items() if _sweep_one(layout, paths, time.monotonic() + deadline_s)]

    @staticmethod
    def instances(layout: CgroupLayout) -> list[str]:
        """Return the instances that have a tree below our own groups, in whatever hierarchy."""
        return sorted(_trees_below(layout))

    def keep(self, cpus: int, memory_bytes: int, host_bytes: int) -> None:
        """Keep cores and memory free of everything in the tree; before anything is in it.

        Raises HostError when this host cannot, UsageError when nothing would be left.
        """
        if cpus:
            self.reserved = self._reserve.keep_cpus(cpus)
        if memory_bytes:
            self._reserve.keep_memory(host_bytes - memory_bytes)
            self.reserved = replace(self.reserved, memory_bytes=memory_bytes)

    def join_fds(self) -> list[int]:
        """Return new descriptors of the files by which the launcher joins the tree, writing "0"; the caller's."""
        borrowed = [os.dup(fd) for fd in (*self.inits_tasks_fds, *self._reserve.join_fds)]
        if self.inits_fd >= 0:
            borrowed.append(os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.inits_fd))
        return borrowed

    def open_slot(self, number: int) -> SlotCgroup:
        """Make groups for one slot after the other. Raises CgroupError when they are there already."""
        return SlotCgroup(self._trees, f"s{number}", self._done_without)

    def open_account(self) -> KeptMemory | None:
        """Make a memory group that belongs to no slot; None when memory is not accounted."""
        self._accounts += 1
        return None if self._trees.memory is None else KeptMemory.make(self._trees.memory, f"k{self._accounts}")

    def inits(self) -> list[int]:
        """Return the processes among the inits, the launcher's own included; none where they have no group."""
        tree = self._trees.unified or self._trees.memory
        return [] if tree is None else sorted(tree.pids("inits"))

    def memory_bytes(self) -> int | None:
        """Return what is charged to all groups of the instance together, or None where it is not accounted."""
        return None if self._trees.memory is None else self._trees.memory.memory(".").current()

    def counter_files(self) -> dict[str, str]:
        """Return where the counters of a slot are, with `{group}` for its groups: cpu, memory and processes if any.

        On v2, processes of a slot are counted where its pids controller is, and CPU time always.
        """
        trees = self._trees
        found = {}
        if trees.clock is not None:
            found["cpu"] = f"{trees.clock.path}/{{group}}/{trees.clock.CPU_FILE}"
        if trees.memory is not None:
            found["memory"] = f"{trees.memory.path}/{{group}}/{trees.memory.MEMORY_FILE}"
        if trees.pids is not None:
            found["processes"] = f"{trees.pids.path}/{{group}}/pids.current"
        return found

    def close(self, deadline_s: float = CLOSE_DEADLINE_S) -> list[str]:
        """Kill everything in the tree and remove it; return the directories that stay, none when all went well.

        Blocks until the processes are gone, at most `deadline_s` seconds. Harmless when called twice.
        """
        self._close_fds()
        left = _clear([*self._trees.all, *self._reserve.opened], time.monotonic() + deadline_s)
        _leave(self._layout)
        return left

    def _open(self, warden_gid: int | None) -> None:
        unified, memory = self._trees.unified, self._trees.memory
        try:
            if unified is not None:
                unified.enable(".", unified.controllers)
                if warden_gid is not None:
                    unified.give("cgroup.procs", gid=warden_gid)
                    os.chmod("cgroup.procs", 0o664, dir_fd=unified.fd)
                unified.make("inits")
                self.inits_fd = unified.open("inits", os.O_PATH | os.O_DIRECTORY)
            if memory is not None and memory is not unified:
                memory.make("inits")
                self.inits_tasks_fds = (memory.open("inits/tasks", os.O_WRONLY),)
        except CgroupError:
            self._close_fds()
            raise

    def _close_fds(self) -> None:
        for fd in (self.inits_fd, *self.inits_tasks_fds, *self._reserve.join_fds):
            if fd >= 0:
                os.close(fd)
        self.inits_fd, self.inits_tasks_fds, self._reserve.join_fds = -1, (), []


def _checked(instance: str) -> str:
    if not INSTANCE.fullmatch(instance):
        raise UsageError(f"instance name {instance!r} is not 8 to 16 hexadecimal digits in lower case")
    return instance


def _plan(layout: CgroupLayout) -> dict[Path, frozenset[str]]:
    """Return our own directory of each hierarchy that is needed, and the controllers that are used there."""
    plan: dict[Path, set[str]] = defaultdict(set)
    if layout.unified is not None:
        plan[layout.unified] = set()
    for controller in CONTROLLERS:
        # The unified tree tells CPU time by itself.
        unneeded = controller == "cpuacct" and layout.unified is not None
        if not unneeded and (own := layout.where(controller)):
            plan[own].add(controller)
    return {own: frozenset(controllers) for own, controllers in plan.items()}


def _make_root(layout: CgroupLayout, path: Path, controllers: frozenset[str]) -> Hierarchy:
    try:
        path.mkdir(mode=0o755)
    except FileExistsError as error:
        raise CgroupError(f"control group {path} is there already; is this instance open elsewhere?") from error
    except OSError as error:
        raise HostError(f"cannot make control group {path}: {error.strerror}; {ADVICE}") from error
    return _opened(layout, path, controllers)


def _opened(layout: CgroupLayout, path: Path, controllers: frozenset[str]) -> Hierarchy:
    kind = HierarchyV2 if path.parent == layout.unified else HierarchyV1
    return kind(path, controllers)


def _hierarchies(trees: list[Hierarchy]) -> Hierarchies:
    unified = next((tree for tree in trees if isinstance(tree, HierarchyV2)), None)
    return Hierarchies(unified, tuple(tree for tree in trees if isinstance(tree, HierarchyV1)))


def _trees_below(layout: CgroupLayout) -> dict[str, list[Path]]:
    """Return the directories of every instance below our own groups."""
    found: dict[str, list[Path]] = defaultdict(list)
    for own in dict.fromkeys([*([layout.unified] if layout.unified else []), *layout.v1.values()]):
        try:
            names = os.listdir(own)
        except OSError as error:
            raise HostError(
                f"cannot look into our own control group {own}: {error.strerror}; is it covered?"
            ) from error
        for name in names:
            if match := TREE.fullmatch(name):
                found[match[1]].append(own / name)
    return found


def _sweep_one(layout: CgroupLayout, paths: list[Path], deadline: float) -> bool:
    """Remove a tree and return True, or False when it is in use, being swept by somebody else, or stays."""
    with contextlib.ExitStack() as opened:
        try:
            trees = [opened.enter_context(contextlib.closing(_opened(layout, path, frozenset()))) for path in paths]
            return all(tree.lock() for tree in trees) and not _clear(trees, deadline)
        except CgroupError:
            return False


def _clear(trees: Sequence[Hierarchy], deadline: float) -> list[str]:
    """Kill all processes, remove all groups and close the hierarchies; return the directories that stay.

    The unified hierarchy comes first: its one kill empties the others too.
    """
    left = []
    for tree in trees:
        if tree.fd >= 0:
            with contextlib.closing(tree):
                left += _clear_one(tree, deadline)
    return left


def _clear_one(tree: Hierarchy, deadline: float) -> list[str]:
    stays = tree.remove_all()
    if stays:
        # What fails here is seen by what stays.
        with contextlib.suppress(CgroupError):
            tree.kill_and_wait(".", deadline)
        stays = tree.remove_all()
    return stays


def _leave(layout: CgroupLayout) -> None:
    if layout.unified is not None:
        leave_supervisor_leaf(layout.unified)
