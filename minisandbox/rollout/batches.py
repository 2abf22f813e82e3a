"""Calls that want something written: those that wait at the same time are written together, in one transaction.

A thread does it, one batch at a time, so that the loop is never blocked. What is refused leaves the others alone;
when the system fails, nothing of the batch is kept, and each call is told. It knows nothing of what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from minisandbox.errors import RecordError, UsageError
from minisandbox.rollout.database import record_errors

_TRIED = "write the records in"


class _Entry:
    """What one call wants written, and what came of it."""

    def __init__(self, write: Callable[[], Any]) -> None:
        self.write, self.is_done, self.is_kept = write, False, False
        self.returned: Any = None
        self.error: Exception | None = None


class Batches:
    """Has calls write through `execute`, which runs a statement; `roll_back` undoes a transaction that failed."""

    def __init__(self, directory: Path, execute: Callable[[str], object], roll_back: Callable[[], object]) -> None:
        self._directory, self._execute, self._roll_back = directory, execute, roll_back
        self._turn = trio.Lock()  # whose turn it is to write what waits
        self._waiting: list[_Entry] = []
        self._limiter = trio.CapacityLimiter(1)  # no sandbox that keeps threads busy delays records

    async def write(self, write: Callable[[], Any]) -> Any:
        """Have `write` called in a transaction, and return what it returned when that is committed.

        Cancelled while it waits: nothing is written.
        """
        entry = _Entry(write)
        self._waiting.append(entry)
        try:
            async with self._turn:
                if not entry.is_done:
                    batch, self._waiting = self._waiting, []
                    with trio.CancelScope(shield=True):  # others wait for the batch, too
                        await trio.to_thread.run_sync(self._commit, batch, limiter=self._limiter)
        except trio.Cancelled:
            if entry in self._waiting:
                self._waiting.remove(entry)
            raise
        if entry.error is None and not entry.is_kept:
            raise RecordError(f"cannot {_TRIED} {self._directory}: what was written with it failed")
        if entry.error is not None:
            raise entry.error
        return entry.returned

    def _commit(self, batch: Sequence[_Entry]) -> None:
        """Write a batch. What is refused leaves the others alone; when the system fails, nothing of it is kept."""
        try:
            with record_errors(self._directory, _TRIED):
                self._execute("BEGIN IMMEDIATE")
                for entry in batch:
                    self._write_one(entry)
                self._execute("COMMIT")
            for entry in batch:
                entry.is_kept = True
        except RecordError as error:
            self._roll_back()
            for entry in batch:
                entry.error = RecordError(str(error))
                entry.error.__cause__ = error
        except BaseException:
            self._roll_back()
            raise
        finally:
            for entry in batch:
                entry.is_done = True

    def _write_one(self, entry: _Entry) -> None:
        self._execute("SAVEPOINT entry")
        try:
            entry.returned = entry.write()
            self._execute("RELEASE entry")
            return
        except (RecordError, UsageError) as error:
            entry.error = error
        except OverflowError as error:
            entry.error = RecordError(f"cannot {_TRIED} {self._directory}: a number of more than 63 bits")
            entry.error.__cause__ = error
        self._execute("ROLLBACK TO entry")
        self._execute("RELEASE entry")
