"""The unified hierarchy: controllers, memory, CPU bandwidth and CPU time of a group, kill and wait (cgroup-v2.rst).

A controller-less unified tree, as on hybrid hosts, still gives membership, cgroup.kill, cgroup.events and cpu.stat.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from pathlib import Path

import psutil

from minisandbox.errors import CgroupError, HostError
from minisandbox.kernel.cgroup_charge import Charge, cpu_quota_us, field, stat_lag_bytes
from minisandbox.kernel.cgroup_hierarchy import Hierarchy, Memory
from minisandbox.kernel.cgroup_layout import SUPERVISOR_LEAF

ADVICE = (
    "start it with `systemd-run --user --scope -p Delegate=yes COMMAND` (as root without --user), "
    "or give as cgroup parent a delegated group that holds no process"
)
"""What to do where control groups are not ours to change."""


class HierarchyV2(Hierarchy):
    """The unified hierarchy."""

    CPU_FILE, MEMORY_FILE = "cpu.stat", "memory.current"

    __slots__ = ()

    def is_populated(self, group: str) -> bool:
        """Return whether a live process is in the group or below it."""
        return b"populated 1" in self.read(f"{group}/cgroup.events")

    def kill(self, group: str) -> None:
        """Send SIGKILL to every process in the group and below it, frozen ones too, in one step of the kernel."""
        if not self.write_optional(f"{group}/cgroup.kill", "1"):
            # Before Linux 5.14.
            self._kill_members(group, time.monotonic() + 1.0)

    def kill_and_wait(self, group: str, deadline: float) -> bool:
        """Kill the group and return whether it is empty; give up at `deadline` on the clock of `time.monotonic`."""
        self.kill(group)
        events_fd = self.open(f"{group}/cgroup.events", os.O_RDONLY)
        try:
            waiting = select.poll()
            waiting.register(events_fd, select.POLLPRI)
            while b"populated 1" in os.pread(events_fd, 256, 0):
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    return False
                waiting.poll(remaining_s * 1000)
            return True
        finally:
            os.close(events_fd)

    def memory(self, group: str) -> MemoryV2:
        """Return the memory of a group."""
        return MemoryV2(self, group)

    def set_bandwidth(self, group: str, cpus: float | None) -> None:
        """Limit CPU bandwidth; None for no limit."""
        self.write(f"{group}/cpu.max", "max" if cpus is None else " ".join(cpu_quota_us(cpus)))

    def cpu_time_s(self, group: str) -> float:
        """Return CPU seconds used in the group, also by processes that are gone; needs no controller."""
        return (field(self.read(f"{group}/cpu.stat"), b"usage_usec") or 0) / 1e6

    def enable(self, group: str, controllers: frozenset[str]) -> None:
        """Let the groups below `group` have these controllers."""
        if controllers:
            self.write(f"{group}/cgroup.subtree_control", _added(controllers))


class MemoryV2(Memory):
    """Memory of one group: page cache, anonymous and shared memory, and what the kernel allocates for it."""

    __slots__ = ("_peak_before", "_peak_fd")

    def __init__(self, tree: Hierarchy, group: str) -> None:
        super().__init__(tree, group)
        self._peak_fd = -1
        self._peak_before: int | None = None

    def set_limit(self, limit_bytes: int | None) -> None:
        """Limit memory, with swap off; None for no limit."""
        self._tree.write_optional(f"{self._group}/memory.swap.max", "0")
        self._tree.write(f"{self._group}/memory.max", "max" if limit_bytes is None else str(limit_bytes))

    def current(self) -> int:
        """Return the charge in bytes."""
        return int(self._tree.read(f"{self._group}/memory.current"))

    def reset_peak(self) -> None:
        """Let the peak start again at the charge of now, as seen through a descriptor that stays open until `close`.

        Before Linux 6.12 the peak only rises; its value of now is kept to tell whether it rose.
        """
        self.close()
        self._peak_before = None
        name = f"{self._group}/memory.peak"
        try:
            self._peak_fd = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._tree.fd)
            os.write(self._peak_fd, b"reset")
        except OSError:
            self.close()
            self._peak_before = self._tree.read_int(name)

    def peak(self) -> int | None:
        """Return the highest charge since the last reset, or None when the kernel does not say."""
        if self._peak_fd >= 0:
            return int(os.pread(self._peak_fd, 32, 0))
        peak = self._tree.read_int(f"{self._group}/memory.peak")
        risen = peak is not None and (self._peak_before is None or peak > self._peak_before)
        return peak if risen else None

    def oom_kills(self) -> int:
        """Return how many processes of the group were killed for its limit, ever."""
        return field(self._tree.read(f"{self._group}/memory.events"), b"oom_kill") or 0

    def charge(self) -> Charge:
        """Return what the charge consists of, late by up to `stat_lag_bytes`."""
        stat = self._tree.read(f"{self._group}/memory.stat")
        anon, shmem, cache = (field(stat, key) or 0 for key in (b"anon", b"shmem", b"file"))
        return Charge(anon_bytes=anon, shmem_bytes=shmem, cache_bytes=max(0, cache - shmem))

    def kernel_bytes(self) -> int:
        """Return what the kernel holds for what was done in the group, late by up to `stat_lag_bytes` (Linux 5.18)."""
        return field(self._tree.read(f"{self._group}/memory.stat"), b"kernel") or 0

    def drain(self) -> int:
        """Reclaim what can be, and return the bytes that stay beside the kernel's own, less `stat_lag_bytes`.

        So many pages may be charged as held ready for each CPU: memory.reclaim does not give them back as
        memory.force_empty of v1 does.
        """
        # EAGAIN: less could be reclaimed than was asked for, which is what is found out here.
        with contextlib.suppress(CgroupError):
            self._tree.write_optional(f"{self._group}/memory.reclaim", str(self.current()))
        return max(0, self.current() - self.kernel_bytes() - stat_lag_bytes())

    def close(self) -> None:
        """End the measurement of the peak."""
        if self._peak_fd >= 0:
            os.close(self._peak_fd)
            self._peak_fd = -1


_ATTEMPTS = 5


def enable_below(own: Path, controllers: frozenset[str]) -> None:
    """Let the groups below our own group have these controllers.

    A group with processes cannot give controllers away (cgroup-v2.rst, "No Internal Process Constraint"). When they
    are all ours, or the group was delegated to us, they move into a leaf.
    Raises HostError when the group holds other processes or is not ours to change.
    """
    try:
        missing = controllers - set((own / "cgroup.subtree_control").read_text().split())
        if not missing:
            return
        try:
            (own / "cgroup.subtree_control").write_text(_added(missing))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            _give_from_leaf(own, missing)
    except OSError as error:
        raise HostError(f"cannot enable {_named(controllers)} below {own}: {error.strerror}; {ADVICE}") from error


def leave_supervisor_leaf(own: Path) -> None:
    """Undo `enable_below`: take the controllers back and move what is in the leaf to our own group.

    Nothing is changed when we are not in that leaf, while an instance lives beside it, or when the kernel refuses.
    """
    leaf = own / SUPERVISOR_LEAF
    if any(path != leaf for path in own.glob("minisandbox-*")):
        return
    with contextlib.suppress(OSError):
        if str(os.getpid()) not in (leaf / "cgroup.procs").read_text().split():
            return
        given = (own / "cgroup.subtree_control").read_text().split()
        (own / "cgroup.subtree_control").write_text(" ".join(f"-{name}" for name in given))
        for pid in (leaf / "cgroup.procs").read_text().split():
            _move(int(pid), own)
        leaf.rmdir()


def _give_from_leaf(own: Path, controllers: frozenset[str]) -> None:
    """Empty the group and give controllers away; again when somebody was started in it meanwhile."""
    for attempt in range(_ATTEMPTS):
        _enter_supervisor_leaf(own)
        try:
            (own / "cgroup.subtree_control").write_text(_added(controllers))
            return
        except OSError as error:
            if error.errno != errno.EBUSY or attempt == _ATTEMPTS - 1:
                raise


def _is_delegated(own: Path) -> bool:
    """Return whether everything in the group is ours to arrange, as a manager of groups said.

    It belongs to us and not to root; or systemd marked it (systemd.resource-control(5), Delegate=); or it is the root
    of our own control group namespace, as in a container.
    """
    if os.geteuid() != 0 and own.stat().st_uid == os.geteuid():
        return True
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(own, name) == b"1":
                return True
    # the real root has no such file
    return (own / "cgroup.type").exists() and not (own.parent / "cgroup.procs").exists()


def _enter_supervisor_leaf(own: Path) -> None:
    """Move this process and its descendants into the leaf, or everything that is in a group delegated to us.

    Raises HostError when anything else is in a group that was not.
    """
    procs = own / "cgroup.procs"
    ours = {os.getpid()} | {child.pid for child in psutil.Process().children(recursive=True)}
    inside = {int(pid) for pid in procs.read_text().split()}
    if 0 in inside:
        raise HostError(
            f"control group {own} holds processes outside our pid namespace, which cannot be moved out of it, "
            f"so it cannot give controllers to sandboxes; {ADVICE}"
        )
    if (others := inside - ours) and not _is_delegated(own):
        raise HostError(
            f"control group {own} holds {len(others)} processes beside this one (such as {min(others)}), "
            f"so it cannot give controllers to sandboxes; {ADVICE}"
        )
    leaf = own / SUPERVISOR_LEAF
    leaf.mkdir(exist_ok=True)
    for pid in sorted(inside):
        _move(pid, leaf)


def _move(pid: int, group: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def _added(controllers: frozenset[str]) -> str:
    return " ".join(f"+{name}" for name in sorted(controllers))


def _named(controllers: frozenset[str]) -> str:
    return ", ".join(sorted(controllers))
