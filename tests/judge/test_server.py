"""The judge behind a socket: what it answers, and what whoever talks nonsense gets."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio

from minisandbox import SandboxError
from minisandbox.errors import BrokenError, HostError, ProtocolError, StateError, UsageError
from minisandbox.judge.client import RemoteJudge, connect
from minisandbox.judge.connection import Connection
from minisandbox.judge.messages import (
    ANSWER_MAX_BYTES,
    REQUEST_MAX_BYTES,
    Chunk,
    Describe,
    End,
    Head,
    Hello,
    Refusal,
    Request,
    Submit,
    decode_answer,
    decode_request,
    encode_message,
)
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_directory
from minisandbox.judge.server import Server
from minisandbox.judge.spec import Outcome
from tests.judge.submissions import DEADLINE_S, write_files
from tests.judge.test_cli_judge import STDIO, TEST

RIGHT = {"main.py": "print(2 * int(input()))"}
SECRET = "the hidden checker says 4711"


@pytest.fixture
async def listening(judge: Judge, tmp_path: Path) -> AsyncIterator[Path]:
    """The socket of a judge in this process, with a good task and a wrong one."""
    shelf = tmp_path / "tasks"
    shelf.mkdir(mode=0o700)
    write_files(shelf / "sum", {"judge.toml": STDIO, **TEST})
    write_files(shelf / "wrong", {"judge.toml": STDIO + f"# {SECRET}\nx = 1\n"})
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        bound.listen()
        server = Server(judge=judge, tasks=shelf, allowed=frozenset({os.geteuid()}), note=print)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, trio.SocketListener(trio.socket.from_stdlib_socket(bound)))
            with trio.fail_after(DEADLINE_S):
                yield path
            nursery.cancel_scope.cancel()


async def verdict(remote: RemoteJudge, folder: Path, files: dict[str, str], task: str = "sum") -> Outcome:
    """Submit these files."""
    given = await remote.submit(task, partial(feed_directory, write_files(folder, files)))
    return given.verdict.decision.verdict


async def test_submissions_get_verdicts_one_after_the_other(listening: Path, tmp_path: Path) -> None:
    """Over one connection, a rejected one among them; and a task that is not there is no verdict."""
    async with connect(listening, uid=os.geteuid()) as remote:
        assert Outcome.AC is await verdict(remote, tmp_path / "a", RIGHT)
        assert Outcome.WA is await verdict(remote, tmp_path / "b", {"main.py": "print(5)"})
        many = {f"{number}": "" for number in range(20_001)}
        assert Outcome.REJ is await verdict(remote, tmp_path / "c", many)
        with pytest.raises(UsageError, match="no task"):
            await verdict(remote, tmp_path / "d", RIGHT, "other")
        assert Outcome.AC is await verdict(remote, tmp_path / "e", RIGHT)


async def test_what_is_wrong_with_a_task_is_for_the_judges_log(
    listening: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client learns that, and the log says how."""
    async with connect(listening) as remote:
        with pytest.raises(UsageError, match="is wrong") as caught:
            await remote.declared("wrong")

    assert "judge.toml" not in str(caught.value)
    assert "judge.toml" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["..", "../sum", "/etc", "sum/../sum", "", ".hidden", "a" * 200, "sum\0", "a/b/c/d/e"])
async def test_no_name_leads_out_of_the_directory_of_tasks(listening: Path, name: str) -> None:
    """Such a name is none, for the client and for the judge that hears it."""
    content = encode_message(Describe(task="sum"))[4:].replace(b"\xa3sum", b"\xd9" + bytes([len(name)]) + name.encode())

    with pytest.raises(UsageError, match="no name of a task"):
        Describe(task=name)
    with pytest.raises(ProtocolError):
        decode_request(content)


def framed(content: bytes) -> bytes:
    """Return bytes as a frame."""
    return struct.pack(">I", len(content)) + content


