"""What nobody who solves a task may find: most lines of its solution or tests, answers, compiled code of it. Pure.

It looks into archives as well, since caches of package managers are such. A single line proves nothing: `return False`
is in every repository.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LEAST_LETTERS = 12
"""A line or an answer that is shorter may be anywhere."""

MOST_BYTES = 4 << 20
"""A file that is larger is no source; of an archive, that is what is read of a member."""

ARCHIVE_MOST_BYTES = 64 << 20
MOST_MEMBERS = 5000
FEW_LINES = 3
"""With fewer lines in common, a file far from where anybody lays sources must have the name of the solution's, too."""

LONG_CODE_BYTES = 64
"""Code of a function that is shorter may be that of another."""

_ARCHIVE_ERRORS = (zipfile.BadZipFile, tarfile.TarError, OSError, EOFError, ValueError, NotImplementedError, zlib.error)


@dataclass(frozen=True, slots=True)
class Secrets:
    """What is looked for."""

    solution: Mapping[str, frozenset[str]]
    """By file the lines that the solution has beyond what lay there, white space made single."""
    tests: Mapping[str, frozenset[str]] = field(default_factory=dict)
    answers: Mapping[bytes, str] = field(default_factory=dict)
    """The expected outputs, and of which test each is."""
    codes: frozenset[bytes] = frozenset()
    """The compiled functions of the solution."""

    def __bool__(self) -> bool:
        return bool(self.solution or self.tests or self.answers)

    def look(self, name: str, content: bytes, *, near: bool = True) -> Iterator[str]:
        """Yield what a file has; `near` where somebody may have laid it for this task."""
        yield from self._lines(name, content, near)
        yield from self._codes(name, content)
        for answer, test in self.answers.items():
            if answer in content:
                yield f"{name} has the answer of {test}"
        for member, inner in _members(content):
            yield from self._lines(f"{name}: {member}", inner, near)
            yield from self._codes(f"{name}: {member}", inner)

    def _lines(self, name: str, content: bytes, near: bool) -> Iterator[str]:
        there = {" ".join(line.split()) for line in content.decode(errors="replace").splitlines()}
        for what, files in (("solution", self.solution), ("tests", self.tests)):
            for path, lines in files.items():
                found = lines & there
                if len(found) * 2 <= len(lines):
                    continue
                if near or len(found) >= FEW_LINES or _base(name) == _base(path):
                    yield f"{name} has {len(found)} of {len(lines)} lines of the {what}: {min(found)}"

    def _codes(self, name: str, content: bytes) -> Iterator[str]:
        if not name.endswith(".pyc"):
            return
        modules = {_base(path).removesuffix(".py") for path in self.solution}
        is_same = _base(name).partition(".")[0] in modules
        if any(code in content for code in self.codes if is_same or len(code) >= LONG_CODE_BYTES):
            yield f"{name} is compiled from the solution"


def telling(lines: Iterator[str]) -> frozenset[str]:
    """Return the lines that are long enough to tell."""
    return frozenset(line for line in lines if len(line) >= LEAST_LETTERS)


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an archive, as far as they can be read; nothing of what is none."""
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            yield from _of_zip(content)
        elif content[:2] == b"\x1f\x8b" or content[257:262] == b"ustar":
            yield from _of_tar(content)
    except _ARCHIVE_ERRORS:
        return


def _of_zip(content: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist()[:MOST_MEMBERS]:
            with archive.open(info) as file:
                yield info.filename, file.read(MOST_BYTES)


def _of_tar(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as archive:
        for number, info in enumerate(archive):
            if number > MOST_MEMBERS or archive.offset > ARCHIVE_MOST_BYTES:
                return
            file = archive.extractfile(info)
            if file is not None:
                yield info.name, file.read(MOST_BYTES)


def _base(path: str) -> str:
    return path.rpartition("/")[2].rpartition(": ")[2]
