"""Data between a judge and a submission's process: plain values in frames, and nothing that could be code.

This file is also sent into cells and run there by whatever Python they have, so it needs the standard library alone.
A value is a tag and its content, a frame its length and one value. The parser is for bytes of strangers: each length is
checked against what there is, depth and size are bounded, every value has one encoding.
"""

from __future__ import annotations

import math
import struct
from typing import Any

Value = Any
"""None, bool, int, float, str, bytes, list, tuple, set, or dict, of exactly these types, as deep as `DEPTH_MAX`."""

DEPTH_MAX = 32
FRAME_MAX_BYTES = 1 << 20
INT_MAX_BYTES = 1792
"""Enough for the 4,300 digits that Python converts (sys.get_int_max_str_digits)."""

SIZE = struct.Struct(">I")
"""The length of a value or of a frame, before it."""

_FLOAT = struct.Struct(">d")


class FrameError(ValueError):
    """Bytes that are no frame, or a value that has none."""


def encode(value: Value, depth: int = 0) -> bytes:
    """Return the encoding of a value. Raises FrameError for one that is not plain data."""
    kind = type(value)
    if depth > DEPTH_MAX:
        raise FrameError("nested too deeply")
    if value is None or kind is bool:
        return b"N" if value is None else b"T" if value else b"F"
    if kind is int:
        size = value.bit_length() // 8 + 1
        if size > INT_MAX_BYTES:
            raise FrameError("an integer of too many digits")
        number: bytes = value.to_bytes(size, "big", signed=True)
        return b"i" + SIZE.pack(size) + number
    if kind is float:
        return b"d" + (_FLOAT.pack(math.nan) if value != value else _FLOAT.pack(value))
    if kind is str:
        try:
            text: bytes = value.encode()
        except UnicodeEncodeError:
            raise FrameError("a text with lone surrogates") from None
        return b"s" + SIZE.pack(len(text)) + text
    if kind is bytes:
        return b"b" + SIZE.pack(len(value)) + bytes(value)
    return _encode_many(value, kind, depth)


def _encode_many(value: Value, kind: type, depth: int) -> bytes:
    if kind is list or kind is tuple:
        parts = [encode(item, depth + 1) for item in value]
    elif kind is set:
        parts = sorted(encode(item, depth + 1) for item in value)
    elif kind is dict:
        parts = [encode(key, depth + 1) + encode(item, depth + 1) for key, item in value.items()]
    else:
        raise FrameError("a value of type " + kind.__name__[:64])
    tag = {list: b"l", tuple: b"t", set: b"e", dict: b"m"}[kind]
    return tag + SIZE.pack(len(parts)) + b"".join(parts)


def decode(data: bytes) -> Value:
    """Return the value that all of the bytes are. Raises FrameError for what is no encoding of one."""
    value, at = _decode(data, 0, 0)
    if at != len(data):
        raise FrameError("bytes after a value")
    return value


def _decode(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    if depth > DEPTH_MAX:
        raise FrameError("nested too deeply")
    tag = data[at : at + 1]
    at += 1
    if tag in _SINGLE:
        return _SINGLE[tag], at
    if tag == b"d":
        if at + 8 > len(data):
            raise FrameError("a value that ends early")
        value = _FLOAT.unpack_from(data, at)[0]
        if value != value and data[at : at + 8] != _FLOAT.pack(math.nan):
            raise FrameError("a second way to say NaN")
        return value, at + 8
    if tag not in _SIZED or at + 4 > len(data):
        raise FrameError("a tag that is none")
    size = SIZE.unpack_from(data, at)[0]
    at += 4
    if size > len(data) - at:
        raise FrameError("a length beyond the frame")
    if tag in b"isb":
        return _decode_bytes(tag, data[at : at + size]), at + size
    return _decode_many(tag, size, data, at, depth)


def _decode_bytes(tag: bytes, content: bytes) -> Value:
    if tag == b"b":
        return content
    if tag == b"s":
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise FrameError("a text that is no UTF-8") from None
    value = int.from_bytes(content, "big", signed=True)
    if len(content) > INT_MAX_BYTES or len(content) != value.bit_length() // 8 + 1:
        raise FrameError("an integer of a length that is not its own")
    return value


def _decode_many(tag: bytes, size: int, data: bytes, at: int, depth: int) -> tuple[Value, int]:
    items = []
    for _ in range(size * 2 if tag == b"m" else size):
        item, at = _decode(data, at, depth + 1)
        items.append(item)
    if tag == b"l":
        return items, at
    if tag == b"t":
        return tuple(items), at
    keys = items[::2] if tag == b"m" else items
    try:
        unique = set(keys)
    except TypeError:
        raise FrameError("a key that cannot be one") from None
    if len(unique) != len(keys):
        raise FrameError("a key that is there twice")
    return (unique if tag == b"e" else dict(zip(keys, items[1::2]))), at  # noqa: B905 - this runs on Pythons that have no strict


_SINGLE: dict[bytes, Value] = {b"N": None, b"T": True, b"F": False}
_SIZED = frozenset((b"i", b"s", b"b", b"l", b"t", b"e", b"m"))


def frame(value: Value) -> bytes:
    """Return a value as a frame. Raises FrameError when it is too large or not plain data."""
    content = encode(value)
    if len(content) > FRAME_MAX_BYTES:
        raise FrameError("a frame that is too large")
    return SIZE.pack(len(content)) + content


def frame_size(head: bytes) -> int:
    """Return how many bytes follow the first four of a frame. Raises FrameError when they are too many."""
    size: int = SIZE.unpack(head)[0]
    if size > FRAME_MAX_BYTES:
        raise FrameError("a frame that is too large")
    return size


RETURNED = encode(["returned", None])[:-1]
"""How a shim's reply begins whose rest is the value that was returned."""
