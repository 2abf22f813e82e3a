"""The judge as a process of its own: trainers submit over a socket, and get verdicts, and nothing else.

Theory of operation. The process runs as a user of its own, who alone may enter the directories of the judge's tasks and
of its key, blobs and ledgers. A trainer names a task and sends a submission; who it is the kernel says. The bytes of a
submission go, unread, to the ingest process. What a client does wrong ends its connection and is told to it; what we
did wrong is told without its reason, which is for the judge's own log: a message may quote a hidden test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import trio

from minisandbox.errors import (
    BrokenError,
    BusyError,
    DeadlineError,
    ProtocolError,
    SandboxError,
    TaskError,
    UsageError,
    leaves_of,
)
from minisandbox.judge.assignment import Assignment, Declared
from minisandbox.judge.build import judge_version
from minisandbox.judge.connection import Connection
from minisandbox.judge.ingest import Feed, Send
from minisandbox.judge.integrity import SHARED_USER
from minisandbox.judge.load import load_task
from minisandbox.judge.messages import (
    CHUNK_MAX_BYTES,
    REQUEST_MAX_BYTES,
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
    decode_request,
)
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.private import check_private

MOST_CONNECTIONS = 64
SILENCE_S = 60.0
"""How long a client may say nothing in the middle of something."""
IDLE_S = 3600.0
"""How long it may say nothing between submissions."""
_FILE_BYTES = 8192
"""What a file of a submission may add to a stream beside its content."""


@dataclass(slots=True, kw_only=True)
class Server:
    """Serves a judge. Its caller opened the judge, the listener and the directory of tasks, and closes them."""

    judge: Judge
    tasks: Path
    allowed: frozenset[int]
    """The users who may ask."""
    note: Callable[[str], object]
    """Takes a line for the judge's own log."""
    load: Callable[[Path], Assignment] = load_task
    """Reads a task from its directory, with its certificate where there is a valid one."""
    room: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(2))
    """How many submissions are judged at once."""
    open_connections: int = 0

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve until cancelled. Raises StateError when others may enter the directory of tasks."""
        check_private(self.tasks, "the directory of tasks")
        judge_version()  # read while nobody waits
        await trio.serve_listeners(self._serve_one, [listener])

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        connection = Connection(stream)
        self.open_connections += 1
        try:
            await self._converse(connection)
        except* Exception as group:  # noqa: BLE001 - the end of one connection, whatever it is, ends no other
            for error in leaves_of(group):
                self.note(f"a connection: {type(error).__name__}: {error}")
        finally:
            self.open_connections -= 1
            with trio.CancelScope(shield=True):
                await connection.aclose()

    async def _converse(self, connection: Connection) -> None:
        try:
            await self._admit(connection)
            while (request := await _next(connection, IDLE_S)) is not None:
                await self._answer(request, connection)
        except (UsageError, ProtocolError, BusyError, DeadlineError) as error:
            await _say(connection, Refusal(error=type(error).__name__, message=str(error)))
            raise

    async def _admit(self, connection: Connection) -> None:
        peer = connection.peer
        if peer.uid not in self.allowed:
            raise UsageError(f"uid {peer.uid} may not ask this judge; have it started with --allow {peer.uid}")
        if self.open_connections > MOST_CONNECTIONS:
            raise BusyError(f"this judge has {MOST_CONNECTIONS} connections already; close one, or try again later")
        hello = await _next(connection, SILENCE_S)
        if not isinstance(hello, Hello) or hello.version != VERSION:
            raise ProtocolError(f"this judge speaks version {VERSION}, and wants a hello first")
        await _say(connection, Welcome(version=VERSION, judge=judge_version()))

    async def _answer(self, request: Request, connection: Connection) -> None:
        if not isinstance(request, Describe | Submit):
            raise ProtocolError(f"{type(request).__name__} where a question was due")
        try:
            with self._telling(request.task):
                assignment = await trio.to_thread.run_sync(self.load, self._find(request.task))
                if isinstance(request, Describe):
                    answer: Answer = Description(task=assignment.digest, declared=assignment.declared)
                else:
                    answer = await self._judge(assignment, connection)
        except _RefusedError as error:
            answer = Refusal(error=error.name, message=str(error))
            if isinstance(request, Submit):  # what is still on its way is not read
                await _say(connection, answer)
                raise BrokenError(str(error)) from error
        await _say(connection, answer)

    def _find(self, name: str) -> Path:
        """Return the directory of a task, whose name was checked."""
        place = self.tasks / name
        if not place.is_dir():
            raise UsageError(f"this judge has no task {name!r}")
        return place

    @contextlib.contextmanager
    def _telling(self, task: str) -> Iterator[None]:
        """Note our failures in the log, and let clients know no more than that there was one."""
        failures: list[SandboxError] = []
        try:
            yield
        except* SandboxError as group:
            failures = leaves_of(group)
        if not failures:
            return
        for error in failures:
            if isinstance(error, _ClientError):
                raise error.error
            self.note(f"task {task}: {type(error).__name__}: {error}")
        first = failures[0]
        if isinstance(first, UsageError):
            raise _RefusedError("UsageError", f"this judge has no task {task!r} that can be judged")
        if isinstance(first, TaskError):
            raise _RefusedError("UsageError", f"the task {task!r} is wrong: the judge's log says how")
        raise _RefusedError("BrokenError", "the judge failed, and decided nothing: its log says why")

    async def _judge(self, assignment: Assignment, connection: Connection) -> Given:
        upload = _Upload(connection, assignment.declared)
        async with self.room:
            manifest = await self.judge.take_in(assignment.declared, upload.feed())
            await upload.skip()
            caps = self.judge.caps
            if connection.peer.uid == os.geteuid():
                caps = (*caps, SHARED_USER)
            judged = await dataclasses.replace(self.judge, caps=caps).judge(assignment, manifest)
        return Given(episode=judged.episode, verdict=judged.verdict)


class _RefusedError(Exception):
    """Nothing was decided. `name` is what the client raises."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)


