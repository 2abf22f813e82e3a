"""How many episodes run at once: a fixed number, or between bounds by how much the machine has to do."""

from __future__ import annotations

import os

import msgspec
import psutil

from minisandbox.errors import UsageError

LOOK_S = 0.5
"""How often the load is looked at."""

BUSY, IDLE = 0.95, 0.80
"""Above the one, the processors have enough to do; below the other, there is room for more."""

SCARCE, AMPLE = 0.10, 0.20
"""Below the one share of free memory, fewer episodes run; above the other, there can be more."""

QUEUEING = 4.0
"""So many processes that want to run, for each processor, are too many."""


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds between which it may be."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(f"concurrency is from 1 up, and at least {self.least} is not at most {self.most}")


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine has to do."""

    busy: float
    """Share of the processors' time, 0 to 1."""
    queueing: float
    """Processes that want to run, for each processor."""
    memory_free: float
    """Share of the memory that can still be had."""


def next_target(target: int, bounds: Concurrency, load: Load, *, is_full: bool) -> int:
    """Return how many should run, from how many may now and the load; `is_full` says that all of them do.

    Up by a quarter while there is room, down by a quarter when there is too much, and at rest in between.
    """
    if load.memory_free < SCARCE or load.queueing > QUEUEING:
        return max(bounds.least, target - max(1, target // 4))
    has_room = load.busy < IDLE and load.memory_free > AMPLE and load.queueing < QUEUEING / 2
    if is_full and has_room:
        return min(bounds.most, target + max(1, target // 4))
    return min(bounds.most, max(bounds.least, target))


class Meter:
    """Looks at the machine. The first look says that it is idle, as nothing was measured yet."""

    def __init__(self) -> None:
        self._processors = len(os.sched_getaffinity(0))
        psutil.cpu_percent(None)

    def look(self) -> Load:
        """Return the load since the last look."""
        with open("/proc/loadavg", "rb") as file:  # proc_loadavg(5): the fourth field is runnable/all
            runnable = int(file.read().split()[3].split(b"/")[0])
        memory = psutil.virtual_memory()
        return Load(
            busy=psutil.cpu_percent(None) / 100.0,
            queueing=runnable / self._processors,
            memory_free=memory.available / memory.total,
        )
