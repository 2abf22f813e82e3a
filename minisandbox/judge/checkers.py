"""Checkers: whether an output is the answer. Pure functions of bytes; nothing in an output is ever evaluated.

What they have in common: an output must be all of the answer and nothing more, so that neither a prefix, nor a list of
all possible answers, nor trailing text passes. Numbers are decimal ASCII digits; there is no NaN that equals anything.
"""

from __future__ import annotations

import math
import re
from collections import Counter

import msgspec

from minisandbox.errors import UsageError


class Exact(msgspec.Struct, frozen=True, kw_only=True, tag="exact"):
    """Byte for byte, but for one line end at the end."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """The same words, whatever white space is between them."""

    fold_case: bool = False
    """Whether upper and lower case of ASCII letters are the same."""


class Floats(msgspec.Struct, frozen=True, kw_only=True, tag="floats"):
    """The same words; a number of the answer that has a point or an exponent may be missed by a tolerance."""

    absolute: float = 1e-6
    relative: float = 1e-6

    def __post_init__(self) -> None:
        if not (0.0 <= self.absolute < math.inf and 0.0 <= self.relative < 1.0):
            raise UsageError("a tolerance is 0 or more, the relative one below 1")


class Unordered(msgspec.Struct, frozen=True, kw_only=True, tag="unordered"):
    """The same lines, each as often, in any order; white space in a line as with tokens."""


Checker = Exact | Tokens | Floats | Unordered

_WHITE = b" \t\n\r\v\f"
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_NUMBER_MAX_BYTES = 400
_INTEGER = re.compile(rb"[+-]?[0-9]+")


def accepts(checker: Checker, output: bytes, answer: bytes) -> bool:
    """Return whether an output is the answer."""
    if isinstance(checker, Exact):
        return _without_line_end(output) == _without_line_end(answer)
    if isinstance(checker, Tokens):
        return _words(output, checker) == _words(answer, checker)
    if isinstance(checker, Unordered):
        return _lines(output) == _lines(answer)
    mine, right = output.split(), answer.split()
    return len(mine) == len(right) and all(_is_near(got, want, checker) for got, want in zip(mine, right, strict=True))


def _without_line_end(text: bytes) -> bytes:
    return text.removesuffix(b"\n").removesuffix(b"\r")


def _words(text: bytes, checker: Tokens) -> list[bytes]:
    return (text.lower() if checker.fold_case else text).split()


def _lines(text: bytes) -> Counter[tuple[bytes, ...]]:
    """Return the lines as words. White space at the end does not count, empty lines between do."""
    return Counter(tuple(line.split()) for line in text.rstrip(_WHITE).split(b"\n"))


def _is_near(got: bytes, want: bytes, checker: Floats) -> bool:
    if got == want:
        return True
    is_float = _as_number(want) is not None and not _INTEGER.fullmatch(want)
    mine, right = _as_number(got), _as_number(want)
    if not is_float or mine is None or right is None:
        return False
    return abs(mine - right) <= max(checker.absolute, checker.relative * abs(right))


def _as_number(word: bytes) -> float | None:
    """Return the number that a word is; None for a word, for NaN and for what is beyond a float."""
    if len(word) > _NUMBER_MAX_BYTES or not _NUMBER.fullmatch(word):
        return None
    value = float(word)
    return value if math.isfinite(value) else None
