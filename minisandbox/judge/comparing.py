"""Whether an answer is right: pure functions of bytes and plain values; nothing in an answer is ever evaluated.

What they have in common: an output must be all of the answer and nothing more, so that neither a prefix, nor a list of
all possible answers, nor trailing text passes. Numbers are decimal ASCII digits; there is no NaN that equals anything.
It is run in the process of a driver, so it needs the standard library alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

_WHITE = b" \t\n\r\v\f"
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_NUMBER_MAX_BYTES = 400
_INTEGER = re.compile(rb"[+-]?[0-9]+")


def matches(checker: str, options: dict[str, Any], output: bytes, answer: bytes) -> bool:
    """Return whether an output is the answer, by the checker of this name with its options."""
    if checker == "exact":
        return _without_line_end(output) == _without_line_end(answer)
    if checker == "tokens":
        return _words(output, options["fold_case"]) == _words(answer, options["fold_case"])
    if checker == "unordered":
        return _lines(output) == _lines(answer)
    mine, right = output.split(), answer.split()
    absolute, relative = options["absolute"], options["relative"]
    return len(mine) == len(right) and all(
        _is_near(got, want, absolute, relative) for got, want in zip(mine, right, strict=True)
    )


def _without_line_end(text: bytes) -> bytes:
    return text.removesuffix(b"\n").removesuffix(b"\r")


def _words(text: bytes, fold_case: bool) -> list[bytes]:
    return (text.lower() if fold_case else text).split()


def _lines(text: bytes) -> Counter[tuple[bytes, ...]]:
    """Return the lines as words. White space at the end does not count, empty lines between do."""
    return Counter(tuple(line.split()) for line in text.rstrip(_WHITE).split(b"\n"))


def _is_near(got: bytes, want: bytes, absolute: float, relative: float) -> bool:
    if got == want:
        return True
    is_float = _as_number(want) is not None and not _INTEGER.fullmatch(want)
    mine, right = _as_number(got), _as_number(want)
    if not is_float or mine is None or right is None:
        return False
    return abs(mine - right) <= max(absolute, relative * abs(right))


def _as_number(word: bytes) -> float | None:
    """Return the number that a word is; None for a word, for NaN and for what is beyond a float."""
    if len(word) > _NUMBER_MAX_BYTES or not _NUMBER.fullmatch(word):
        return None
    value = float(word)
    return value if math.isfinite(value) else None


def is_same(got: Any, want: Any, tolerance: float | None) -> bool:
    """Return whether two plain values are equal and of the same types all the way down; floats within a tolerance."""
    if type(got) is not type(want):
        return False
    if isinstance(want, float):
        if tolerance is not None and math.isfinite(want) and math.isfinite(got):
            return math.isclose(got, want, rel_tol=tolerance, abs_tol=tolerance)
        return bool(got == want) or (math.isnan(got) and math.isnan(want))
    if isinstance(want, list | tuple):
        return len(got) == len(want) and all(is_same(a, b, tolerance) for a, b in zip(got, want, strict=True))
    if isinstance(want, dict):
        mine = {(type(key), key): value for key, value in got.items()}
        right = {(type(key), key): value for key, value in want.items()}
        return mine.keys() == right.keys() and all(is_same(mine[key], right[key], tolerance) for key in right)
    if isinstance(want, set):
        return {(type(item), item) for item in got} == {(type(item), item) for item in want}
    return bool(got == want)
