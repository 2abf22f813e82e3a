"""Policies that are a program of their own: a process for each episode, and a line of JSON each way for each turn.

to it     {"type": "begin", ...}          once, what `Told` holds
          {"type": "observation", ...}    and then each observation
from it   {"action": {"type": "run", "command": "ls"}, "tokens": 12, "data": {}}
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import trio

from minisandbox.rollout.child import Child, spawned
from minisandbox.rollout.policy import STEP_MAX_BYTES, Player, Policy, PolicyFaultError, Told
from minisandbox.rollout.spec import Observation, Step
from minisandbox.rollout.wire import observation_fields, step_of, told_fields

SAID_BYTES = 400
"""How much of the end of its standard error is told when it fails."""

HEAR_S = 0.5
"""How long that is waited for."""

_CHUNK_BYTES = 1 << 16


class _Lines:
    """Talks to one process."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._buffer = bytearray()
        self._said = b""
        self._heard = trio.Event()

    async def say(self, value: dict[str, Any]) -> None:
        try:
            await self._child.stdin.send_all(msgspec.json.encode(value) + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise await self._gone() from None

    async def act(self, observation: Observation) -> Step:
        await self.say(observation_fields(observation))
        line = await self._line()
        try:
            return step_of(msgspec.json.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PolicyFaultError(f"the policy wrote a line that is no JSON: {line[:100]!r}") from error

    async def _line(self) -> bytes:
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > STEP_MAX_BYTES:
                raise PolicyFaultError(f"the policy wrote a line of more than {STEP_MAX_BYTES} bytes")
            chunk = await self._child.stdout.receive_some(_CHUNK_BYTES)
            if not chunk:
                raise await self._gone()
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def _gone(self) -> PolicyFaultError:
        with trio.move_on_after(HEAR_S):
            await self._heard.wait()
        said = self._said.decode(errors="backslashreplace").strip()
        return PolicyFaultError(f"the program of the policy ended before the episode{f': {said}' if said else ''}")

    async def listen(self) -> None:
        """Keep the end of what it writes to its standard error."""
        while chunk := await self._child.stderr.receive_some(_CHUNK_BYTES):
            self._said = (self._said + chunk)[-SAID_BYTES:]
        self._heard.set()


def command_player(name: str, argv: Sequence[str], environment: Mapping[str, str]) -> Player:
    """Return the policy that a program is. It runs on the host, with these variables and no others."""

    @contextlib.asynccontextmanager
    async def open_policy(told: Told) -> AsyncIterator[Policy]:
        async with spawned(argv, environment) as child, trio.open_nursery() as nursery:
            lines = _Lines(child)
            nursery.start_soon(lines.listen)
            await lines.say(told_fields(told))
            yield lines
            nursery.cancel_scope.cancel()

    return Player(name, open_policy)
