"""What a trainer and a judge say to each other: frames of msgspec values, versioned and bounded. No I/O.

A trainer says Hello, then asks: Describe, answered by Description; or Submit, a submission as Head and Chunk, End,
answered by Given. Instead of an answer there may be a Refusal. Nothing else is ever said: no test, no expected value.
"""

from __future__ import annotations

import re
import struct
from typing import TypeVar

import msgspec

from minisandbox.errors import ProtocolError, UsageError
from minisandbox.judge.assignment import Declared
from minisandbox.judge.verdict import Verdict

VERSION = 1
REQUEST_MAX_BYTES = 1 << 20
ANSWER_MAX_BYTES = 64 << 20
CHUNK_MAX_BYTES = 1 << 18
PATH_MAX_BYTES = 4096
_SIZE = struct.Struct(">I")
SIZE_BYTES = _SIZE.size

_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3}")
VERBS = ("tree", "file", "forbidden", "missing", "alive", "over")
"""What may come of a submission, as `ingest_program` wants it."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hello"):
    """The first request."""

    version: int = VERSION


class Describe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="describe"):
    """Asks what a task takes in."""

    task: str

    def __post_init__(self) -> None:
        check_task(self.task)


class Submit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="submit"):
    """Begins a submission for a task."""

    task: str

    def __post_init__(self) -> None:
        check_task(self.task)


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="head"):
    """Begins a tree or a file of a submission, or names what is in none."""

    verb: str
    path: str

    def __post_init__(self) -> None:
        if self.verb not in VERBS or len(self.path) > PATH_MAX_BYTES:
            raise UsageError(f"a head is one of {', '.join(VERBS)}, with a path of {PATH_MAX_BYTES} bytes at most")


class Chunk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="chunk"):
    """Some bytes of a tree or a file, in its order; none at its end."""

    content: bytes

    def __post_init__(self) -> None:
        if len(self.content) > CHUNK_MAX_BYTES:
            raise UsageError(f"a chunk has {CHUNK_MAX_BYTES} bytes at most")


class End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="end"):
    """Ends a submission."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="welcome"):
    """The answer to Hello."""

    version: int
    judge: str
    """Which judge it is, as in a verdict."""


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="description"):
    """The answer to Describe."""

    task: str
    """The digest of the task."""
    declared: Declared


class Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="given"):
    """The verdict on a submission."""

    episode: str
    verdict: Verdict


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="refusal"):
    """Nothing was decided."""

    error: str
    """The name of an exception of the package."""
    message: str


Request = Hello | Describe | Submit | Head | Chunk | End
Answer = Welcome | Description | Given | Refusal

T = TypeVar("T")


def check_task(name: str) -> None:
    """Raise UsageError for what is no name of a task: up to four plain names with "/" between them."""
    if not _TASK.fullmatch(name):
        raise UsageError(f"{name[:100]!r} is no name of a task: letters, digits, '.', '_' and '-', up to four with '/'")


def encode_message(message: Request | Answer) -> bytes:
    """Return a message as a frame."""
    content = msgspec.msgpack.encode(message)
    return _SIZE.pack(len(content)) + content


def size_of(head: bytes, most_bytes: int) -> int:
    """Return how many bytes follow the head of a frame. Raises ProtocolError when they are none, or too many."""
    size: int = _SIZE.unpack(head)[0]
    if not 0 < size <= most_bytes:
        raise ProtocolError(f"a frame of {size} bytes; 1 to {most_bytes} are allowed")
    return size


def decode_request(content: bytes) -> Request:
    """Return the request in a frame. Raises ProtocolError for what is none."""
    return _decode(content, _REQUESTS)


def decode_answer(content: bytes) -> Answer:
    """Return the answer in a frame. Raises ProtocolError for what is none."""
    return _decode(content, _ANSWERS)


def _decode(content: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UsageError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a frame that is no message: {str(error)[:200]}") from error


_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
