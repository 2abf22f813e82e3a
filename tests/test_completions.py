"""What a model said becomes the files of a submission, whatever it said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.errors import UsageError
from minisandbox.integrations.completions import blocks_of, code_of, files_of, fits, submission_of, text_of
from minisandbox.judge.assignment import Declared
from minisandbox.tasks.task import File
from tests.tasks.samples import function_task, program_task

SAID = "First:\n```python\nx = 1\n```\nBetter:\n```python\nx = 2\n```\nDone."


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SAID, "x = 2\n"),
        ("x = 3\n", "x = 3\n"),
        ("```python\nx = 4", "x = 4"),
        ("````\n```\nx\n```\n````\n", "```\nx\n```\n"),
        ("  ```py\n  x = 5\n  ```\n", "  x = 5\n"),
        ("", ""),
    ],
)
def test_code_is_the_last_block_or_all(text: str, code: str) -> None:
    """A block that was not closed counts, and a longer fence holds a shorter one."""
    assert code == code_of(text)


def test_blocks_that_name_a_path_are_files() -> None:
    """Others are only said; of two with one path the last counts."""
    text = "```python src/a.py\n1\n```\n```python\n2\n```\n```b.txt\n3\n```\n```python src/a.py\n4\n```\n"

    assert {"src/a.py": "4\n", "b.txt": "3\n"} == files_of(text)


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("a", "a"),
        ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}], "b"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "image"}]}], "c"),
        ([{"role": "assistant", "content": None}], ""),
        ([], ""),
    ],
)
def test_messages_have_a_text(completion: object, text: str) -> None:
    """The last message counts, and one that only calls tools says nothing."""
    assert text == text_of(completion)  # type: ignore[arg-type]


def test_a_message_without_text_is_refused() -> None:
    """It is a mistake of the caller."""
    with pytest.raises(UsageError, match="no text"):
        text_of([{"role": "assistant", "content": 1}])


def test_the_kind_says_what_file_the_code_is() -> None:
    """A module for functions, the source for programs."""
    programs = submission_of(program_task({"a": (b"x", b"X")}), SAID)

    assert {"solution.py": File(content=b"x = 2\n")} == submission_of(function_task(), SAID)
    assert {"main.sh": File(content=b"x = 2\n")} == programs


@pytest.mark.parametrize(
    "paths",
    [
        ["/etc/passwd"],
        ["../a"],
        ["a/../b"],
        ["a//b"],
        ["."],
        ["a", "a/b"],
        ["a\nb"],
        ["x" * 256],
        ["a\udc80"],
        ["a/" * 99],
    ],
    ids=repr,
)
def test_names_that_no_submission_may_have_do_not_fit(paths: list[str]) -> None:
    """Each would fail where it is laid down."""
    assert not fits({path: File(content=b"") for path in paths}, Declared())
    assert fits({"a/b": File(content=b""), "a/c.py": File(content=b"")}, Declared())


def test_what_is_too_large_does_not_fit() -> None:
    """One file, all files, or too many."""
    small = Declared(max_files=2, max_file_bytes=10, max_total_bytes=15)

    assert not fits({"a": File(content=bytes(11))}, small)
    assert not fits({"a": File(content=bytes(9)), "b": File(content=bytes(9))}, small)
    assert not fits({name: File(content=b"") for name in "abc"}, small)


@given(st.text(alphabet="`\n a.x/\udc80"))
def test_anything_can_be_said(text: str) -> None:
    """Nothing raises, and each block was in the text."""
    submission_of(function_task(), text)

    assert all(block.body.strip() in text for block in blocks_of(text))
    assert isinstance(fits({path: File(content=b"") for path in files_of(text)}, Declared()), bool)
