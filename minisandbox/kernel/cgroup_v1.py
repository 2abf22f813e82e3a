"""The v1 hierarchies: memory, CPU bandwidth and CPU time of a group, and killing without cgroup.kill.

Every file is treated as optional where the kernel does (cgroup-v1/memory.rst): swap accounting may be off,
counters came with later versions. v1 does not notify: pids.events of Linux 6.10 and later is counted but never
signalled (kernel/cgroup/pids.c notifies another file than the one it shows; seen on 6.18).
"""

from __future__ import annotations

import time

from minisandbox.errors import CgroupError
from minisandbox.kernel.cgroup_charge import Charge, cpu_quota_us, field
from minisandbox.kernel.cgroup_hierarchy import Hierarchy, Memory

KILL_PATIENCE_S = 1.0
"""How long `kill` waits for the processes that it signalled, so as to see those they were just forking."""


class HierarchyV1(Hierarchy):
    """A v1 hierarchy. It has neither cgroup.kill nor cgroup.events, so processes are listed."""

    CPU_FILE, MEMORY_FILE = "cpuacct.usage", "memory.usage_in_bytes"

    __slots__ = ()

    def is_populated(self, group: str) -> bool:
        """Return whether a live process is in the group or below it."""
        return bool(self.pids(group))

    def kill(self, group: str) -> None:
        """Send SIGKILL to every process in the group and below it, and wait up to `KILL_PATIENCE_S` for their end."""
        self._kill_members(group, time.monotonic() + KILL_PATIENCE_S)

    def kill_and_wait(self, group: str, deadline: float) -> bool:
        """Kill the group and return whether it is empty; give up at `deadline` on the clock of `time.monotonic`."""
        return self._kill_members(group, deadline)

    def memory(self, group: str) -> MemoryV1:
        """Return the memory of a group."""
        return MemoryV1(self, group)

    def set_bandwidth(self, group: str, cpus: float | None) -> None:
        """Limit CPU bandwidth; None for no limit (scheduler/sched-bwc.rst)."""
        if cpus is None:
            self.write(f"{group}/cpu.cfs_quota_us", "-1")
            return
        quota, period = cpu_quota_us(cpus)
        self.write(f"{group}/cpu.cfs_period_us", period)
        self.write(f"{group}/cpu.cfs_quota_us", quota)

    def cpu_time_s(self, group: str) -> float:
        """Return CPU seconds used in the group, also by processes that are gone; needs cpuacct."""
        return int(self.read(f"{group}/cpuacct.usage")) / 1e9


SOCKETS_MIN_BYTES = 4 << 20
"""What the socket buffers of a sandbox may take at least, where its memory limit is not smaller."""


class MemoryV1(Memory):
    """Memory of one group: page cache, anonymous and shared memory, and what the kernel allocates for it."""

    __slots__ = ()

    def set_limit(self, limit_bytes: int | None) -> None:
        """Limit memory, with swap off; None for no limit."""
        value = "-1" if limit_bytes is None else str(limit_bytes)
        # The sum with swap may never be below the limit, so it is out of the way while the limit changes.
        with_swap = self._tree.write_optional(f"{self._group}/memory.memsw.limit_in_bytes", "-1")
        self._tree.write(f"{self._group}/memory.limit_in_bytes", value)
        if with_swap:
            self._tree.write(f"{self._group}/memory.memsw.limit_in_bytes", value)
        self._tree.write_optional(f"{self._group}/memory.swappiness", "0")
        # Socket buffers are counted only where they are limited (cgroup-v1/memory.rst, 2.7.2), apart from the rest.
        sockets = "-1" if limit_bytes is None else str(min(limit_bytes, max(limit_bytes // 4, SOCKETS_MIN_BYTES)))
        self._tree.write_optional(f"{self._group}/memory.kmem.tcp.limit_in_bytes", sockets)

    def current(self) -> int:
        """Return the charge in bytes."""
        return int(self._tree.read(f"{self._group}/memory.usage_in_bytes"))

    def reset_peak(self) -> None:
        """Let the peak start again at the charge of now."""
        self._tree.write_optional(f"{self._group}/memory.max_usage_in_bytes", "0")

    def peak(self) -> int | None:
        """Return the highest charge since the last reset, or None when the kernel does not say."""
        return self._tree.read_int(f"{self._group}/memory.max_usage_in_bytes")

    def oom_kills(self) -> int:
        """Return how many processes of the group were killed for its limit, ever."""
        kills = field(self._tree.read(f"{self._group}/memory.oom_control"), b"oom_kill")
        if kills is None:
            raise CgroupError(f"{self._tree.path}/{self._group}/memory.oom_control has no oom_kill line (Linux 4.13)")
        return kills

    def charge(self) -> Charge:
        """Return what the charge consists of, late by up to `stat_lag_bytes`."""
        stat = self._tree.read(f"{self._group}/memory.stat")
        anon, shmem, cache = (field(stat, key) or 0 for key in (b"rss", b"shmem", b"cache"))
        return Charge(anon_bytes=anon, shmem_bytes=shmem, cache_bytes=max(0, cache - shmem))

    def kernel_bytes(self) -> int:
        """Return what the kernel holds for what was done in the group: names, inodes, queues."""
        return self._tree.read_int(f"{self._group}/memory.kmem.usage_in_bytes") or 0

    def drain(self) -> int:
        """Reclaim what can be, and return the bytes that stay beside the kernel's own."""
        self._tree.write_optional(f"{self._group}/memory.force_empty", "0")
        return max(0, self.current() - self.kernel_bytes())

    def close(self) -> None:
        """Do nothing: the peak needs no descriptor."""