NONSENSE = {
    "a frame of no bytes": struct.pack(">I", 0),
    "a frame that is too large": struct.pack(">I", REQUEST_MAX_BYTES + 1),
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "no message": struct.pack(">I", 3) + b"\xff\xff\xff",
    "nesting": struct.pack(">I", 4000) + b"\x91" * 4000,
    "another version": encode_message(Hello(version=2)),
    "no hello": encode_message(Describe(task="sum")),
    "a chunk of nothing": encode_message(Hello()) + encode_message(Chunk(content=b"x")),
    "a second hello": encode_message(Hello()) * 2,
    "a question within": encode_message(Hello()) + encode_message(Submit(task="sum")) + encode_message(Hello()),
    "a chunk that is too large": encode_message(Hello())
    + encode_message(Submit(task="sum"))
    + framed(b"\x82\xa4type\xa5chunk\xa7content\xc6" + struct.pack(">I", 1 << 19) + b"x" * (1 << 19)),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_ends_its_own_connection_alone(listening: Path, tmp_path: Path, name: str) -> None:
    """With a word about what it was; a submission on another connection is judged."""
    stream = await trio.open_unix_socket(listening)
    refusals = []
    async with stream, connect(listening) as remote:
        await stream.send_all(NONSENSE[name])
        connection = Connection(stream)
        with pytest.raises(BrokenError):
            while True:
                answer = decode_answer(await connection.receive(ANSWER_MAX_BYTES, within_s=30))
                refusals += [answer.error] if isinstance(answer, Refusal) else []

        assert ["ProtocolError"] == refusals
        assert Outcome.AC is await verdict(remote, tmp_path / "a", RIGHT)


STREAMS: dict[str, list[Request]] = {
    "nothing at all": [],
    "a chunk without a head": [Chunk(content=b"x")],
    "a tree that is none": [Head(verb="tree", path=""), Chunk(content=b"x" * 5000), Chunk(content=b"")],
    "a tree without an end": [Head(verb="tree", path=""), Chunk(content=b"")],
    "a file with a way out": [Head(verb="file", path="../../x"), Chunk(content=b"x"), Chunk(content=b"")],
    "a head within a tree": [Head(verb="tree", path=""), Head(verb="file", path="x")],
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_forged_stream_gets_a_verdict_without_a_score(listening: Path, name: str) -> None:
    """Never a hang, never an internal error: a stream that is none is the fault of whoever sent it."""
    async with connect(listening) as remote:
        for message in [Submit(task="sum"), *STREAMS[name], End()]:
            await remote._send(message)
        given = await remote._receive(60)

    decision = given.verdict.decision  # type: ignore[union-attr]
    assert (decision.verdict, decision.score) in {(Outcome.REJ, 0.0), (Outcome.RTE, 0.0)}


async def test_a_client_that_leaves_takes_nothing_with_it(listening: Path, tmp_path: Path) -> None:
    """In the middle of a submission; the next one is judged."""
    async with connect(listening) as remote:
        await remote._send(Submit(task="sum"))
        await remote._send(Head(verb="tree", path=""))
    async with connect(listening) as remote:
        assert Outcome.AC is await verdict(remote, tmp_path / "a", RIGHT)


async def test_who_may_ask_is_the_kernels_word(judge: Judge, tmp_path: Path, listening: Path) -> None:
    """A user who was not allowed is refused, and a judge of another user than was wanted is none."""
    with pytest.raises(HostError, match="not of uid 4711"):
        async with connect(listening, uid=4711):
            pass
    ours, theirs = trio.socket.socketpair()
    server = Server(judge=judge, tasks=tmp_path / "tasks", allowed=frozenset({4711}), note=print)
    async with trio.SocketStream(ours) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(server._serve_one, trio.SocketStream(theirs))
        answer = decode_answer(await Connection(stream).receive(ANSWER_MAX_BYTES, within_s=30))

    assert isinstance(answer, Refusal)
    assert "may not ask" in answer.message


async def test_a_directory_of_tasks_that_others_may_enter_is_refused(judge: Judge, tmp_path: Path) -> None:
    """Before anybody is served."""
    (tmp_path / "open").mkdir(mode=0o755)
    server = Server(judge=judge, tasks=tmp_path / "open", allowed=frozenset(), note=print)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        bound.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        with pytest.raises(StateError, match="alone"):
            await server.serve(listener)


async def test_no_judge_is_told_as_that(tmp_path: Path) -> None:
    """With how to start one."""
    with pytest.raises(HostError, match="judge serve"):
        async with connect(tmp_path / "socket"):
            pass


def test_messages_that_are_cut_or_changed_are_no_messages() -> None:
    """Each cut of each message is a ProtocolError, and nothing else is raised for a changed byte."""
    for message in (Hello(), Submit(task="sum"), Head(verb="tree", path="a"), Chunk(content=b"abc"), End()):
        content = encode_message(message)[4:]
        for at in range(len(content)):
            with pytest.raises(ProtocolError):
                decode_request(content[:at])
            changed = bytearray(content)
            for value in (0, 0x7F, 0xC1, 0xDF, 0xFF):
                changed[at] = value
                try:
                    decode_request(bytes(changed))
                except SandboxError as error:
                    assert isinstance(error, ProtocolError)
