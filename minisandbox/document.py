"""A TOML or JSON file of settings that knows on what line each of its values stands, so that an error can say it.

It knows nothing of what the settings mean. The lines are looked up only when there is an error to report.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from minisandbox.errors import LocatedError, UsageError

T = TypeVar("T")

Key = tuple[str | int, ...]
"""Where a value stands in a document: names of members and indexes of elements, from the outside in."""

MAX_DOCUMENT_BYTES = 1 << 20
"""No larger file is read: settings are written by hand."""


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file, TOML if its name says so and else JSON, and the class of the errors about it."""

    path: Path
    text: str
    error_type: type[LocatedError]

    def convert(self, kind: type[T]) -> T:
        """Return the document as a msgspec type. Raises `error_type` where it is not well-formed or does not fit."""
        try:
            values = self._parse()
            for key, value in _leaves(values):
                if isinstance(value, int) and value.bit_length() > 64:
                    raise self.error(key, "a number of more than 64 bits")
            return msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            key, message = _explain(error)
            raise self.error(key, message) from error
        except RecursionError as error:
            raise self.error_type("nested too deeply", self.path) from error

    def error(self, key: Key, message: str) -> LocatedError:
        """Return the error to raise about the value at `key`; where that is not found, the nearest around it counts."""
        lines = _TomlLines(self.text).lines if self._is_toml else dict(_json_lines(self.text))
        while key and key not in lines:
            key = key[:-1]
        return self.error_type(message, self.path, lines.get(key, 0))

    @contextlib.contextmanager
    def at(self, *key: str | int) -> Iterator[None]:
        """Turn a UsageError of the block into an error about the value at `key`."""
        try:
            yield
        except UsageError as error:
            raise self.error(key, str(error)) from error

    @property
    def _is_toml(self) -> bool:
        return self.path.suffix == ".toml"

    def _parse(self) -> Any:
        try:
            if self._is_toml:
                return tomllib.loads(self.text)
            return json.loads(self.text, object_pairs_hook=self._unique)
        except json.JSONDecodeError as error:
            raise self.error_type(f"not JSON: {error.msg}", self.path, error.lineno) from error
        except tomllib.TOMLDecodeError as error:
            place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
            line = int(place[1]) if place else self.text.count("\n") + 1
            raise self.error_type(f"not TOML: {re.sub(r' [(]at .*$', '', str(error))}", self.path, line) from error
        except ValueError as error:
            raise self.error_type(f"cannot be read: {error}", self.path) from error

    def _unique(self, members: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return the members of a JSON object. TOML refuses a name given twice by itself, JSON does not."""
        unique = dict(members)
        if len(unique) < len(members):
            seen: set[Key] = set()
            for key, line in _json_lines(self.text):
                if key in seen:
                    raise self.error_type(f"{key[-1]!r} is given twice, and only one would count", self.path, line)
                seen.add(key)
        return unique


def read_document(path: Path, error_type: type[LocatedError]) -> Document:
    """Return the document in a file. Raises `error_type` when it cannot be read, is too large or is no UTF-8."""
    return decode_document(path, read_content(path, error_type), error_type)


def read_content(path: Path, error_type: type[LocatedError]) -> bytes:
    """Return what is in the file of a document. Raises `error_type` when it cannot be read or is too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO without a writer reads as empty
        try:
            content = os.read(fd, MAX_DOCUMENT_BYTES + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise error_type(f"cannot be read: {error.strerror}", path) from error
    except ValueError as error:
        raise error_type(f"cannot be read: {error}", path) from error  # a NUL in the path
    if len(content) > MAX_DOCUMENT_BYTES:
        raise error_type(f"larger than {MAX_DOCUMENT_BYTES} bytes", path)
    return content


def decode_document(path: Path, content: bytes, error_type: type[LocatedError]) -> Document:
    """Return the document that a file holds. Raises `error_type` when it is no UTF-8."""
    try:
        return Document(path, content.decode().replace("\r\n", "\n"), error_type)
    except UnicodeDecodeError as error:
        raise error_type("not UTF-8", path, content.count(b"\n", 0, error.start) + 1) from error


def _leaves(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield what is neither table nor array, with its key."""
    if not isinstance(value, dict | list):
        yield key, value
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        yield from _leaves(inner, (*key, name))


_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `(\$[\w.\[\]]*)`)?", re.DOTALL)
_PLACED = re.compile(r"(.*?)(?: - at (?:`key` in )?`(\$[^`]*)`)?", re.DOTALL)


def _explain(error: msgspec.ValidationError) -> tuple[Key, str]:
    """Return the key that a message of msgspec ends with, as in "- at `$.syscalls[0].name`", and the rest of it."""
    unknown = _UNKNOWN.fullmatch(str(error))
    placed = unknown or _PLACED.fullmatch(str(error))
    assert placed is not None
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", placed[2] or "")
    key: Key = tuple(name or int(index) for name, index in steps)
    if unknown:
        return (*key, unknown[1]), f"unknown key {unknown[1]!r}"
    return key, f"{'.'.join(map(str, key))}: {placed[1]}" if key else placed[1]


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def _json_lines(text: str) -> Iterator[tuple[Key, int]]:
    """Yield the key of each member and element of a JSON text, and its line."""
    path: list[str | int] = []  # the current member or element of each container that is open
    line, end, before = 1, 0, ""
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        line += text.count("\n", end, match.start())
        end = match.start()
        if token == "," and path and isinstance(path[-1], int):
            path[-1] += 1
        elif token in ("]", "}"):
            del path[-1:]
        elif path and isinstance(path[-1], str) and before in ("{", ","):
            path[-1] = json.loads(token)
            yield tuple(path), line
        elif path and isinstance(path[-1], int) and token != ",":
            yield tuple(path), line
        if token in ("[", "{"):
            path.append(0 if token == "[" else "")
        before = token


_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_KEY_PART = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[\w-]+)[ \t]*\.?""")
_SCALAR = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'{3}.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^,\]}#\n]+|.''', re.DOTALL
)


class _TomlLines:
    """Walks through the text of a well-formed TOML document; `lines` then has the line of each key."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Key, int] = {}
        self._text, self._at, self._line = text, 0, 1
        self._last: dict[Key, int] = {}  # index of the last table of each array of tables
        table: Key = ()
        while self._take(_BLANK) is not None and self._at < len(text):
            table = self._header() if text[self._at] == "[" else self._pair(table)

    def _take(self, pattern: re.Pattern[str] | str) -> re.Match[str] | None:
        match = re.compile(pattern).match(self._text, self._at)
        if match:
            self._at = match.end()
            self._line += match[0].count("\n")
        return match

    def _header(self) -> Key:
        """Read [table] or [[table]] and return its key."""
        line = self._line
        brackets = self._take(r"\[\[?")
        table: Key = ()
        for part in self._key():
            if table in self._last:
                table += (self._last[table],)
            table += (part,)
            self.lines.setdefault(table, line)
        if brackets and brackets[0] == "[[":
            self._last[table] = self._last.get(table, -1) + 1
        if table in self._last:
            table += (self._last[table],)
            self.lines.setdefault(table, line)
        self._take(r"[ \t]*\]\]?")
        return table

    def _pair(self, table: Key) -> Key:
        """Read a key and its value, and return the key of the table that they are in."""
        line, key = self._line, table
        for part in self._key():
            key += (part,)
            self.lines.setdefault(key, line)
        self._take(r"[ \t]*=[ \t]*")
        self._value(key)
        return table

    def _key(self) -> Iterator[str]:
        while part := self._take(_KEY_PART):
            quoted = part[1][0] in "\"'"
            yield tomllib.loads(f"key = {part[1]}")["key"] if quoted else part[1]
            if not part[0].endswith("."):
                return

    def _value(self, key: Key) -> None:
        opening = self._take(r"[\[{]")
        if opening is None:
            self._take(_SCALAR)
            return
        for index in range(len(self._text)):
            self._take(_BLANK)
            if self._take(r"[\]}]") or self._at == len(self._text):
                return
            if opening[0] == "{":
                self._pair(key)
            else:
                self.lines.setdefault((*key, index), self._line)
                self._value((*key, index))
            self._take(_BLANK)
            self._take(",")
