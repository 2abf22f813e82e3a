"""A ledger that was touched is found, and where; one whose writer died is opened again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minisandbox.errors import LedgerError, StateError
from minisandbox.judge.ledger import HEAD_NAME, LEDGER_NAME, Ledger, read_ledger
from minisandbox.judge.signing import Signer, load_key, load_or_make_key

ROOT = Path(__file__).parents[2]
SIGNER = Signer(bytes(range(32)))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a ledger of five entries."""
    path = tmp_path / "episode"
    path.mkdir()
    with Ledger.create(path, SIGNER) as ledger:
        for number in range(5):
            ledger.append("note", {"number": number, "text": "é\n\0", "float": 0.1})
    return path


def lines(directory: Path) -> list[bytes]:
    """Return the lines of a ledger."""
    return (directory / LEDGER_NAME).read_bytes().splitlines(keepends=True)


def rewrite(directory: Path, new: list[bytes]) -> None:
    """Write other lines."""
    (directory / LEDGER_NAME).write_bytes(b"".join(new))


def broken_at(directory: Path) -> int:
    """Return the line that does not hold."""
    with pytest.raises(LedgerError) as caught:
        read_ledger(directory, SIGNER.verifier)
    return caught.value.line


def test_what_was_written_is_read(directory: Path) -> None:
    """In order, with its bodies."""
    entries = read_ledger(directory, SIGNER.verifier)

    assert [0, 1, 2, 3, 4] == [entry.body["number"] for entry in entries]
    assert "é\n\0" == entries[0].body["text"]


@pytest.mark.parametrize("at", range(5))
def test_an_edited_entry_is_located(directory: Path, at: int) -> None:
    """One digit of one entry."""
    old = lines(directory)
    old[at] = old[at].replace(b'"number":%d' % at, b'"number":7')
    rewrite(directory, old)

    assert at + 1 == broken_at(directory)


@pytest.mark.parametrize("at", range(5))
def test_an_entry_that_was_cut_out_is_located(directory: Path, at: int) -> None:
    """Also the last one, by the head."""
    old = lines(directory)
    del old[at]
    rewrite(directory, old)

    assert min(at + 1, 4) == broken_at(directory)


@pytest.mark.parametrize("at", range(4))
def test_reordered_entries_are_located(directory: Path, at: int) -> None:
    """Each whole and signed, in another order."""
    old = lines(directory)
    old[at], old[at + 1] = old[at + 1], old[at]
    rewrite(directory, old)

    assert at + 1 == broken_at(directory)


def test_a_repeated_entry_is_located(directory: Path) -> None:
    """The last one once more."""
    old = lines(directory)
    rewrite(directory, [*old, old[-1]])

    assert 6 == broken_at(directory)


def test_another_key_signs_nothing(directory: Path, tmp_path: Path) -> None:
    """A ledger that somebody else made whole is not the judge's."""
    other = tmp_path / "other"
    other.mkdir()
    with Ledger.create(other, Signer(bytes(32))) as ledger:
        ledger.append("note", {})
    shutil.copy(other / LEDGER_NAME, directory)

    assert 1 == broken_at(directory)


def test_a_head_that_was_put_back_is_noticed(directory: Path) -> None:
    """An older head with an older ledger is all that can be put back, and that needs both."""
    head = (directory / HEAD_NAME).read_bytes()
    with Ledger.open(directory, SIGNER) as ledger:
        for _ in range(3):
            ledger.append("note", {})
    (directory / HEAD_NAME).write_bytes(head)

    assert broken_at(directory)
    (directory / HEAD_NAME).unlink()
    assert broken_at(directory)
    (directory / HEAD_NAME).write_bytes(b"{}")
    assert broken_at(directory)


def test_a_writer_that_died_at_any_byte_left_all_before(tmp_path: Path) -> None:
    """Whatever of the last entry reached the file, the ledger opens with the others, and goes on."""
    path = tmp_path / "episode"
    path.mkdir()
    with Ledger.create(path, SIGNER) as ledger:
        ledger.append("note", {"number": 0})
        ledger.append("note", {"number": 1})
        head = (path / HEAD_NAME).read_bytes()
        ledger.append("note", {"number": 2})
    content = (path / LEDGER_NAME).read_bytes()
    before = content.rindex(b"\n", 0, len(content) - 1) + 1
    for size in range(before, len(content) + 1):
        (path / LEDGER_NAME).write_bytes(content[:size])
        (path / HEAD_NAME).write_bytes(head)
        with Ledger.open(path, SIGNER) as ledger:
            ledger.append("note", {"number": 3})
        kept = [entry.body["number"] for entry in read_ledger(path, SIGNER.verifier)]

        assert kept == ([0, 1, 2, 3] if size == len(content) else [0, 1, 3])


