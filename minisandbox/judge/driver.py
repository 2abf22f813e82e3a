"""The judge's end of a driver: questions go in, marks come out. What a submission answered is not looked at here.

What is byte for byte what was expected, but for a line end, needs no reading and so no driver; everything else does.
A driver serves one judgement. It is started when it is first asked, and once more when it is gone; what then ends it
again is what it was asked, and so the submission's fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import trio

from minisandbox.judge.checkers import Checker, name_of, options_of
from minisandbox.judge.driver_program import MARK, NONE, NOTE_MAX, RIGHT, SIZE, Mark, decode_marks
from minisandbox.judge.frames import RETURNED, FrameError, Value, encode
from minisandbox.judge.inbox import Inbox
from minisandbox.judge.warm import Warm, open_program
from minisandbox.runtime.process import Process
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.spec import Limits

LIMITS = Limits(cpu_time_s=120.0, memory_bytes=1 << 30, processes=4, disk_bytes=1 << 20, disk_inodes=64, open_files=16)
DEADLINE_S = 600.0
"""How long a question may take; what computes for longer has used up its CPU time before."""

_NO_MARK: Mark = (NONE, 0.0, "")


class Driver:
    """Asks one process, one question at a time. `open_driver` makes it and closes it."""

    def __init__(self, supervisor: Supervisor, warm: Warm | None) -> None:
        self._supervisor, self._warm = supervisor, warm
        self._asking = trio.Lock()
        self._process: Process | None = None
        self._stack = contextlib.AsyncExitStack()

    async def accepts(self, checker: Checker, output: bytes, answer: bytes, *, http: bool = False) -> bool:
        """Return whether an output is the answer; with `http`, whether the body of a reply is."""
        if output.removesuffix(b"\n") == answer.removesuffix(b"\n") and not http:  # which every checker takes
            return True
        question = ["output", name_of(checker), dict(options_of(checker)), http, output, answer]
        return (await self.ask(question, 1))[0][0] == RIGHT

    async def replies(
        self, tolerance: float | None, wanted: Sequence[tuple[bytes, str | None]], replies: Sequence[bytes]
    ) -> Sequence[Mark]:
        """Return a mark for the reply to each call, of which some may be missing.

        `wanted` has the value that each must return, encoded, and the name of what it must raise instead.
        """
        if list(replies) == [RETURNED + value if raises is None else None for value, raises in wanted]:
            return [(RIGHT, 0.0, "")] * len(wanted)  # a value has one encoding
        return await self.ask(["replies", tolerance, list(wanted), list(replies)], len(wanted))

    async def ask(self, question: Value, wanted: int) -> Sequence[Mark]:
        """Return so many marks; all say that there is no answer when the question ends its driver twice.

        Raises SandboxError when we failed. Cancelled: the driver is gone when it is closed.
        """
        content = encode(question)
        async with self._asking:
            for _ in range(2):
                process = self._process or await self._start()
                with (
                    trio.move_on_after(DEADLINE_S),
                    contextlib.suppress(EOFError, FrameError, trio.BrokenResourceError),
                ):
                    await process.stdin.send_all(SIZE.pack(len(content)) + content)
                    return await _marks(process, wanted)
                await process.kill()
                await process.wait()  # raises when it is none of the submission's doing
                await self.aclose()
        return [_NO_MARK] * wanted

    async def _start(self) -> Process:
        opening = open_program("driver_program", LIMITS, self._supervisor, self._warm)
        self._process = await self._stack.enter_async_context(opening)
        return self._process

    async def aclose(self) -> None:
        """End the process, if there is one."""
        self._process = None
        stack, self._stack = self._stack, contextlib.AsyncExitStack()
        await stack.aclose()


async def _marks(process: Process, wanted: int) -> list[Mark]:
    """Read all marks. Raises EOFError or FrameError when there are none."""
    inbox = Inbox(process)
    (size,) = SIZE.unpack(await inbox.take(SIZE.size))
    if size > wanted * (MARK.size + NOTE_MAX):
        raise FrameError("marks that are too long")
    return decode_marks(await inbox.take(size), wanted)


@contextlib.asynccontextmanager
async def open_driver(supervisor: Supervisor, warm: Warm | None = None) -> AsyncIterator[Driver]:
    """Open a driver for the block."""
    driver = Driver(supervisor, warm)
    try:
        yield driver
    finally:
        with trio.CancelScope(shield=True):
            await driver.aclose()
