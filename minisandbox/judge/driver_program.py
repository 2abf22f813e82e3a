"""The driver: the process that reads what a submission answered, compares it with what is expected, and gives marks.

It runs in a sandbox of its own, by whatever Python is there, for one judgement, and imports nothing but the standard
library and three modules of ours. It knows what is expected and holds nothing else: no key, no ledger, no other task.
Its input are questions, from the judge; its output are marks of a fixed form, which the judge need not parse.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import struct
from collections.abc import Sequence
from typing import Any

from minisandbox.judge.comparing import is_same, matches
from minisandbox.judge.frames import FrameError, Value, decode
from minisandbox.judge.rewards import BadRewardError, read_rewards

RIGHT, WRONG, FAILED, NOT_PLAIN, NONE = range(5)
"""What a mark says: that an answer is right or wrong, that there was a failure in its place, an object that is no data,
or nothing that is an answer."""

SIZE = struct.Struct(">Q")
"""The length of a question, or of all marks for it, before it."""

MARK = struct.Struct(">BdB")
"""A mark: what it says, what it is worth, and the length of a note, in ASCII, that follows."""

NOTE_MAX = 200
MOST_KINDS = 2
"""Of how many kinds an exception may be: `class Missing(AttributeError, KeyError)` is honest."""

Mark = tuple[int, float, str]


def mark_output(checker: str, options: dict[str, Any], http: bool, output: bytes, answer: bytes) -> Mark:
    """Return a mark for the output of a program, or what a service replied."""
    text = body_of(output) if http else output
    return (RIGHT if text is not None and matches(checker, options, text, answer) else WRONG), 0.0, ""


def body_of(reply: bytes) -> bytes | None:
    """Return what an HTTP reply says, as it was asked for by HTTP/1.0; None unless its status is 200."""
    head, _, body = reply.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    return body if len(status) >= 2 and status[0].startswith(b"HTTP/1.") and status[1] == b"200" else None


def mark_replies(
    tolerance: float | None, wanted: Sequence[tuple[bytes, str | None]], replies: Sequence[bytes]
) -> list[Mark]:
    """Return a mark for each call. What says something that is no reply is not believed from there on."""
    marks: list[Mark] = []
    for (expected, raises), reply in zip(wanted, replies, strict=False):
        mark = _mark_reply(tolerance, expected, raises, reply)
        if mark[0] == NONE:
            break
        marks.append(mark)
    return marks + [(NONE, 0.0, "")] * (len(wanted) - len(marks))


def _mark_reply(tolerance: float | None, expected: bytes, raises: str | None, reply: bytes) -> Mark:
    try:
        message = decode(reply)
    except FrameError:
        return NONE, 0.0, ""
    match message:
        case ["returned", value] if raises is None:
            return (RIGHT if is_same(value, decode(expected), tolerance) else WRONG), 0.0, ""
        case ["returned", _]:
            return WRONG, 0.0, ""
        case ["raised", [*names], str(note)] if names and all(type(name) is str for name in names):
            if raises is None:
                return FAILED, 0.0, note
            return (RIGHT if is_raised(raises, names) else WRONG), 0.0, note
        case ["not plain", str(note)]:
            return NOT_PLAIN, 0.0, note
    return NONE, 0.0, ""


def is_raised(wanted: str, names: list[str]) -> bool:
    """Return whether an exception, by the names of its class and the classes above it, is one of those wanted.

    One that is of several kinds that Python has, more than honest ones are, is none: it was made to fit whatever comes.
    """
    kinds = [kind for name in names if isinstance(kind := getattr(builtins, name, None), type)]
    lowest = {kind for kind in kinds if not any(other is not kind and issubclass(other, kind) for other in kinds)}
    return wanted in names and len(lowest) <= MOST_KINDS


def mark_rewards(names: tuple[str, ...], text: bytes | None, document: bytes | None) -> list[Mark]:
    """Return a mark for each name, worth its reward; all say NONE, and why, where the files are no rewards."""
    try:
        rewards = read_rewards(text, document, names)
    except BadRewardError as error:
        return [(NONE, 0.0, str(error))] * len(names)
    return [(RIGHT, rewards[name], "") for name in names]


def marks_of(question: Value) -> list[Mark]:
    """Return the marks that a question asks for."""
    match question:
        case ["output", str(checker), dict(options), bool(http), bytes(output), bytes(answer)]:
            return [mark_output(checker, options, http, output, answer)]
        case ["replies", tolerance, list(wanted), list(replies)]:
            return mark_replies(tolerance, wanted, replies)
        case ["rewards", tuple(names), text, document]:
            return mark_rewards(names, text, document)
    raise FrameError("a question that is none")


def encode_marks(marks: list[Mark]) -> bytes:
    """Return marks as the judge reads them."""
    content = b"".join(_encode_mark(*mark) for mark in marks)
    return SIZE.pack(len(content)) + content


def _encode_mark(grade: int, worth: float, note: str) -> bytes:
    text = note.encode("unicode_escape", "backslashreplace")[:NOTE_MAX]
    return MARK.pack(grade, worth, len(text)) + text


def decode_marks(content: bytes, wanted: int) -> list[Mark]:
    """Return so many marks, all that there are. Raises FrameError for what is none, as the driver never says it."""
    marks: list[Mark] = []
    at = 0
    while at < len(content) and len(marks) < wanted:
        if at + MARK.size > len(content):
            raise FrameError("a mark that ends early")
        grade, worth, size = MARK.unpack_from(content, at)
        at += MARK.size
        note = content[at : at + size]
        at += size
        if grade > NONE or not 0.0 <= worth <= 1.0 or len(note) != size or not note.isascii():
            raise FrameError("a mark that is none")
        marks.append((grade, worth, note.decode("ascii")))
    if at != len(content) or len(marks) != wanted:
        raise FrameError("other marks than were asked for")
    return marks


def _exactly(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(0, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def main() -> None:
    """Answer questions until there are no more."""
    with contextlib.suppress(EOFError):
        while True:
            answer = encode_marks(marks_of(decode(_exactly(*SIZE.unpack(_exactly(SIZE.size))))))
            while answer:
                answer = answer[os.write(1, answer) :]
