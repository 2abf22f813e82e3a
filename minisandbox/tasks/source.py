"""Where tasks come from: a directory of one, a directory of many, or a packaged set by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from minisandbox.errors import UsageError
from minisandbox.tasks.directory import FILE_NAME, load_task_directory
from minisandbox.tasks.sets import exercises, humaneval, repositories
from minisandbox.tasks.sets.unfit import Unfit
from minisandbox.tasks.task import Task


class TaskSet(Protocol):
    """A module of `minisandbox.tasks.sets`."""

    NAME: str
    PACKAGE: str
    COUNT: int
    DESCRIPTION: str

    def tasks(self) -> Iterator[Task | Unfit]:
        """Yield the tasks, and what is none. Raises UsageError when the package is not installed."""
        ...


SETS: dict[str, TaskSet] = {each.NAME: each for each in (humaneval, exercises, repositories)}


def is_directory(source: str) -> bool:
    """Return whether it is a directory rather than the name of a set."""
    return source not in SETS


def directories(path: Path) -> list[Path]:
    """Return the directories of tasks at or directly below a path. Raises UsageError when there is none."""
    if (path / FILE_NAME).exists():
        return [path]
    found = sorted(each.parent for each in path.glob(f"*/{FILE_NAME}"))
    if not found:
        raise UsageError(
            f"{path} is no set ({', '.join(SETS)}), and there is no {FILE_NAME} in it nor directly below it"
        )
    return found


def open_tasks(source: str) -> Iterator[Task | Unfit]:
    """Yield the tasks of a set by its name, of a directory, or of all directly below one.

    Raises UsageError for what is none of these, and TaskError at the first task that is wrong.
    """
    if source in SETS:
        yield from SETS[source].tasks()
        return
    for path in directories(Path(source)):
        yield load_task_directory(path)
