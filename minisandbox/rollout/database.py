"""The SQLite file of a run's records: opened for one writer or for readers, checked, and its errors made ours.

The log is written ahead (WAL) and not synced at every commit: what was committed survives a kill of the process, and
after a loss of power the file is whole, without the last of it. All of this blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from minisandbox.errors import RecordError
from minisandbox.images.lock import take_lock_if_free
from minisandbox.rollout.schema import APPLICATION_ID, TABLES, VERSION

DATABASE_NAME = "records.sqlite"
LOCK_NAME = "records.lock"
BLOBS_NAME = "blobs"

_FULL = frozenset({"SQLITE_FULL"})
_DAMAGED = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB"})
_BUSY_S = 30.0
"""How long to wait for a reader that holds the file, which is only while the log is folded in."""


@contextlib.contextmanager
def record_errors(directory: Path, tried: str) -> Iterator[None]:
    """Raise RecordError for what the system or SQLite says in the block."""
    try:
        yield
    except sqlite3.Error as error:
        raise RecordError(_explain(directory, tried, error)) from error
    except BrokenPipeError:  # of who prints what was read
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RecordError(_full(directory, tried)) from error
        raise RecordError(f"cannot {tried} {directory}: {error.strerror}") from error


def _full(directory: Path, tried: str) -> str:
    return f"cannot {tried} {directory}: its file system is full; make room and go on: what was finished is kept"


def damaged(directory: Path, why: str) -> RecordError:
    """Return the error about records that are damaged."""
    path = directory / DATABASE_NAME
    return RecordError(f"{path} is damaged: {why}; minisandbox recover {directory} keeps each episode that is whole")


def _explain(directory: Path, tried: str, error: sqlite3.Error) -> str:
    name = str(getattr(error, "sqlite_errorname", ""))
    if any(name.startswith(full) for full in _FULL):
        return _full(directory, tried)
    if any(name.startswith(word) for word in _DAMAGED):
        return str(damaged(directory, str(error)))
    return f"cannot {tried} {directory}: {error}" + (f" ({name})" if name else "")


def lock_for_writing(directory: Path) -> int:
    """Return the descriptor that holds the lock of the one writer. Raises RecordError where there is another."""
    path = directory / LOCK_NAME
    with record_errors(directory, "lock the records in"):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        fd = take_lock_if_free(path, fcntl.LOCK_EX)
    if fd is None:
        raise RecordError(f"another process writes the records in {directory}; wait for it, or take another directory")
    return fd


def open_for_writing(directory: Path) -> sqlite3.Connection:
    """Open the file, made where there is none, and look whether it is whole. Who calls holds the lock."""
    with record_errors(directory, "open the records in"):
        connection = _connect(f"{(directory / DATABASE_NAME).absolute().as_uri()}?mode=rwc")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0 and _is_empty(connection):
                _create(connection)
            _check(connection, directory)
        except BaseException:
            connection.close()
            raise
    return connection


def open_for_reading(directory: Path) -> sqlite3.Connection:
    """Open a file that is there, and may be written at the same time, and look whether it is whole."""
    path = directory / DATABASE_NAME
    if not path.is_file():
        raise RecordError(f"{directory} has no records: {DATABASE_NAME} is not there")
    with record_errors(directory, "open the records in"):
        uri = path.absolute().as_uri()
        try:
            connection = _connect(f"{uri}?mode=ro")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            log = path.with_name(f"{path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise
            # a directory that cannot be written takes no log, and none is there to be read
            connection = _connect(f"{uri}?mode=ro&immutable=1")
        with _closed_on_failure(connection):
            _check(connection, directory)
    return connection


def open_damaged(directory: Path) -> sqlite3.Connection:
    """Open a file to save what can be read of it, with all checks off that would keep from that."""
    connection = _connect(f"{(directory / DATABASE_NAME).absolute().as_uri()}?mode=rw")
    with _closed_on_failure(connection):
        connection.execute("PRAGMA writable_schema = ON")  # or a file that was cut would not be read at all
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute("PRAGMA query_only = ON")
        if version == 0:
            raise RecordError(f"nothing of {directory / DATABASE_NAME} can be recovered: its first page is gone")
        if version != VERSION:
            raise RecordError(
                f"the records in {directory} are of version {version}, and only {VERSION} can be recovered"
            )
    return connection


def create_database(path: Path) -> sqlite3.Connection:
    """Make a file with all tables, which are empty."""
    connection = _connect(f"{path.absolute().as_uri()}?mode=rwc")
    with _closed_on_failure(connection):
        _create(connection)
    return connection


@contextlib.contextmanager
def _closed_on_failure(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:  # whatever it is: nobody else knows of the connection yet
        connection.close()
        raise


def _connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.text_factory = _text
    return connection


def _text(content: bytes) -> str:
    """Return a text that may be damaged; what it belongs to then has another digest."""
    return content.decode(errors="replace")


def _is_empty(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()[0])


def _create(connection: sqlite3.Connection) -> None:
    """Make all tables, or none where this process is killed on the way."""
    connection.executescript(
        f"BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
    )


def _check(connection: sqlite3.Connection, directory: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise RecordError(f"{directory / DATABASE_NAME} holds no records of minisandbox")
    if version != VERSION:
        raise RecordError(
            f"the records in {directory} are of version {version}, and this minisandbox knows version {VERSION}; "
            "read them with the version that wrote them"
        )
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise damaged(directory, str(found).splitlines()[-1])
