"""A trainer's end of a judge that is a process of its own: it submits, and gets verdicts.

It knows nothing of a task but what of a submission belongs to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import trio

from minisandbox import errors
from minisandbox.errors import BrokenError, HostError, ProtocolError, SandboxError
from minisandbox.judge.assignment import Declared
from minisandbox.judge.connection import Connection
from minisandbox.judge.ingest import Feed
from minisandbox.judge.messages import (
    ANSWER_MAX_BYTES,
    VERSION,
    Answer,
    Chunk,
    Describe,
    Description,
    End,
    Given,
    Head,
    Hello,
    Refusal,
    Request,
    Submit,
    Welcome,
    decode_answer,
)

SOCKET = Path("/run/minisandbox-judge/socket")
ANSWER_S = 60.0
VERDICT_S = 3600.0
"""How long a verdict may take, the waiting for its turn included."""

_REFUSALS = {
    name: getattr(errors, name) for name in ("UsageError", "ProtocolError", "BusyError", "BrokenError", "DeadlineError")
}


class RemoteJudge:
    """A connection to a judge. Make it with `connect`; one task uses it at a time."""

    def __init__(self, connection: Connection, judge: str, uid: int) -> None:
        self._connection = connection
        self.judge, self.uid = judge, uid

    async def declared(self, task: str) -> Declared:
        """Return what of a submission for a task is taken in. Raises UsageError when there is no such task."""
        answer = await self._ask(Describe(task=task), ANSWER_S)
        if not isinstance(answer, Description):
            raise ProtocolError(f"the judge answered {type(answer).__name__} where a description was due")
        return answer.declared

    async def submit(self, task: str, make_feed: Callable[[Declared], Feed]) -> Given:
        """Have a submission judged and return the verdict; the feed comes of `seal.feed_sandbox` or `feed_directory`.

        Raises UsageError when there is no such task, BrokenError when the judge failed.
        Cancelled: the connection is good for nothing more.
        """
        feed = make_feed(await self.declared(task))
        await self._send(Submit(task=task))
        with contextlib.suppress(BrokenError):  # it may have answered already, and reads no more
            await feed(self._send_value)
            await self._send(End())
        answer = await self._receive(VERDICT_S)
        if not isinstance(answer, Given):
            raise ProtocolError(f"the judge answered {type(answer).__name__} where a verdict was due")
        return answer

    async def _send_value(self, value: object) -> None:
        match value:
            case bytes():
                await self._send(Chunk(content=value))
            case [str(verb), str(path)]:
                await self._send(Head(verb=verb, path=path))
            case _:
                raise ProtocolError("a submission is heads and bytes")

    async def _ask(self, request: Request, within_s: float) -> Answer:
        await self._send(request)
        return await self._receive(within_s)

    async def _send(self, request: Request) -> None:
        await self._connection.send(request, within_s=VERDICT_S)

    async def _receive(self, within_s: float) -> Answer:
        """Return an answer. Raises what a refusal names."""
        answer = decode_answer(await self._connection.receive(ANSWER_MAX_BYTES, within_s=within_s))
        if isinstance(answer, Refusal):
            kind: type[SandboxError] = _REFUSALS.get(answer.error, BrokenError)
            raise kind(answer.message)
        return answer


@contextlib.asynccontextmanager
async def connect(path: Path = SOCKET, *, uid: int | None = None) -> AsyncIterator[RemoteJudge]:
    """Connect to a judge for the block. With `uid`, it must be that user's process.

    Raises HostError when there is none, ProtocolError when it speaks another version.
    """
    try:
        stream = await trio.open_unix_socket(path)
    except (OSError, RuntimeError) as error:
        raise HostError(f"there is no judge at {path}: {error}; start one with `minisandbox judge serve`") from error
    connection = Connection(stream)
    try:
        peer = connection.peer
        if uid is not None and peer.uid != uid:
            raise HostError(f"the judge at {path} is a process of uid {peer.uid}, not of uid {uid}")
        remote = RemoteJudge(connection, "", peer.uid)
        welcome = await remote._ask(Hello(), ANSWER_S)
        if not isinstance(welcome, Welcome) or welcome.version != VERSION:
            raise ProtocolError(f"the judge at {path} speaks another version")
        remote.judge = welcome.judge
        yield remote
    finally:
        with trio.CancelScope(shield=True):
            await connection.aclose()
