"""The ledger of an episode: an append-only file of entries, each signed and chained to the one before it.

An entry is one line of canonical JSON. `this` is the digest of the entry without its signature, `prev` that of the one
before. A second file, the head, says which entry is the last: so a ledger that was cut is noticed, too. It is written
after the entry, so a process that dies at any byte leaves at most one torn line, which the next opening removes.
The ledger is never rewritten, and nothing that a submission wrote is in it but as text within JSON. The head is, in
place, by one write within a sector, which no death of a process and hardly any disk tears.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from minisandbox.errors import LedgerError, StateError
from minisandbox.judge.signing import Signer, Verifier
from minisandbox.judge.spec import canonical, digest_of

LEDGER_NAME = "ledger.jsonl"
HEAD_NAME = "head.json"
HEAD_BYTES = 512
GENESIS = "sha256:" + "0" * 64
"""What the first entry has as the one before it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry as it is in the file."""

    seq: int
    prev: str
    kind: str
    body: dict[str, Any]
    this: str
    sig: str


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entry is the last."""

    seq: int
    this: str
    sig: str


def _entry_digest(seq: int, prev: str, kind: str, body: dict[str, Any]) -> str:
    return digest_of({"seq": seq, "prev": prev, "kind": kind, "body": body})


def _head_text(seq: int, this: str) -> bytes:
    return canonical({"head": seq, "this": this})


class Ledger:
    """An open ledger. Make it with `Ledger.create` or `Ledger.open`; one process writes it."""

    def __init__(self, directory: Path, fd: int, signer: Signer, last: Entry | None) -> None:
        self._directory, self._fd, self._signer = directory, fd, signer
        self._head_fd = -1
        self._named = False
        """Whether the directory, too, is on the disk, with the names of both files."""
        self._seq = 0 if last is None else last.seq + 1
        self._prev = GENESIS if last is None else last.this

    @classmethod
    def create(cls, directory: Path, signer: Signer) -> Ledger:
        """Begin a ledger in a directory that has none. Raises StateError where there is one."""
        try:
            fd = os.open(
                directory / LEDGER_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise StateError(f"cannot begin the ledger in {directory}: {error.strerror}") from error
        return cls(directory, fd, signer, None)

    @classmethod
    def open(cls, directory: Path, signer: Signer) -> Ledger:
        """Open a ledger to go on with it: a torn last line is removed. Raises LedgerError when it does not verify."""
        path = directory / LEDGER_NAME
        content = _read(path)
        whole = content.rfind(b"\n") + 1
        entries = verify(directory, signer.verifier, content[:whole])
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if whole < len(content):
            os.ftruncate(fd, whole)
        ledger = cls(directory, fd, signer, entries[-1] if entries else None)
        if entries:  # else a second death before the head is written looks as if an old head had been put back
            ledger._write_head(entries[-1])
        return ledger

    def append(self, kind: str, body: Any, *, durable: bool = False) -> Entry:
        """Write an entry, whole or not at all, and return it; with `durable` it is on the disk afterwards."""
        plain = msgspec.json.decode(canonical(body))
        this = _entry_digest(self._seq, self._prev, kind, plain)
        entry = Entry(
            seq=self._seq, prev=self._prev, kind=kind, body=plain, this=this, sig=self._signer.sign(this.encode())
        )
        line = memoryview(canonical(entry) + b"\n")
        while line:
            line = line[os.write(self._fd, line) :]
        if durable:  # the entry before the head that names it, or a ledger that lost power would seem to be cut
            os.fdatasync(self._fd)
        self._write_head(entry)
        if durable:
            self._sync_head()
        self._seq, self._prev = entry.seq + 1, entry.this
        return entry

    def _write_head(self, entry: Entry) -> None:
        head = Head(seq=entry.seq, this=entry.this, sig=self._signer.sign(_head_text(entry.seq, entry.this)))
        if self._head_fd < 0:
            self._head_fd = os.open(self._directory / HEAD_NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._head_fd, canonical(head).ljust(HEAD_BYTES), 0)

    def _sync_head(self) -> None:
        os.fdatasync(self._head_fd)
        if not self._named:
            with _directory_fd(self._directory) as directory_fd:
                os.fsync(directory_fd)
            self._named = True

    def close(self) -> None:
        """Close the files."""
        for fd in (self._fd, self._head_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._head_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_ledger(directory: Path, verifier: Verifier) -> list[Entry]:
    """Return the entries of a ledger, without a torn line at its end. Raises LedgerError when it does not verify."""
    content = _read(directory / LEDGER_NAME)
    return verify(directory, verifier, content[: content.rfind(b"\n") + 1])


def verify(directory: Path, verifier: Verifier, content: bytes) -> list[Entry]:
    """Return the entries of whole lines. Raises LedgerError with the first line that does not hold."""
    path = directory / LEDGER_NAME
    entries: list[Entry] = []
    prev = GENESIS
    for number, line in enumerate(content.splitlines(keepends=True)):
        entry = _check_entry(line, number, prev, verifier, path)
        entries.append(entry)
        prev = entry.this
    _check_head(directory, entries, verifier)
    return entries


def _check_entry(line: bytes, number: int, prev: str, verifier: Verifier, path: Path) -> Entry:
    try:
        entry = msgspec.json.decode(line, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError("this line is no entry: the ledger was edited or damaged here", path, number + 1) from error
    if canonical(entry) + b"\n" != line or entry.this != _entry_digest(entry.seq, entry.prev, entry.kind, entry.body):
        raise LedgerError("this entry is not what its digest says: it was edited", path, number + 1)
    if not verifier.verify(entry.this.encode(), entry.sig):
        raise LedgerError("this entry is not signed by the judge's key", path, number + 1)
    if entry.seq != number or entry.prev != prev:
        raise LedgerError(
            f"this is entry {entry.seq} in the place of entry {number}: entries were cut or reordered", path, number + 1
        )
    return entry


def _check_head(directory: Path, entries: list[Entry], verifier: Verifier) -> None:
    """Check that the entry that was the last is there. More of them may follow: the head is written after them."""
    path, last = directory / LEDGER_NAME, len(entries)
    try:
        content = (directory / HEAD_NAME).read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise LedgerError(f"{HEAD_NAME} beside it cannot be read", path, last) from error
    if not content:
        if last > 1:
            raise LedgerError(f"there is no {HEAD_NAME} beside it, which says where it ends", path, last)
        return
    try:
        head = msgspec.json.decode(content, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"{HEAD_NAME} beside it cannot be read", path, last) from error
    if not verifier.verify(_head_text(head.seq, head.this), head.sig):
        raise LedgerError(f"{HEAD_NAME} beside it is not signed by the judge's key", path, last)
    if head.seq >= last:
        raise LedgerError(f"it ends after {last} entries, and once had {head.seq + 1}: its end was cut off", path, last)
    if entries[head.seq].this != head.this:
        raise LedgerError(f"this entry is not the one that {HEAD_NAME} names", path, head.seq + 1)
    if last > head.seq + 2:
        raise LedgerError(f"{HEAD_NAME} beside it is older than the ledger: it was put back", path, head.seq + 1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StateError(f"cannot read the ledger {path}: {error.strerror}") from error


@contextlib.contextmanager
def _directory_fd(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