def test_a_writer_that_dies_again_and_again_leaves_a_ledger(tmp_path: Path) -> None:
    """Each time after an entry and in the middle of the new head, so that the one of before is there."""
    Ledger.create(tmp_path, SIGNER).close()
    head = tmp_path / HEAD_NAME
    for number in range(5):
        with Ledger.open(tmp_path, SIGNER) as ledger:
            before = head.read_bytes() if head.exists() else None
            ledger.append("note", {"number": number})
        (tmp_path / f"{HEAD_NAME}.new").write_bytes(head.read_bytes()[:50])
        head.unlink()
        if before is not None:
            head.write_bytes(before)

        assert list(range(number + 1)) == [entry.body["number"] for entry in read_ledger(tmp_path, SIGNER.verifier)]


WRITER = """
import sys
from pathlib import Path
from minisandbox.judge.ledger import Ledger
from minisandbox.judge.signing import Signer
with Ledger.open(Path(sys.argv[1]), Signer(bytes(range(32)))) as ledger:
    print("open", flush=True)
    number = int(sys.argv[2])
    while True:
        ledger.append("note", {"number": number, "text": "x" * 4000}, durable=number % 7 == 0)
        number += 1
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_all_but_its_last_entry(tmp_path: Path) -> None:
    """Wherever it was; and the next one goes on after it."""
    Ledger.create(tmp_path, SIGNER).close()
    count = 0
    for delay_s in (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05):
        words = [sys.executable, "-c", WRITER, str(tmp_path), str(count)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)}) as writer:
            assert writer.stdout is not None
            assert b"open\n" == writer.stdout.readline()
            time.sleep(delay_s)  # what it is in the middle of is for the scheduler to say
            writer.kill()
        numbers = [entry.body["number"] for entry in read_ledger(tmp_path, SIGNER.verifier)]

        assert list(range(len(numbers))) == numbers
        assert len(numbers) >= count
        count = len(numbers)
    assert count


def test_the_first_entry_may_be_torn_too(tmp_path: Path) -> None:
    """A ledger cut anywhere in its only entry is an empty one."""
    with Ledger.create(tmp_path, SIGNER) as ledger:
        ledger.append("note", {})
    content = (tmp_path / LEDGER_NAME).read_bytes()
    (tmp_path / HEAD_NAME).unlink()
    for size in range(len(content)):
        (tmp_path / LEDGER_NAME).write_bytes(content[:size])
        (tmp_path / HEAD_NAME).unlink(missing_ok=True)
        with Ledger.open(tmp_path, SIGNER) as ledger:
            ledger.append("note", {"again": True})

        assert [{"again": True}] == [entry.body for entry in read_ledger(tmp_path, SIGNER.verifier)]


def test_a_ledger_is_begun_once(directory: Path) -> None:
    """Nothing is written over."""
    with pytest.raises(StateError, match="cannot begin the ledger"):
        Ledger.create(directory, SIGNER)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Also one of another length, a link, or none at all."""
    path = tmp_path / "key"
    first = load_or_make_key(path)

    assert 0o600 == path.stat().st_mode & 0o777
    assert first.verifier.public == load_or_make_key(path).verifier.public
    path.chmod(0o640)
    with pytest.raises(StateError, match="alone can read"):
        load_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(StateError, match="32 bytes"):
        load_key(path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(StateError, match="cannot read"):
        load_key(tmp_path / "link")


def test_seeds_are_the_keys_own() -> None:
    """The same for the same parts, another for others or for another key."""
    assert SIGNER.seed("a", "b") == SIGNER.seed("a", "b")
    assert 4 == len({SIGNER.seed("a", "b"), SIGNER.seed("ab"), SIGNER.seed("b", "a"), Signer(bytes(32)).seed("a", "b")})
