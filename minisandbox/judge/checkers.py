"""Checkers: what a task asks of an output, as values. How they compare is in `minisandbox.judge.comparing`."""

from __future__ import annotations

import math

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.comparing import matches


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


def accepts(checker: Checker, output: bytes, answer: bytes) -> bool:
    """Return whether an output is the answer."""
    return matches(name_of(checker), options_of(checker), output, answer)


def name_of(checker: Checker) -> str:
    """Return what a checker is called."""
    return str(checker.__struct_config__.tag)


def options_of(checker: Checker) -> dict[str, bool | float]:
    """Return what it was told."""
    return msgspec.structs.asdict(checker)
