"""The records of a run as they are written: tasks, turns, episodes, events, each as a call of `Recorder`.

A call returns when what it was given survives a kill of this process. An episode is there whole or not at all.
Whatever is written went through the redactor before.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from minisandbox.errors import RecordError, UsageError
from minisandbox.judge.spec import canonical
from minisandbox.rollout.batches import Batches
from minisandbox.rollout.blobs import Blobs
from minisandbox.rollout.database import BLOBS_NAME, lock_for_writing, open_for_writing, record_errors
from minisandbox.rollout.recorder import RunInfo
from minisandbox.rollout.redact import Redactor
from minisandbox.rollout.rows import Insert, Row, episode_inserts, redact_episode, redact_turn, turn_inserts
from minisandbox.rollout.schema import OF_AN_EPISODE
from minisandbox.rollout.spec import Episode, EpisodeKey, Turn
from minisandbox.tasks.task import Task


@asynccontextmanager
async def open_store(path: Path, *, secrets: Sequence[str] = ()) -> AsyncIterator[Store]:
    """Open the records in a directory, which is made where it is not there, for as long as the block runs.

    `secrets` are regular expressions of what is redacted besides the usual.
    Raises RecordError when another process writes there, or when they are damaged or of another version.
    Cancelled: what was kept is kept.
    """
    store = Store(Path(path), Redactor(secrets))
    await trio.to_thread.run_sync(store._open)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store._close)


class Store:
    """Records that are open for writing: a `Recorder`. `open_store` opens it."""

    def __init__(self, directory: Path, redactor: Redactor) -> None:
        self.directory = directory
        self.blobs = Blobs(directory / BLOBS_NAME)
        self._redactor = redactor
        self._connection: sqlite3.Connection | None = None
        self._lock_fd = -1
        self._session = 0
        self._batches = Batches(directory, self._execute, self._roll_back)

    async def begin(self, run: RunInfo) -> AbstractSet[EpisodeKey]:
        """See `Recorder.begin`. Turns of episodes that a dead process did not finish are dropped.

        Raises RecordError when the run was begun with other policies, samples, seed or options.
        """
        finished: AbstractSet[EpisodeKey] = await self._batches.write(lambda: self._begin(run))
        return finished

    async def task(self, task: Task) -> None:
        """See `Recorder.task`. Raises RecordError when a task of this name is kept that is another."""
        await self._batches.write(lambda: self._task(task))

    async def turn(self, key: EpisodeKey, turn: Turn) -> None:
        """See `Recorder.turn`. The first turn of an episode replaces all that a try before left."""
        await self._batches.write(lambda: self._put_turn(key, turn))

    async def event(self, name: str, key: EpisodeKey | None, data: dict[str, Any]) -> None:
        """See `Recorder.event`."""
        await self._batches.write(lambda: self._event(name, key, data))

    async def finish(self, episode: Episode) -> None:
        """See `Recorder.finish`."""
        await self._batches.write(lambda: self._finish(episode))

    # Above, what the loop calls; below, what a thread does.

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.rollback()

    def _open(self) -> None:
        with record_errors(self.directory, "make the records in"):
            self.directory.mkdir(parents=True, exist_ok=True)
        self._lock_fd = lock_for_writing(self.directory)
        try:
            self._connection = open_for_writing(self.directory)
            self.blobs.sweep()
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        """Fold the log into the file and let go of the lock. Where the disk is full the log stays, which is as good."""
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                connection.close()
        finally:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _execute(self, statement: str, values: Sequence[Any] | Row = ()) -> sqlite3.Cursor:
        if self._connection is None:
            raise UsageError(f"the records in {self.directory} are closed")
        return self._connection.execute(statement, values)

    def _insert(self, insert: Insert) -> None:
        """Insert a row, its blobs first: so a row never names one that is not there."""
        for name, content in insert.large.items():
            sha256 = self.blobs.keep(content)
            row = (insert.row["episode"], insert.row.get("turn"), name, sha256, len(content))
            self._execute("INSERT INTO large VALUES (?, ?, ?, ?, ?)", row)
        names = ", ".join(f'"{name}"' for name in insert.row)
        marks = ", ".join("?" * len(insert.row))
        self._execute(f"INSERT INTO {insert.table} ({names}) VALUES ({marks})", tuple(insert.row.values()))

    def _begin(self, run: RunInfo) -> AbstractSet[EpisodeKey]:
        self._refuse_secrets("policy", run.policies)
        options = self._redactor.plain(run.options)
        row = (canonical(run.policies).decode(), run.samples, run.seed, canonical(options).decode())
        before = self._execute("SELECT policies, samples, seed, options FROM run").fetchone()
        if before is None:
            self._execute("INSERT INTO run VALUES (?, ?, ?, ?)", row)
        else:
            self._refuse_another_run(tuple(before), row)
        for table in OF_AN_EPISODE:
            self._execute(f"DELETE FROM {table} WHERE episode NOT IN (SELECT episode FROM episodes)")
        begun = self._execute(
            "INSERT INTO sessions (begun, version) VALUES (?, ?)", (time.time(), self._redactor.text(run.version))
        )
        self._session = begun.lastrowid or 0
        for name, value in run.machine.items():
            values = (self._session, self._redactor.text(name), self._redactor.text(value))
            self._execute("INSERT INTO machine VALUES (?, ?, ?)", values)
        rows = self._execute("SELECT task, policy, sample FROM episodes")
        return frozenset(EpisodeKey(**row) for row in rows)

    def _refuse_another_run(self, before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        names = ("policies", "samples", "seed", "options")
        differ = [f"{name} {old}, now {new}" for name, old, new in zip(names, before, now, strict=True) if old != new]
        if differ:
            raise RecordError(
                f"{self.directory} holds a run that was begun with {' and '.join(differ)}; "
                "go on with the same, or take another directory"
            )

    def _refuse_secrets(self, what: str, names: Sequence[str]) -> None:
        """Refuse names that would have to be redacted, since records are found by them."""
        if any(self._redactor.text(name) != name for name in names):
            raise RecordError(f"the name of a {what} holds what looks like a secret; give it a name without one")

    def _task(self, task: Task) -> None:
        self._refuse_secrets("task", (task.name,))
        row = self._execute("SELECT digest FROM tasks WHERE task = ?", (task.name,)).fetchone()
        if row is not None:
            if row[0] != task.digest:
                raise RecordError(
                    f"task {task.name} is not the one that {self.directory} was begun with: its digest is "
                    f"{task.digest}, and was {row[0]}; take another directory"
                )
            return
        assignment = task.assignment
        values = (
            task.name,
            task.digest,
            self._redactor.text(task.instruction),
            str(assignment.work.__struct_config__.tag),
            assignment.integrity.value,
            assignment.environment.rootfs,
            canonical(self._redactor.plain(task.metadata)).decode(),
        )
        self._execute("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def _number(self, key: EpisodeKey) -> int:
        """Return the number of an episode in the tables, made where there is none."""
        values = (key.task, key.policy, key.sample)
        self._execute("INSERT OR IGNORE INTO keys (task, policy, sample) VALUES (?, ?, ?)", values)
        row = self._execute("SELECT episode FROM keys WHERE task = ? AND policy = ? AND sample = ?", values).fetchone()
        return int(row[0])

    def _put_turn(self, key: EpisodeKey, turn: Turn) -> None:
        number = self._unfinished(key)
        for table in OF_AN_EPISODE:
            self._execute(f"DELETE FROM {table} WHERE episode = ? AND turn >= ?", (number, turn.index))
        for insert in turn_inserts(number, redact_turn(turn, self._redactor)):
            self._insert(insert)

    def _unfinished(self, key: EpisodeKey) -> int:
        """Return the number of an episode that is not finished. Raises RecordError for one that is."""
        if not self._session:
            raise UsageError("no run was begun: call begin() before anything is recorded")
        number = self._number(key)
        if self._execute("SELECT 1 FROM episodes WHERE episode = ?", (number,)).fetchone() is not None:
            raise RecordError(f"episode {key.id} is kept already, and is kept once")
        return number

    def _event(self, name: str, key: EpisodeKey | None, data: dict[str, Any]) -> None:
        number = None if key is None else self._number(key)
        values = (time.time(), self._session, name, number, canonical(self._redactor.plain(data)).decode())
        self._execute("INSERT INTO events (at, session, name, episode, data) VALUES (?, ?, ?, ?, ?)", values)

    def _finish(self, episode: Episode) -> None:
        number = self._unfinished(episode.key)
        before = self._redactor.count
        kept = redact_episode(episode, self._redactor)
        for table in OF_AN_EPISODE:
            self._execute(f"DELETE FROM {table} WHERE episode = ?", (number,))
        for insert in episode_inserts(number, kept, self._session, self._redactor.count - before):
            self._insert(insert)
