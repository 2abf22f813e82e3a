"""A bounded queue of jobs: by priority, then fair between groups, then in order. It starts nothing."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Generic, Protocol, TypeVar

import trio


class Grouped(Protocol):
    """What can be queued."""

    @property
    def group(self) -> str:
        """What it is fair between."""

    @property
    def priority(self) -> int:
        """The lower comes first."""


T = TypeVar("T", bound=Grouped)


class FairQueue(Generic[T]):
    """Holds at most `limit` jobs: whoever brings one more waits, so that a source is read no further than needed.

    Of the jobs of the lowest priority number, one of the group with the fewest running is next; of several such groups,
    the one that was served longest ago. `done` must be called for each job that was taken.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[int, OrderedDict[str, deque[T]]] = {}
        self._running: Counter[str] = Counter()
        self._count = 0
        self._changed = trio.Event()
        self._ended = False

    def __len__(self) -> int:
        return self._count

    @property
    def is_over(self) -> bool:
        """Whether nothing waits and nothing comes any more."""
        return self._ended and self._count == 0

    async def put(self, job: T) -> None:
        """Add a job, once there is room."""
        while self._count >= self._limit and not self._ended:
            await self._changed.wait()
        if not self._ended:
            self._waiting.setdefault(job.priority, OrderedDict()).setdefault(job.group, deque()).append(job)
            self._count += 1
            self._tell()

    async def take(self) -> T | None:
        """Return the next job, once there is one; None when there is none any more."""
        while not self._count:
            if self._ended:
                return None
            await self._changed.wait()
        groups = self._waiting[min(self._waiting)]
        name = min(groups, key=lambda group: self._running[group])  # the first of equals, and that waited longest
        job = groups[name].popleft()
        groups.move_to_end(name)
        if not groups[name]:
            del groups[name]
        if not groups:
            del self._waiting[job.priority]
        self._count -= 1
        self._running[name] += 1
        self._tell()
        return job

    def done(self, job: T) -> None:
        """Take note that a job does not run any more."""
        self._running[job.group] -= 1
        if not self._running[job.group]:
            del self._running[job.group]

    def end(self) -> None:
        """Take no more jobs; those that wait are still handed out."""
        self._ended = True
        self._tell()

    def clear(self) -> None:
        """Take no more jobs, and forget those that wait."""
        self._waiting.clear()
        self._count = 0
        self.end()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
