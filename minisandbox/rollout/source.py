"""Where a run's tasks come from: directories and sets, one after the other, no sooner than they are wanted.

What is no task, or cannot be read as one, is told in its place and keeps nothing else away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minisandbox.errors import SandboxError
from minisandbox.images.state import StateDir
from minisandbox.tasks.certified import certified, read_certificate
from minisandbox.tasks.directory import load_task_directory
from minisandbox.tasks.sets.unfit import Unfit
from minisandbox.tasks.source import directories, is_directory, open_tasks
from minisandbox.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What was to be a task, and is not played."""

    name: str
    why: str
    is_broken: bool
    """Whether it is malformed, rather than left out by the set it belongs to."""


def check_sources(sources: Sequence[str]) -> None:
    """Raise UsageError for a source that there is not."""
    for source in sources:
        if is_directory(source):
            directories(Path(source))


def tasks_of(sources: Sequence[str], state: StateDir, *, limit: int | None = None) -> Iterator[Task | LeftOut]:
    """Yield the tasks of all sources, with their certificates where these are valid; no more than `limit` of each."""
    seen: set[str] = set()
    for source in sources:
        for item in _limited(_items(source, state), limit):
            if isinstance(item, Task) and item.name in seen:
                yield LeftOut(name=item.name, why=f"a task of this name was there before {source}", is_broken=True)
                continue
            seen.add(item.name)
            yield item


def _limited(items: Iterator[Task | LeftOut], limit: int | None) -> Iterator[Task | LeftOut]:
    count = 0
    for item in items:
        if limit is not None and count >= limit:
            return
        count += isinstance(item, Task)
        yield item


def _items(source: str, state: StateDir) -> Iterator[Task | LeftOut]:
    try:
        if is_directory(source):
            for path in directories(Path(source)):
                yield _of_directory(path, state)
            return
        for item in open_tasks(source):
            yield LeftOut(name=item.name, why=item.why, is_broken=False) if isinstance(item, Unfit) else item
    except SandboxError as error:
        yield LeftOut(name=source, why=f"{type(error).__name__}: {error}", is_broken=True)


def _of_directory(path: Path, state: StateDir) -> Task | LeftOut:
    try:
        task = load_task_directory(path)
        assignment, _ = certified(task, read_certificate(path), state)
        return msgspec.structs.replace(task, assignment=assignment)
    except SandboxError as error:
        return LeftOut(name=path.name, why=f"{type(error).__name__}: {error}", is_broken=True)
