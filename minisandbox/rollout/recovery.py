"""Makes of damaged records ones that are whole: every episode whose digest holds is kept, and the rest is named.

The damaged file stays beside the new one. It blocks: call it in a thread where something else runs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from minisandbox.errors import RecordError
from minisandbox.rollout.blobs import Blobs
from minisandbox.rollout.database import (
    BLOBS_NAME,
    DATABASE_NAME,
    create_database,
    lock_for_writing,
    open_damaged,
    open_for_reading,
    record_errors,
)
from minisandbox.rollout.records import Records
from minisandbox.rollout.rows import Row, episode_inserts
from minisandbox.rollout.spec import Episode, EpisodeKey

_TRIED = "recover the records in"
_LEAST_BYTES = 256
"""No episode takes less of a file."""

OTHERS = "others, whose numbers are gone"

_COPIED = ("run", "sessions", "machine", "tasks", "keys", "events")
"""Tables that are taken over row by row; those of an episode come from the episode itself."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery did."""

    kept: int
    """Episodes."""
    lost: tuple[str, ...] = ()
    """Ids of the episodes that were not whole, or their numbers where not even that can be read."""
    damaged: str | None = None
    """Where the damaged file is now; None when nothing was wrong, and nothing was changed."""


def recover_records(directory: Path) -> Recovery:
    """Recover the records in a directory. Episodes that are lost are played again when the run goes on.

    Raises RecordError when another process writes there, when nothing at all can be read, or when the disk is full.
    """
    if not (directory / DATABASE_NAME).is_file():
        raise RecordError(f"{directory} has no records: {DATABASE_NAME} is not there")
    lock_fd = lock_for_writing(directory)
    try:
        with record_errors(directory, _TRIED):
            return _whole(directory) or _rebuild(directory)
    finally:
        os.close(lock_fd)


def _whole(directory: Path) -> Recovery | None:
    """Return what there is where nothing is wrong."""
    try:
        connection = open_for_reading(directory)
    except RecordError:
        return None
    with contextlib.closing(connection):
        episodes = list(Records(directory, connection).episodes())
    return Recovery(kept=len(episodes)) if all(isinstance(each, Episode) for each in episodes) else None


def _rebuild(directory: Path) -> Recovery:
    new = directory / f"{DATABASE_NAME}.new"
    for path in _with_logs(new):
        path.unlink(missing_ok=True)
    Blobs(directory / BLOBS_NAME).remove_damaged()
    kept, lost = 0, []
    with contextlib.closing(open_damaged(directory)) as old, contextlib.closing(create_database(new)) as target:
        target.execute("BEGIN")
        for table in _COPIED:
            for row in _readable_rows(old, table):
                _insert(target, table, row)
        records = Records(directory, old)
        for came in _recover_episodes(records, old):
            if isinstance(came, str):
                lost.append(came)
            else:
                kept += 1
                _put_episode(target, records, *came)
        target.execute("COMMIT")
    return Recovery(kept=kept, lost=tuple(lost), damaged=str(_put_in_place(directory, new)))


def _with_logs(path: Path) -> tuple[Path, ...]:
    """Return a database's file and those that SQLite lays beside it."""
    return (path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-journal")))


def _readable_rows(old: sqlite3.Connection, table: str) -> Iterator[Row]:
    """Yield the rows of a table, from both ends until one cannot be read."""
    seen: set[tuple[object, ...]] = set()
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.DatabaseError):
            for row in old.execute(f"SELECT * FROM {table} ORDER BY 1 {order}"):
                if tuple(row) not in seen:
                    seen.add(tuple(row))
                    yield dict(row)


def _recover_episodes(records: Records, old: sqlite3.Connection) -> Iterator[tuple[Episode, Row] | str]:
    """Yield each episode that is whole with its row, and what to call one that is not."""
    last = _last_number(old)
    # where the end of the tables is gone each number is tried that the file could have held
    most = last if last is not None else (records.directory / DATABASE_NAME).stat().st_size // _LEAST_BYTES
    for number in range(1, most + 1):
        came = _recover_episode(records, number)
        if came is not None and (last is not None or came != _unnamed(number)):
            yield came
    if last is None:
        yield OTHERS


def _last_number(old: sqlite3.Connection) -> int | None:
    """Return the largest number of an episode that any table knows; None when no table's end can be read."""
    last = []
    for table in ("keys", "episodes"):
        with contextlib.suppress(sqlite3.DatabaseError):
            last.append(old.execute(f"SELECT coalesce(max(episode), 0) FROM {table}").fetchone()[0])
    return max(last) if len(last) == 2 else None


def _unnamed(number: int) -> str:
    return f"number {number}"


def _recover_episode(records: Records, number: int) -> tuple[Episode, Row] | str | None:
    """Return an episode that is whole with its row, what to call one that is not, and None where there is none."""
    name = _unnamed(number)
    with contextlib.suppress(sqlite3.DatabaseError):
        for key in records.rows("SELECT task, policy, sample FROM keys WHERE episode = ?", (number,)):
            name = EpisodeKey(**key).id
    try:
        rows = records.rows("SELECT * FROM episodes WHERE episode = ?", (number,))
        if rows:
            return records.episode_of_row(rows[0]), rows[0]
        # an episode that was not finished has no verdict
        return name if records.rows("SELECT 1 FROM verdicts WHERE episode = ?", (number,)) else None
    except (RecordError, sqlite3.DatabaseError):
        return name


def _put_episode(target: sqlite3.Connection, records: Records, episode: Episode, row: Row) -> None:
    number = row["episode"]
    key = {"episode": number, "task": episode.key.task, "policy": episode.key.policy, "sample": episode.key.sample}
    _insert(target, "keys", key)
    for insert in episode_inserts(number, episode, row["session"], row["redacted"]):
        _insert(target, insert.table, insert.row)
        for name, content in insert.large.items():
            sha256 = records.blobs.keep(content)
            large = {"episode": number, "turn": insert.row.get("turn"), "name": name, "sha256": sha256}
            _insert(target, "large", {**large, "bytes": len(content)})


def _insert(target: sqlite3.Connection, table: str, row: Row) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    # what the damaged file holds twice, or without what must be there, is left out
    target.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))


def _put_in_place(directory: Path, new: Path) -> Path:
    """Lay the damaged file aside with its log, and put the new one in its place. Return where the damaged one is."""
    path = directory / DATABASE_NAME
    aside = next(name for at in range(1, 1000) if not (name := path.with_name(f"{path.name}.damaged-{at}")).exists())
    for source, target in zip(_with_logs(path), _with_logs(aside), strict=True):
        with contextlib.suppress(FileNotFoundError):
            os.link(source, target)
    for log in _with_logs(path)[1:]:  # first, or SQLite would play the old log into the new file
        log.unlink(missing_ok=True)
    new.rename(path)
    return aside
