"""Calls of functions in a file: one JSON object a line, whose values are Python literals, so that no type is lost.

{"id": "1", "function": "f", "args": "([1, 2.0],)", "kwargs": "{}", "expected": "(1, None)"}
A literal is read and never evaluated; NaN and infinities are none, and neither is anything that computes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import msgspec

from minisandbox.errors import TaskError
from minisandbox.judge.assignment import Call
from minisandbox.judge.frames import FrameError, Value, decode, encode

MAX_CALLS = 10_000


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    function: str
    args: str = "()"
    kwargs: str = "{}"
    expected: str = "None"
    raises: str | None = None


def read_calls(content: bytes, path: Path) -> tuple[Call, ...]:
    """Return the calls of a file. Raises TaskError with the line that is wrong."""
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    if not lines:
        raise TaskError("there is no test: no calls", path)
    if len(lines) > MAX_CALLS:
        raise TaskError(f"more than {MAX_CALLS} calls", path)
    calls: dict[str, Call] = {}
    for number, line in lines:
        try:
            call = _read(msgspec.json.decode(line, type=_Line))
        except (msgspec.MsgspecError, ValueError, FrameError, RecursionError, MemoryError, TypeError) as error:
            raise TaskError(f"no call: {error}", path, number) from error
        if call.id in calls:
            raise TaskError(f"two calls have the id {call.id!r}", path, number)
        calls[call.id] = call
    return tuple(calls.values())


def _read(line: _Line) -> Call:
    args, kwargs = _literal(line.args), _literal(line.kwargs)
    if type(args) is not tuple or type(kwargs) is not dict or not all(type(name) is str for name in kwargs):
        raise ValueError("args is a tuple and kwargs a dict of names")
    return Call(
        id=line.id,
        function=line.function,
        arguments=encode((args, kwargs)),
        expected=encode(_literal(line.expected)),
        raises=line.raises,
    )


def _literal(text: str) -> Value:
    try:
        return ast.literal_eval(text)
    except SyntaxError as error:
        raise ValueError(f"{text[:80]!r} is no Python literal") from error


def write_calls(calls: Iterable[Call]) -> bytes:
    """Return the file that holds calls. Raises ValueError for a value that has no literal."""
    return b"".join(msgspec.json.encode(_line(call)) + b"\n" for call in calls)


def _line(call: Call) -> _Line:
    args, kwargs = decode(call.arguments)
    line = _Line(
        id=call.id,
        function=call.function,
        args=repr(args),
        kwargs=repr(kwargs),
        expected=repr(decode(call.expected)),
        raises=call.raises,
    )
    if _read(line) != call:
        raise ValueError(f"a value of the call {call.id!r} has no literal")
    return line
