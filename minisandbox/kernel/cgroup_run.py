"""The leaf of one command: who belongs to it, what it used, and its end.

The hierarchies of an instance, and which of them have such leaves, are here too: a leaf exists in those that tell
processes apart, the unified one (membership, kill, CPU time) and that of pids, or on pure v1 those of pids and cpuacct.
A leaf is filled by CLONE_INTO_CGROUP (clone(2)) and by writing "0" to v1 `tasks` files: neither takes the kernel's
global lock of thread groups, which moving a process by cgroup.procs does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterable, Iterator

from minisandbox.errors import CgroupError, HostError
from minisandbox.kernel.cgroup_charge import field
from minisandbox.kernel.cgroup_hierarchy import PIDFDS_AT_ONCE, Hierarchy
from minisandbox.kernel.cgroup_v1 import HierarchyV1
from minisandbox.kernel.cgroup_v2 import HierarchyV2


class Hierarchies:
    """The hierarchies of one instance, by what they are for. Fixed once made.

    Without any, nothing is limited, measured or told apart (`Degradation.CONTROL_GROUPS`).
    Raises HostError when those that there are do not tell processes of commands apart: neither a unified hierarchy
    nor pids and cpuacct.
    """

    __slots__ = ("all", "clock", "cpu", "leaves", "members", "memory", "pids", "unified", "unified_pids", "v1")

    def __init__(self, unified: HierarchyV2 | None, v1: tuple[HierarchyV1, ...]) -> None:
        self.unified, self.v1 = unified, v1
        self.all: tuple[Hierarchy, ...] = (unified, *v1) if unified else v1
        self.memory, self.pids, self.cpu = (self._of(name) for name in ("memory", "pids", "cpu"))
        self.unified_pids = unified if unified is self.pids else None
        members, clock = unified or self.pids, unified or self._of("cpuacct")
        if self.all and (members is None or clock is None):
            raise HostError("control groups need a cgroup2 mount, or the v1 hierarchies of pids and cpuacct; mount one")
        # Which processes belong to a command, and how much CPU time it used.
        self.members, self.clock = members, clock
        # Where a command has a leaf of its own.
        self.leaves = tuple(tree for tree in self.all if tree is unified or tree.controllers & {"pids", "cpuacct"})

    def _of(self, controller: str) -> Hierarchy | None:
        return next((tree for tree in self.all if controller in tree.controllers), None)


class RunCgroup:
    """The leaf of one command. Made empty by `SlotCgroup`, which hands it out; `remove` ends it.

    `dir_fd` is the v2 directory for CLONE_INTO_CGROUP (-1 on pure v1), `tasks_fds` are v1 `tasks` files into each of
    which the new process writes "0". `events_fd` is pids.events of the leaf on v2, which reports POLLPRI when a
    process was refused; -1 on v1, which does not notify: read `processes_refused` from time to time.
    """

    __slots__ = (
        "_cpu_before_s", "_kill_all", "_killed", "_processes", "_refused_at_kill", "_slot_refused",
        "_slot_refused_before", "_trees", "_warden_uid",
        "dir_fd", "events_fd", "name", "tasks_fds",
    )  # fmt: skip

    def __init__(
        self, trees: Hierarchies, name: str, slot_refused: Callable[[], int], kill_all: Callable[[], None]
    ) -> None:
        self.name = name
        self.dir_fd = self.events_fd = -1
        self.tasks_fds: tuple[int, ...] = ()
        self._trees, self._slot_refused, self._slot_refused_before = trees, slot_refused, 0
        self._warden_uid = os.geteuid()
        self._kill_all = kill_all
        self._processes: int | None = None
        self._refused_at_kill: int | None = None
        self._cpu_before_s = 0.0
        self._killed = False
        try:
            for tree in self._trees.leaves:
                tree.make(name)
            if self._trees.unified is not None and self._warden_uid != 0:
                # an ordinary user cannot give it away, but his inits are in his group
                os.chmod(f"{name}/cgroup.procs", 0o664, dir_fd=self._trees.unified.fd)
        except CgroupError:
            self.remove()
            raise

    def prepare(self, warden_uid: int, processes: int | None) -> None:
        """Let `warden_uid` start processes in the leaf, and limit how many there may be; only what changed is written.

        CLONE_INTO_CGROUP asks for write permission on cgroup.procs of the leaf (clone(2), cgroup-v2.rst "Delegation").
        """
        if self._trees.unified is not None and warden_uid != self._warden_uid:
            self._trees.unified.give(f"{self.name}/cgroup.procs", warden_uid)
            self._warden_uid = warden_uid
        if self._trees.pids is not None and processes != self._processes:
            self._trees.pids.write(f"{self.name}/pids.max", "max" if processes is None else str(processes))
            self._processes = processes

    def open(self, groups: Iterable[tuple[HierarchyV1, str]]) -> None:
        """Open what a start needs; `groups` are the v1 groups that a process of the command joins."""
        try:
            if self._trees.unified is not None:
                self.dir_fd = self._trees.unified.open(self.name, os.O_PATH | os.O_DIRECTORY)
            for tree, group in groups:
                self.tasks_fds += (tree.open(f"{group}/tasks", os.O_WRONLY),)
            if self._trees.unified_pids:
                self.events_fd = self._trees.unified_pids.open(f"{self.name}/pids.events", os.O_RDONLY)
                # A file that was never read counts as changed.
                os.pread(self.events_fd, 64, 0)
                self._slot_refused_before = self._slot_refused()
        except CgroupError:
            self.close_fds()
            raise

    def close_start_fds(self) -> None:
        """Close `dir_fd` and `tasks_fds`: after the start, a running command needs none of them."""
        for fd in (self.dir_fd, *self.tasks_fds):
            if fd >= 0:
                os.close(fd)
        self.dir_fd, self.tasks_fds = -1, ()

    def close_fds(self) -> None:
        """Close every descriptor of the leaf; counters can still be read."""
        self.close_start_fds()
        if self.events_fd >= 0:
            os.close(self.events_fd)
            self.events_fd = -1

    def open_populated_fd(self) -> int:
        """Return a descriptor that reports POLLPRI when the leaf becomes empty or populated; the caller closes it.

        Look at `is_populated` after opening it. -1 on pure v1, which cannot tell.
        """
        if self._trees.unified is None:
            return -1
        fd = self._trees.unified.open(f"{self.name}/cgroup.events", os.O_RDONLY)
        os.pread(fd, 64, 0)
        return fd

    @property
    def tracked(self) -> bool:
        """Whether its processes are told from others, and measured."""
        return self._trees.members is not None

    def cpu_time_s(self) -> float:
        """Return CPU seconds used by every process that was ever in the leaf, and by their descendants; 0 untracked."""
        if self._trees.clock is None:
            return 0.0
        return self._trees.clock.cpu_time_s(self.name) - self._cpu_before_s

    def processes_peak(self) -> int | None:
        """Return the most processes and threads there were at once, or None before Linux 6.1."""
        return self._trees.pids.read_int(f"{self.name}/pids.peak") if self._trees.pids else None

    def processes_refused(self) -> int:
        """Return how many processes and threads were refused, for the limit of the command or that of its slot.

        On v2 from Linux 6.10, what the slot's limit refuses is counted by each of its commands that are open then.
        """
        if self._trees.pids is None:
            return 0
        if self._refused_at_kill is not None:
            return self._refused_at_kill
        if self.events_fd >= 0:
            text: bytes | None = os.pread(self.events_fd, 64, 0)
        else:
            text = self._trees.pids.read_optional(f"{self.name}/pids.events")
        return (field(text or b"", b"max") or 0) + self._slot_refused() - self._slot_refused_before

    def kill(self) -> None:
        """Kill every process of the leaf, frozen or stopped or not. On v2 this does not wait for their end."""
        if self._trees.pids is not None and self._trees.unified is None and self._refused_at_kill is None:
            # Without cgroup.kill, pids.max is set to 0, and what that refuses is not the command's doing.
            self._refused_at_kill = self.processes_refused()
        self._killed = True
        if self._trees.members is None:
            self._kill_all()
        else:
            self._trees.members.kill(self.name)

    def members(self) -> frozenset[int]:
        """Return the processes of the leaf, by the ids that they have in our own pid namespace."""
        return frozenset(self._trees.members.pids(self.name)) if self._trees.members else frozenset()

    def kill_members(self, pids: Iterable[int]) -> None:
        """Kill some processes of the leaf. A number that another process got since it was listed is never hit."""
        with contextlib.ExitStack() as opened:
            pidfds: dict[int, int] = {}
            for pid in itertools.islice(pids, PIDFDS_AT_ONCE):
                with contextlib.suppress(ProcessLookupError):
                    pidfds[pid] = os.pidfd_open(pid)
                    opened.callback(os.close, pidfds[pid])
            # A process elsewhere that got the number meanwhile is not listed here; one that is dead takes no signal.
            for pid in self.members() & pidfds.keys():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfds[pid], signal.SIGKILL)

    @contextlib.contextmanager
    def no_new_processes(self) -> Iterator[None]:
        """Refuse every new process and thread of the leaf for the block, where there is a controller of pids."""
        if self._trees.pids is None:
            yield
            return
        limit = f"{self.name}/pids.max"
        self._trees.pids.write(limit, "0")
        try:
            yield
        finally:
            self._trees.pids.write(limit, "max" if self._processes is None else str(self._processes))

    def renew(self, cpu_time_s: float, peak: int | None, refused: int) -> bool:
        """Make the leaf as good as new and return True, or False when it is not: then remove it.

        It can be only if it never held more than one process, since the peak cannot be reset, and was never killed:
        what is cloned into a group that was killed more often than its parent's dies at birth (cgroup_post_fork).
        """
        if peak != 1 or refused or self._killed or self.is_populated():
            return False
        self.close_fds()
        self._cpu_before_s += cpu_time_s
        return True

    def is_populated(self) -> bool:
        """Return whether a live process is in the leaf; one that is dead but not yet reaped does not count."""
        return self._trees.members is not None and self._trees.members.is_populated(self.name)

    def remove(self) -> bool:
        """Remove the leaf and return True, or False while a process is in it. Read the counters before."""
        self.close_fds()
        return all(tree.remove(self.name) for tree in self._trees.leaves)