class _ClientError(SandboxError):
    """The client did something wrong, or is gone; never the fault of a submission."""

    def __init__(self, error: SandboxError) -> None:
        self.error = error
        super().__init__(str(error))


class _Upload:
    """A submission that comes in messages, no more of it than its task allows."""

    def __init__(self, connection: Connection, declared: Declared) -> None:
        self._connection = connection
        self._left = declared.max_total_bytes + _FILE_BYTES * declared.max_files + CHUNK_MAX_BYTES
        self._ended = False

    def feed(self) -> Feed:
        """Return what sends it to the ingest process."""

        async def feed(send: Send) -> None:
            while (message := await self._next()) is not None:
                await send(message.content if isinstance(message, Chunk) else [message.verb, message.path])

        return feed

    async def skip(self) -> None:
        """Take what the ingest process did not want, so that the client can hear the verdict."""
        while await self._next() is not None:
            pass

    async def _next(self) -> Head | Chunk | None:
        if self._ended or self._left < 0:
            return None
        try:
            message = await _next(self._connection, SILENCE_S)
            if message is None:
                raise BrokenError("the client is gone in the middle of a submission")
            if not isinstance(message, Head | Chunk | End):
                raise ProtocolError(f"{type(message).__name__} in the middle of a submission")
        except SandboxError as error:
            self._ended = True
            raise _ClientError(error) from error
        if isinstance(message, End):
            self._ended = True
            return None
        self._left -= len(message.content) if isinstance(message, Chunk) else len(message.path) + 1
        return message


async def _next(connection: Connection, within_s: float) -> Request | None:
    """Return the next request, None when the client has closed."""
    try:
        content = await connection.receive(REQUEST_MAX_BYTES, within_s=within_s)
    except BrokenError:
        return None
    return decode_request(content)


async def _say(connection: Connection, answer: Answer) -> None:
    await connection.send(answer, within_s=SILENCE_S)
