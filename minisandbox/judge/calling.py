"""Calls of functions in a cell: the shim is laid down and started, requests go in, and replies come out, unread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from minisandbox.errors import UsageError
from minisandbox.judge import frames
from minisandbox.judge.assignment import INNER_ROOT
from minisandbox.judge.bench import outcome_of
from minisandbox.judge.frames import FRAME_MAX_BYTES, SIZE, FrameError, encode
from minisandbox.judge.idle import guarding
from minisandbox.judge.inbox import Inbox
from minisandbox.judge.spec import Outcome
from minisandbox.runtime.process import Process
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import Result

SHIM = "/shim.py"
_SOURCES = {"frames.py": Path(frames.__file__), "shim.py": Path(__file__).with_name("shim.py")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What came of calls."""

    replies: tuple[bytes, ...]
    """One for each request that was answered, in order; whether they are replies nobody looked.

    None at all of a process that said more than it was asked.
    """
    ended: Outcome
    """How the process did; AC is well."""
    result: Result


def tuple_of(*values: bytes) -> bytes:
    """Return the encoding of a tuple of values that are encoded already, and that nobody need read."""
    return b"t" + SIZE.pack(len(values)) + b"".join(values)


def request_of(module: str, function: str, arguments: bytes) -> bytes:
    """Return the request to call a function of a submission's module, with arguments that are encoded already.

    Raises UsageError where they are too many bytes for a frame.
    """
    content = tuple_of(encode(module), encode(INNER_ROOT), encode(function), arguments)
    if len(content) > FRAME_MAX_BYTES:
        raise UsageError(f"the arguments of a call of {function} are more than {FRAME_MAX_BYTES} bytes")
    return SIZE.pack(len(content)) + content


async def call_all(sandbox: Sandbox, requests: Sequence[bytes], idle_s: float) -> Called:
    """Make calls of what lies in a cell, one after the other, until they are answered or the process ends."""
    replies: list[bytes] = []
    async with (
        guarding(sandbox, idle_s) as guard,
        await _start(sandbox) as process,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_discard, process)
        inbox = Inbox(process)
        await _converse(process, inbox, requests, replies)
        await process.stdin.aclose()
        if len(replies) < len(requests):  # one that did not answer them all is not waited for
            await process.kill()
        nursery.start_soon(inbox.drain)
        result = await process.wait()
        await process.kill()  # what it left behind holds the pipe, which would have no end
        await inbox.drained.wait()
        nursery.cancel_scope.cancel()
    if inbox.is_over:  # more replies than calls: which of them is whose would depend on who was faster
        replies.clear()
    return Called(replies=tuple(replies), ended=outcome_of(result, guard), result=result)


async def _start(sandbox: Sandbox) -> Process:
    """Start the shim; in a sandbox of a template as a fork of one that is warm."""
    if sandbox.options.template is not None:
        return await sandbox.start_warm(call="shim:main", cwd=INNER_ROOT)
    for name, path in _SOURCES.items():
        await sandbox.write_file(f"/{name}", path.read_bytes())
    return await sandbox.start(["python3", "-s", "-B", SHIM], cwd=INNER_ROOT)


async def _converse(process: Process, inbox: Inbox, requests: Sequence[bytes], replies: list[bytes]) -> None:
    """Send requests. Returns early when the process ends, or says what is no frame."""
    for request in requests:
        try:
            await process.stdin.send_all(request)
            replies.append(await inbox.next_frame())
        except (EOFError, FrameError, trio.BrokenResourceError):
            return


async def _discard(process: Process) -> None:
    """Read what the submission says for people, so that it is not held up."""
    while await process.stderr.receive_some(FRAME_MAX_BYTES):
        pass
