"""The records of a run as they are read: also while they are written, and by other processes. It never writes.

All of this blocks: call it in a thread where something else runs.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from minisandbox.errors import RecordError, UsageError
from minisandbox.rollout.blobs import Blobs
from minisandbox.rollout.database import BLOBS_NAME, open_for_reading, record_errors
from minisandbox.rollout.recorder import RunInfo
from minisandbox.rollout.rows import Row, episode_of, turn_of, whole_row
from minisandbox.rollout.spec import Episode, EpisodeKey, Turn

_TRIED = "read the records in"


@contextmanager
def open_records(directory: Path) -> Iterator[Records]:
    """Open the records in a directory for reading, for as long as the block runs.

    Raises RecordError when there are none, or when they are damaged or of another version.
    """
    connection = open_for_reading(Path(directory))
    try:
        with record_errors(Path(directory), _TRIED):
            connection.execute("BEGIN")  # all that is read is of one moment
            yield Records(Path(directory), connection)
    finally:
        connection.close()


class Records:
    """Records that are open for reading. `open_records` opens them."""

    def __init__(self, directory: Path, connection: sqlite3.Connection) -> None:
        self.directory = directory
        self._connection = connection
        self.blobs = Blobs(directory / BLOBS_NAME)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query."""
        return [dict(row) for row in self._connection.execute(statement, values)]

    def run(self) -> RunInfo:
        """Return what the run was begun with, without what differs between sessions; nothing where it never was."""
        rows = self.rows("SELECT * FROM run")
        if not rows:
            return RunInfo(policies=(), samples=0, seed=0)
        return RunInfo(
            policies=tuple(msgspec.json.decode(rows[0]["policies"], type=list[str])),
            samples=rows[0]["samples"],
            seed=rows[0]["seed"],
            options=msgspec.json.decode(rows[0]["options"], type=dict[str, Any]),
        )

    def sessions(self) -> list[tuple[float, str, dict[str, str]]]:
        """Return when the run was begun, each time, by which version and on what machine."""
        facts: dict[int, dict[str, str]] = defaultdict(dict)
        for row in self._connection.execute("SELECT session, name, value FROM machine"):
            facts[row[0]][row[1]] = row[2]
        rows = self._connection.execute("SELECT session, begun, version FROM sessions ORDER BY session")
        return [(row[1], row[2], facts[row[0]]) for row in rows]

    def instructions(self) -> dict[str, str]:
        """Return what each task asks."""
        return dict(self._connection.execute("SELECT task, instruction FROM tasks").fetchall())

    def unfinished(self) -> list[EpisodeKey]:
        """Return the keys of episodes that have turns and no end."""
        rows = self._connection.execute(
            "SELECT DISTINCT task, policy, sample FROM turns JOIN keys USING (episode) "
            "WHERE episode NOT IN (SELECT episode FROM episodes) ORDER BY 1, 2, 3"
        )
        return [EpisodeKey(**row) for row in rows]

    def event_counts(self) -> dict[str, int]:
        """Return how often each event came."""
        rows = self._connection.execute("SELECT name, count(*) FROM events GROUP BY name ORDER BY 2 DESC, 1")
        return {row[0]: row[1] for row in rows}

    def keys(self) -> list[EpisodeKey]:
        """Return the keys of all episodes, in the order in which they were finished."""
        rows = self._connection.execute("SELECT task, policy, sample FROM episodes ORDER BY episodes.rowid")
        return [EpisodeKey(**row) for row in rows]

    def find(self, name: str) -> EpisodeKey:
        """Return the key of an episode by its id, or by a part of it that no other has. Raises UsageError."""
        keys = self.keys()
        found = [key for key in keys if key.id == name] or [key for key in keys if name in key.id]
        if len(found) == 1:
            return found[0]
        if not found:
            raise UsageError(f"{self.directory} has no episode {name!r}: there are {len(keys)} episodes")
        some = ", ".join(key.id for key in found[:5])
        raise UsageError(f"{self.directory} has {len(found)} episodes that fit {name!r}: {some}")

    def episode(self, key: EpisodeKey) -> Episode:
        """Return an episode. Raises RecordError where it is damaged, UsageError where it is not there."""
        rows = self.rows(
            "SELECT * FROM episodes WHERE task = ? AND policy = ? AND sample = ?", (key.task, key.policy, key.sample)
        )
        if not rows:
            raise UsageError(f"{self.directory} has no episode {key.id}")
        return self.episode_of_row(rows[0])

    def episodes(self) -> Iterator[Episode | RecordError]:
        """Yield all episodes in the order in which they were finished; for one that is damaged the error."""
        for row in self.rows("SELECT * FROM episodes ORDER BY started + seconds"):
            try:
                yield self.episode_of_row(row)
            except RecordError as error:
                yield error

    def episode_of_row(self, row: Row) -> Episode:
        """Return the episode of a row of `episodes`. Raises RecordError where it is damaged."""
        number = (row["episode"],)
        large: dict[int | None, dict[str, str]] = defaultdict(dict)
        for each in self._connection.execute("SELECT turn, name, sha256 FROM large WHERE episode = ?", number):
            large[each[0]][each[1]] = each[2]
        try:
            turns = self.rows("SELECT * FROM turns WHERE episode = ? ORDER BY turn", number)
            results = {each["turn"]: each for each in self.rows("SELECT * FROM results WHERE episode = ?", number)}
            attempts = self.rows("SELECT * FROM attempts WHERE episode = ? ORDER BY attempt", number)
            (verdict,) = self.rows("SELECT whole FROM verdicts WHERE episode = ?", number) or ({"whole": None},)
            read = self.blobs.read
            whole = [self._turn(each, results[each["turn"]], large[each["turn"]]) for each in turns]
            verdict = whole_row(verdict, {k: v for k, v in large[None].items() if k == "whole"}, read)
            return episode_of(row, whole, attempts, verdict.get("whole"))
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError) as error:
            raise RecordError(f"the records of an episode in {self.directory} are damaged: {error}") from error

    def _turn(self, row: Row, result: Row, large: dict[str, str]) -> Turn:
        of_row = {name: sha256 for name, sha256 in large.items() if name in row}
        of_result = {name: sha256 for name, sha256 in large.items() if name in result}
        return turn_of(whole_row(row, of_row, self.blobs.read), whole_row(result, of_result, self.blobs.read))
