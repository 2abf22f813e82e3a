"""The ingest process: reads what came out of a submission's sandbox, and says what of it may be judged.

It runs in a sandbox of its own, by whatever Python is there, and imports nothing but the standard library and a few
modules of ours that do the same. Its input are frames: what is allowed, then trees as chunks of streams, or files. Its
output are frames: files as chunks, evidence, and an end. Whoever reads them checks them again: this process reads bytes
of strangers, and may be theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from minisandbox.errors import ProtocolError
from minisandbox.judge.frames import Value, decode, frame, frame_size
from minisandbox.judge.introspection import FILE_MAX_BYTES, TOTAL_MAX_BYTES, introspects, may_introspect
from minisandbox.runtime.tree_stream import SHORTER, Entry, Kind, leads_out, padding, read_entries, why_omitted

CHUNK_BYTES = 1 << 18
NAMES_MAX = 200
"""How many names of one kind of evidence are told."""

PRIVILEGED = 0o6000
"""The bits of a program that runs as its owner."""

FORBIDDEN = "E11_FORBIDDEN_FILE"
PLANTED = "E09_PLANTED_CODE"
OVER = "E23_OVER_BOUNDS"
INTROSPECTION = "E13_INTROSPECTION"
NOTED = {"forbidden": FORBIDDEN, "missing": "E24_MISSING_ARTIFACT", "alive": "E15_ALIVE_AT_SEAL"}
"""What is told of a submission without its content, and the code of each."""


class RejectedError(Exception):
    """The submission cannot be judged. The arguments are a code and a path."""


class Inlet:
    """Frames from the judge."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._rest = b""

    def next(self) -> Value:
        """Return the next value."""
        return decode(self._exactly(frame_size(self._exactly(4))))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._read(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def stream(self, size: int) -> bytes:
        """Return so many bytes of the stream of a tree, which comes in chunks; its end is an empty one."""
        while len(self._rest) < size:
            chunk = self.next()
            if type(chunk) is not bytes or not chunk:
                raise ProtocolError("the stream of a tree ends early")
            self._rest += chunk
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def skip_stream(self) -> None:
        """Take what is left of a stream."""
        self._rest = b""
        while self.next():
            pass


class Ingest:
    """Takes a submission in within bounds."""

    def __init__(self, bounds: dict[str, int], inlet: Inlet, write: Callable[[bytes], object]) -> None:
        self._bounds, self._inlet, self._write = bounds, inlet, write
        self._files = self._bytes = self._parsed = 0
        self._first: dict[str, str] = {}
        self._told: dict[str, int] = {}

    def tell(self, *words: Value) -> None:
        """Write a frame."""
        self._write(frame(list(words)))

    def note(self, code: str, path: str) -> None:
        """Tell evidence, not more of it than anybody would read."""
        self._told[code] = self._told.get(code, 0) + 1
        if self._told[code] <= NAMES_MAX:
            self.tell("evidence", code, _shown(path))

    def tree(self, prefix: str) -> None:
        """Take a tree in."""
        for entry in read_entries(self._inlet.stream):
            path = "/".join(name for name in (prefix, entry.path) if name not in ("", "."))
            self._entry(entry, path)
        self._inlet.skip_stream()

    def file(self, path: str) -> None:
        """Take a single file in, which comes in chunks and an empty one."""
        chunks = list(iter(self._inlet.next, b""))
        size = sum(len(chunk) for chunk in chunks)
        if self._fits(path, size):
            self._send(path, size, False, iter(chunks))

    def _entry(self, entry: Entry, path: str) -> None:
        content = self._content(entry.size)
        if entry.kind is Kind.OMITTED:
            if why_omitted(entry) != SHORTER:
                self.note(FORBIDDEN, path)
        elif entry.kind is Kind.SYMLINK:
            self._symlink(entry, path)
        elif entry.kind is Kind.FILE:
            if entry.mode & PRIVILEGED:
                self.note(FORBIDDEN, path)  # and taken without it
            if self._fits(path, entry.size):
                self._first[entry.path] = self._first[entry.inode or entry.path] = path
                self._send(path, entry.size, bool(entry.mode & 0o111), content)
        elif entry.kind is Kind.LINK:
            self._link(entry, path)
        for _ in content:  # of what is not taken
            pass

    def _symlink(self, entry: Entry, path: str) -> None:
        if leads_out(path, entry.target) or not _is_clean(entry.target):
            self.note(FORBIDDEN, path)
        elif self._fits(path, len(entry.target)):
            self.tell("symlink", path, entry.target)

    def _link(self, entry: Entry, path: str) -> None:
        first = self._first.get(entry.inode or entry.target)
        if first is None:
            self.note(FORBIDDEN, path)
        elif self._fits(path, 0):
            self.tell("same", path, first)

    def _fits(self, path: str, size: int) -> bool:
        """Return whether a file is taken. Raises RejectedError when it is too much."""
        self._files += 1
        self._bytes += size
        bounds = self._bounds
        if self._files > bounds["max_files"] or self._bytes > bounds["max_total_bytes"]:
            raise RejectedError(OVER, path)
        if size > bounds["max_file_bytes"] or path.count("/") > bounds["max_depth"]:
            raise RejectedError(OVER, path)
        names = path.split("/")
        if not _is_clean(path):
            self.note(FORBIDDEN, path)
            return False
        if "__pycache__" in names:  # what any run of Python leaves
            return False
        if path.endswith((".pyc", ".pyo", ".pth")) or names[-1] in ("sitecustomize.py", "usercustomize.py"):
            self.note(PLANTED, path)
            return False
        return True

    def _content(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            chunk = self._inlet.stream(min(left, CHUNK_BYTES))
            left -= len(chunk)
            yield chunk
        self._inlet.stream(len(padding(size)))

    def _send(self, path: str, size: int, executable: bool, chunks: Iterator[bytes]) -> None:
        self.tell("file", path, size, executable)
        is_source = path.endswith(".py") and size <= FILE_MAX_BYTES
        source = b""
        for chunk in chunks:
            self._write(frame(chunk))
            source += chunk if is_source else b""
        if is_source and may_introspect(source) and self._parsed + size <= TOTAL_MAX_BYTES:
            self._parsed += size
            if introspects(source):
                self.note(INTROSPECTION, path)


def _is_clean(text: str) -> bool:
    """Return whether a text is UTF-8 without control characters."""
    return text.isprintable() and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _shown(path: str) -> str:
    return path.encode("unicode_escape", "backslashreplace").decode("ascii")[:200]


def take_in(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    """Serve one submission."""
    inlet = Inlet(read)
    ingest = Ingest(inlet.next(), inlet, write)
    try:
        while (message := inlet.next()) is not None:
            verb, path = message
            if verb == "tree":
                ingest.tree(path)
            elif verb == "file":
                ingest.file(path)
            elif verb in NOTED:
                ingest.note(NOTED[verb], path)
            else:
                raise RejectedError(OVER, path)
        ingest.tell("end")
    except RejectedError as error:
        ingest.note(*error.args)
        ingest.tell("rejected")
    except ProtocolError:
        ingest.note(FORBIDDEN, "(a stream that is none)")
        ingest.tell("rejected")


def main() -> None:
    """Read standard input, write standard output."""
    take_in(lambda size: os.read(0, min(size, CHUNK_BYTES)), sys.stdout.buffer.write)
    sys.stdout.buffer.flush()
