"""The driver: what answers are worth, whatever they are, and that nothing in them harms who asks."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import minisandbox
from minisandbox.judge.assignment import StdioWork, TestCase
from minisandbox.judge.checkers import Checker, Exact, Floats, Tokens, Unordered, accepts
from minisandbox.judge.driver import Driver, open_driver
from minisandbox.judge.driver_program import (
    FAILED,
    NONE,
    NOT_PLAIN,
    RIGHT,
    SIZE,
    WRONG,
    decode_marks,
    encode_marks,
    is_raised,
    mark_replies,
    mark_rewards,
    marks_of,
)
from minisandbox.judge.frames import RETURNED, FrameError, encode
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from tests.judge.submissions import DEADLINE_S, decision

NOTES = st.text(st.characters(codec="ascii"), max_size=50)
MARKS = st.lists(st.tuples(st.integers(RIGHT, NONE), st.floats(0.0, 1.0), NOTES))


@pytest.fixture
async def driver(supervisor: minisandbox.Supervisor) -> AsyncIterator[Driver]:
    """A driver of this test alone."""
    async with open_driver(supervisor) as made:
        yield made


async def test_it_compares_in_a_process_of_its_own(driver: Driver, supervisor: minisandbox.Supervisor) -> None:
    """One for all questions, started when there is one that needs reading, and gone afterwards."""
    with trio.fail_after(DEADLINE_S):
        assert await driver.accepts(Exact(), b"1\n", b"1")
        before = len(supervisor._sandboxes)
        assert await driver.accepts(Tokens(), b"1  2", b"1 2")
        assert not await driver.accepts(Floats(), b"1.1", b"1.2")
        assert before + 1 == len(supervisor._sandboxes)


async def test_what_ends_it_is_no_answer_and_ends_nothing_else(driver: Driver) -> None:
    """An answer that uses up its memory is wrong, and the next question gets another driver."""
    with trio.fail_after(DEADLINE_S):
        deep = b"l\0\0\0\1" * 40 + b"N"
        assert [NONE] == [mark[0] for mark in await driver.ask(["replies", None, [(encode(1), None)], [deep]], 1)]
        assert [NONE] == [mark[0] for mark in await driver.ask(["no question"], 1)]
        assert await driver.accepts(Tokens(), b"1  2", b"1 2")


async def test_a_killed_driver_is_replaced(driver: Driver) -> None:
    """Once: what it was asked is asked again."""
    with trio.fail_after(DEADLINE_S):
        assert await driver.accepts(Tokens(), b"1  2", b"1 2")
        assert driver._process is not None
        await driver._process.kill()
        assert await driver.accepts(Tokens(), b"1  2", b"1 2")


@pytest.mark.parametrize("checker", [Exact(), Tokens(), Tokens(fold_case=True), Floats(), Unordered()])
@given(answer=st.binary(max_size=40))
def test_every_checker_takes_the_answer_itself(checker: Checker, answer: bytes) -> None:
    """With or without a last line end, so that whoever gives it needs no driver."""
    for output in (answer.removesuffix(b"\n"), answer.removesuffix(b"\n") + b"\n"):
        assert accepts(checker, output, answer)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
)


@given(value=PLAIN)
def test_a_reply_of_the_same_bytes_is_right(value: object) -> None:
    """So that whoever gives it needs no driver either."""
    assert [RIGHT] == [mark[0] for mark in mark_replies(None, [(encode(value), None)], [RETURNED + encode(value)])]


@given(reply=st.binary(max_size=60))
def test_bytes_that_are_no_reply_are_none(reply: bytes) -> None:
    """Whatever they are, a mark comes of them and no exception; right is only what is."""
    (mark,) = mark_replies(None, [(encode(6), None)], [reply])

    assert mark[0] != RIGHT or reply == RETURNED + encode(6)


def test_what_follows_something_that_is_no_reply_is_not_believed() -> None:
    """Nor is what is missing."""
    right = RETURNED + encode(1)
    wanted = [(encode(1), None)] * 3

    assert [RIGHT, NONE, NONE] == [mark[0] for mark in mark_replies(None, wanted, [right, b"x", right])]
    assert [RIGHT, NONE, NONE] == [mark[0] for mark in mark_replies(None, wanted, [right])]
    assert [NONE] * 3 == [mark[0] for mark in mark_replies(None, wanted, [])]


@pytest.mark.parametrize(
    ("reply", "raises", "grade"),
    [
        (["returned", 2], None, WRONG),
        (["returned", 1], "ValueError", WRONG),
        (["raised", ["ValueError", "Exception"], "no"], "ValueError", RIGHT),
        (["raised", ["KeyError"], "no"], "ValueError", WRONG),
        (["raised", ["KeyError"], "no"], None, FAILED),
        (["raised", [], "no"], None, NONE),
        (["raised", [1], "no"], None, NONE),
        (["not plain", "a value of type E"], None, NOT_PLAIN),
        ([], None, NONE),
        ("returned", None, NONE),
        (["returned"], None, NONE),
        (["returned", 1, 2], None, NONE),
        (["returned", True], None, WRONG),
        (["returned", math.nan], None, WRONG),
    ],
)
def test_each_reply_has_its_mark(reply: object, raises: str | None, grade: int) -> None:
    """Values, exceptions, objects, and what is none of them."""
    assert grade == mark_replies(None, [(encode(1), raises)], [encode(reply)])[0][0]


def test_rewards_have_marks() -> None:
    """One for each name; none where the files are no rewards, and why."""
    assert [(RIGHT, 0.5, ""), (RIGHT, 1.0, "")] == mark_rewards(("a", "b"), None, b'{"a": 0.5, "b": 1}')
    assert [(NONE, 0.0, "no reward was written")] * 2 == mark_rewards(("a", "b"), None, None)
    assert marks_of(["rewards", ("a",), b"1", None]) == [(RIGHT, 1.0, "")]


@given(marks=MARKS)
def test_marks_come_back_as_they_were(marks: list[tuple[int, float, str]]) -> None:
    """But for notes, which are ASCII and escaped."""
    content = encode_marks(marks)
    read = decode_marks(content[SIZE.size :], len(marks))

    assert [mark[:2] for mark in marks] == [mark[:2] for mark in read]
    assert all(note.isprintable() for _, _, note in read)


@given(content=st.binary(max_size=60), wanted=st.integers(0, 4))
def test_marks_that_are_none_are_refused(content: bytes, wanted: int) -> None:
    """A driver that was taken over says what it likes; it comes to marks, so many as were asked for, or an error."""
    try:
        marks = decode_marks(content, wanted)
    except FrameError:
        return

    assert wanted == len(marks)
    assert all(RIGHT <= grade <= NONE and 0.0 <= worth <= 1.0 and note.isascii() for grade, worth, note in marks)


async def test_an_answer_too_large_to_compare_is_the_submissions_fault(judge: Judge, tmp_path: Path) -> None:
    """A million words where one was asked for: wrong, not a failure of ours."""
    work = StdioWork(language="python", source="main.py", cases=(TestCase(id="1", input=b"", answer=b"1"),))
    made = await decision(judge, tmp_path / "a", {"main.py": "print('x ' * 400_000)\n"}, work)

    assert Outcome.WA is made.verdict


@pytest.mark.parametrize(
    ("wanted", "names", "expected"),
    [
        ("KeyError", ["KeyError", "LookupError", "Exception"], True),
        ("LookupError", ["KeyError", "LookupError", "Exception"], True),
        ("KeyError", ["Missing", "AttributeError", "KeyError", "LookupError", "Exception"], True),
        ("ParseError", ["ParseError", "ValueError", "Exception"], True),
        ("KeyError", ["All", "AttributeError", "KeyError", "LookupError", "ValueError", "Exception"], False),
        ("TypeError", ["KeyError", "LookupError", "Exception"], False),
        ("ValueError", ["print", "ValueError", "Exception"], True),
    ],
)
def test_an_exception_is_of_few_kinds(wanted: str, names: list[str], expected: bool) -> None:
    """One that is of every kind would be whatever is wanted."""
    assert expected == is_raised(wanted, names)
