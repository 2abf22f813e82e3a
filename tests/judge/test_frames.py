"""Plain data goes through a frame and is the same; everything else does not."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisandbox.judge.frames import DEPTH_MAX, FRAME_MAX_BYTES, FrameError, decode, encode, frame, frame_size

KEYS = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5)
VALUES = st.recursive(
    KEYS | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.sets(st.integers() | st.text(max_size=3), max_size=4)
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal, of the same types all the way down."""
    return type(left) is type(right) and encode(left) == encode(right)


@settings(deadline=None)
@given(VALUES)
def test_plain_values_come_back(value: Any) -> None:
    """With their types: 1, 1.0 and True are three."""
    assert same(value, decode(encode(value)))
    assert value == decode(encode(value))


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_junk_is_refused_or_has_one_encoding(data: bytes) -> None:
    """Whatever comes, the only error is ours, and what is a value is so in one way."""
    try:
        value = decode(data)
    except FrameError:
        return
    if not isinstance(value, dict | set | list | tuple):
        assert encode(value) == data


@settings(deadline=None)
@given(VALUES, st.data())
def test_a_value_cut_short_is_refused(value: Any, data: st.DataObject) -> None:
    """At any byte; as is one with a byte more."""
    encoded = encode(value)
    at = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(FrameError):
        decode(encoded[:at])
    with pytest.raises(FrameError):
        decode(encoded + b"N")


class AlwaysEqual(int):
    """Would pass for anything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


NOT_PLAIN = [
    AlwaysEqual(1), OrderedDict(), object(), len, type, 1j, frozenset(), bytearray(b"x"), range(3), "\ud800",
    1 << 20_000,
]  # fmt: skip


@pytest.mark.parametrize("value", NOT_PLAIN, ids=range(len(NOT_PLAIN)))
def test_what_is_not_plain_is_refused(value: Any) -> None:
    """Subclasses, objects, functions, and texts and numbers that others could not read."""
    with pytest.raises(FrameError):
        encode(value)
    with pytest.raises(FrameError):
        encode([{"x": (value,)}])


def test_depth_and_size_are_bounded() -> None:
    """In both directions."""
    deep: Any = None
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    with pytest.raises(FrameError, match="too deeply"):
        encode(deep)
    with pytest.raises(FrameError, match="too deeply"):
        decode(b"l\0\0\0\1" * 100 + b"N")
    with pytest.raises(FrameError, match="too large"):
        frame(b"x" * FRAME_MAX_BYTES)
    with pytest.raises(FrameError, match="too large"):
        frame_size(b"\xff\xff\xff\xff")
    with pytest.raises(FrameError, match="beyond the frame"):
        decode(b"l\xff\xff\xff\xff")
    assert 5 == frame_size(frame([])[:4])


def test_nan_and_keys_have_one_form() -> None:
    """NaN is one value; a key is there once; a list is none."""
    assert math.isnan(decode(encode(-math.nan)))
    with pytest.raises(FrameError, match="second way"):
        decode(b"d\x7f\xf8\0\0\0\0\0\1")
    with pytest.raises(FrameError, match="twice"):
        decode(b"m\0\0\0\2" + (encode("a") + encode(1)) * 2)
    with pytest.raises(FrameError, match="cannot be one"):
        decode(b"e\0\0\0\1" + encode([]))
    with pytest.raises(FrameError, match="not its own"):
        decode(b"i\0\0\0\2\0\1")
