"""Stores of tests: episodes kept in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from minisandbox.rollout.recorder import RunInfo
from minisandbox.rollout.spec import Episode
from minisandbox.rollout.store import open_store
from minisandbox.tasks.task import Task
from tests.rollout.episodes import RUN


async def keep(directory: Path, episodes: Sequence[Episode], tasks: Sequence[Task] = (), run: RunInfo = RUN) -> None:
    """Keep episodes and tasks in a store, which is made or gone on with."""
    async with open_store(directory) as store:
        await store.begin(run)
        for task in tasks:
            await store.task(task)
        for episode in episodes:
            await store.finish(episode)


def keep_all(directory: Path, episodes: Sequence[Episode], tasks: Sequence[Task] = (), run: RunInfo = RUN) -> Path:
    """Do the same where no loop runs, and return the directory."""
    trio.run(keep, directory, episodes, tasks, run)
    return directory
