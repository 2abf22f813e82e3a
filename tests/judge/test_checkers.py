"""Only what is the answer passes for it: what has fooled checkers elsewhere does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisandbox.errors import UsageError
from minisandbox.judge.checkers import Checker, Exact, Floats, Tokens, Unordered, accepts

ALL: list[Checker] = [Exact(), Tokens(), Tokens(fold_case=True), Floats(), Unordered()]

CHEATS = [
    b"", b"\n", b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"1e400", b"-1e400", b"None", b"*", b".*",
    b"1000000 1000001", b"999999\n1000000", b"1000000 garbage", b"1000000\n1000000", b"100000", b"1000001",
    b"1000000.5", b"0x1000000", b"1_000_000", "\uff11\uff10".encode(), "\u0661\u0660".encode(), b"1000000\0",
    b"\xef\xbb\xbf1000000", b"1,000,000", b"9" * 5000, b"True", b"1e6", b"1000000.0", b"+1000000", b"01000000",
    b"1000000 -0", b"\xff\xfe", b"${answer}", b"__import__('os')",
]  # fmt: skip


@pytest.mark.parametrize("checker", ALL, ids=repr)
@pytest.mark.parametrize("output", CHEATS, ids=lambda output: repr(output[:20]))
def test_cheats_do_not_pass(checker: Checker, output: bytes) -> None:
    """Of an integer, each is another text."""
    assert not accepts(checker, output, b"1000000\n")


@pytest.mark.parametrize("checker", ALL, ids=repr)
def test_the_answer_passes(checker: Checker) -> None:
    """With and without a line end, also when it is nothing."""
    for answer in (b"1000000\n", b"1 2\n3 4\n", b"", b"nan\n", b"x"):
        assert accepts(checker, answer, answer)
        assert accepts(checker, answer.removesuffix(b"\n"), answer)


@pytest.mark.parametrize("checker", ALL, ids=repr)
def test_nothing_is_no_answer(checker: Checker) -> None:
    """Nor is an answer nothing."""
    assert not accepts(checker, b"", b"1")
    assert not accepts(checker, b"1", b"")
    assert not accepts(checker, b"1 2", b"1")
    assert not accepts(checker, b"1", b"1 2")


def test_case_and_white_space() -> None:
    """Exact is exact; words are folded where that was asked for, and in ASCII alone."""
    assert not accepts(Exact(), b"a  b", b"a b")
    assert not accepts(Exact(), b" a", b"a")
    assert accepts(Tokens(), b" a\t\r\n b ", b"a b\n")
    assert not accepts(Tokens(), b"YES", b"yes")
    assert accepts(Tokens(fold_case=True), b"YES", b"yes")
    assert not accepts(Tokens(fold_case=True), "ÄA".encode(), "äa".encode())


def test_floats_within_their_tolerance() -> None:
    """Absolute or relative; an integer of the answer is one, and NaN is near to nothing."""
    floats = Floats(absolute=1e-6, relative=1e-6)

    assert accepts(floats, b"0.3333333", b"0.3333334")
    assert accepts(floats, b"-0.0", b"0.0")
    assert accepts(floats, b"1e6", b"1000000.5")
    assert accepts(floats, b"x 1.0000001 5", b"x 1.0 5")
    assert not accepts(floats, b"1000001", b"1000000")
    assert not accepts(floats, b"1000000.0000001", b"1000000")
    assert not accepts(floats, b"0.33333", b"0.33334")
    for word in (b"nan", b"inf", b"1e400", b"1e99999", b"0x1p3", b"1_0.0", b"1" * 401 + b".0"):
        assert not accepts(floats, word, b"1.0")
    assert not accepts(floats, b"1.0", b"nan")
    assert not accepts(floats, b"0.5", b"inf")


def test_lines_in_any_order() -> None:
    """Each as often as in the answer."""
    assert accepts(Unordered(), b"b 2\na 1\n", b"a  1\nb 2\n\n")
    assert not accepts(Unordered(), b"a\nb\nb\n", b"a\nb\n")
    assert not accepts(Unordered(), b"a\na\nb\n", b"a\nb\nb\n")
    assert not accepts(Unordered(), b"a b\n", b"a\nb\n")


@settings(deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60), st.sampled_from(ALL))
def test_what_passes_has_the_same_words(output: bytes, answer: bytes, checker: Checker) -> None:
    """Whatever the bytes are, nothing is raised; what is accepted has as many words as the answer."""
    if accepts(checker, output, answer):
        assert len(output.split()) == len(answer.split())
    assert accepts(checker, answer, answer)


@pytest.mark.parametrize("tolerance", [float("nan"), float("inf"), -1.0])
def test_a_tolerance_is_a_number(tolerance: float) -> None:
    """One that accepts anything is refused."""
    with pytest.raises(UsageError):
        Floats(absolute=tolerance)
    with pytest.raises(UsageError):
        Floats(relative=1.0)
