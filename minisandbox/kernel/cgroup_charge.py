"""Values of memory and CPU accounting that v1 and v2 share. No I/O."""

from __future__ import annotations

import os
from dataclasses import dataclass

from minisandbox.errors import UsageError

CPU_PERIOD_US = 100_000
"""The kernel's own default period of CPU bandwidth (scheduler/sched-bwc.rst)."""

SMALLEST_QUOTA_US = 1000
"""The kernel refuses less."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What the memory charge of a group consists of; the rest is the kernel's own, for its processes and files."""

    anon_bytes: int
    shmem_bytes: int
    cache_bytes: int
    """Page cache of files, which the kernel takes back when it needs to."""


def stat_lag_bytes() -> int:
    """Return by how much memory.stat may be wrong, until the kernel's next flush; there is one every 2 s.

    Reading it brings it up to date only after 64 changed pages a CPU (MEMCG_CHARGE_BATCH, mm/memcontrol.c).
    """
    return 64 * (os.cpu_count() or 1) * os.sysconf("SC_PAGE_SIZE")


def cpu_quota_us(cpus: float) -> tuple[str, str]:
    """Return quota and period in microseconds, as the kernel reads them.

    Raises UsageError when the quota would be below the kernel's smallest.
    """
    quota = round(cpus * CPU_PERIOD_US)
    if quota < SMALLEST_QUOTA_US:
        raise UsageError(
            f"limit cpus is {cpus!r}; the smallest that the kernel takes is {SMALLEST_QUOTA_US / CPU_PERIOD_US}"
        )
    return str(quota), str(CPU_PERIOD_US)


def field(text: bytes, key: bytes) -> int | None:
    """Return the number after `key` in a file of "key number" lines, or None when it has no such line."""
    for line in text.splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return int(value)
    return None
