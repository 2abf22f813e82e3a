"""The wire: both sides say the same, junk is refused, what goes in comes out."""

from __future__ import annotations

import fcntl
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.errors import ProtocolError, UsageError
from minisandbox.kernel import protocol
from minisandbox.kernel.protocol import Record, RecordKind, Request, Stage, decode_record, encode_record, sealed_memfd
from minisandbox.launcher import binary_path

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(
    Record,
    kind=st.integers(0, 2**16 - 1),
    stage=st.integers(0, 2**16 - 1),
    id=st.integers(0, 2**32 - 1),
    error=I32,
    item=I32,
    value=I64,
    time_ns=I64,
)
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def printed_protocol() -> list[list[str]]:
    """What the launcher believes, line by line."""
    printed = subprocess.run([binary_path(), "--print-protocol"], capture_output=True, text=True, check=True)
    return [line.split() for line in printed.stdout.splitlines()]


def test_both_sides_have_the_same_records_and_stages() -> None:
    """Numbers of records and stages are equal on both sides of the wire."""
    lines = printed_protocol()
    expected = [["record", str(kind.value), kind.name] for kind in RecordKind]
    expected += [["stage", str(stage.value), stage.name] for stage in Stage]
    actual = [line for line in lines if line[0] in ("record", "stage")]

    assert expected == actual


def test_both_sides_have_the_same_constants() -> None:
    """Sizes and bounds are equal on both sides of the wire."""
    constants = {line[0]: int(line[1]) for line in printed_protocol() if len(line) == 2}
    names = {"version": "VERSION"}
    expected = {name: getattr(protocol, names.get(name, name.upper())) for name in constants}

    assert expected == constants
    assert len(constants) == 11


def test_every_option_that_takes_a_descriptor_is_marked() -> None:
    """The printed options say which take a value and which a descriptor."""
    options = {(verb, name): (value, fd) for _, verb, name, value, fd in (x for x in printed_protocol() if len(x) == 5)}

    assert options["start", "bind"] == ("value", "fd")
    assert options["run", "stdio"] == ("-", "fd")
    assert options["start", "trace"] == ("-", "-")
    assert options["listen", "port"] == ("value", "-")
    assert options["run", "cwd"] == ("value", "-")


@given(RECORDS)
def test_a_record_survives_the_wire(record: Record) -> None:
    """Decoding what was encoded gives the same record."""
    datagram = encode_record(record)

    assert record == decode_record(datagram)
    assert len(datagram) == protocol.RECORD_BYTES


@given(st.binary(max_size=64).filter(lambda data: len(data) != protocol.RECORD_BYTES))
def test_a_datagram_of_another_size_is_refused(datagram: bytes) -> None:
    """What has not exactly 32 bytes is no record."""
    with pytest.raises(ProtocolError):
        decode_record(datagram)


@given(st.lists(WORDS, max_size=8))
def test_words_survive_the_wire(argv: list[str]) -> None:
    """Splitting the bytes of a request at NUL gives its words."""
    request = Request("run").option("id", 7).flag("trace").command(argv)
    expected = ["run", "--id=7", "--trace", "--", *argv]

    assert expected == [os.fsdecode(word) for word in request.encode().split(b"\0")[:-1]]


@given(st.lists(WORDS, min_size=1, max_size=4), st.integers(0, 3))
def test_a_nul_in_a_word_is_refused(argv: list[str], position: int) -> None:
    """No word can be split in two by a NUL in it."""
    position %= len(argv)
    argv[position] += "\0--uid=0"

    with pytest.raises(UsageError, match="NUL"):
        Request("run").command(argv).encode()


def test_undecodable_bytes_of_a_name_pass() -> None:
    """Bytes that are not UTF-8 come as surrogates in Python, and as themselves on the wire."""
    assert b"\xff\xfe" in Request("run").command([os.fsdecode(b"\xff\xfe")]).encode()


def test_a_lone_surrogate_is_refused() -> None:
    """Text that no encoding has is an error of the caller's, not of ours."""
    with pytest.raises(UsageError, match="encoded"):
        Request("run").command(["\ud800"]).encode()


def test_a_request_too_large_for_any_command_is_refused() -> None:
    """The bound of the memory file is checked on our side, with advice."""
    with pytest.raises(UsageError, match="stdin"):
        Request("run").command(["x" * (protocol.REQUEST_MEMFD_MAX + 1)]).encode()


def test_a_sealed_memfd_cannot_be_changed() -> None:
    """Whoever gets it can read it and nothing else."""
    fd = sealed_memfd("test", b"content")
    try:
        assert os.pread(fd, 100, 0) == b"content"
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 1)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0)
    finally:
        os.close(fd)
