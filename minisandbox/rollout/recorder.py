"""What the loop asks of whoever keeps its records, and one that keeps nothing."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import msgspec

from minisandbox.rollout.spec import Episode, EpisodeKey, Turn
from minisandbox.tasks.task import Task


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was begun with. A run that is begun again must have the same, but for `version` and `machine`."""

    policies: tuple[str, ...]
    samples: int
    seed: int
    options: dict[str, Any] = {}
    version: str = ""
    machine: dict[str, str] = {}


class Recorder(Protocol):
    """Keeps what happens. Each call returns when what it was given survives a kill of this process.

    Raises RecordError (`minisandbox.errors`) where it cannot keep something: the run then stops, and nothing is lost.
    """

    async def begin(self, run: RunInfo) -> AbstractSet[EpisodeKey]:
        """Begin a run, or go on with it, and return the episodes that are finished already."""
        ...

    async def task(self, task: Task) -> None:
        """Keep a task; one that is kept already is passed over."""
        ...

    async def turn(self, key: EpisodeKey, turn: Turn) -> None:
        """Keep a turn of an episode that goes on; `finish` puts all its turns anew."""
        ...

    async def event(self, name: str, key: EpisodeKey | None, data: dict[str, Any]) -> None:
        """Keep what happened: a retry, a stop, a change of concurrency."""
        ...

    async def finish(self, episode: Episode) -> None:
        """Keep an episode, once: one that is kept already is refused with RecordError."""
        ...


class NoRecorder:
    """Keeps nothing."""

    async def begin(self, run: RunInfo) -> AbstractSet[EpisodeKey]:
        """See `Recorder.begin`."""
        return frozenset()

    async def task(self, task: Task) -> None:
        """See `Recorder.task`."""

    async def turn(self, key: EpisodeKey, turn: Turn) -> None:
        """See `Recorder.turn`."""

    async def event(self, name: str, key: EpisodeKey | None, data: dict[str, Any]) -> None:
        """See `Recorder.event`."""

    async def finish(self, episode: Episode) -> None:
        """See `Recorder.finish`."""
