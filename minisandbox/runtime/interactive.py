"""What users call to talk to commands while they run; `Sandbox` inherits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, cast

from minisandbox.runtime.process import Process, Terminal
from minisandbox.runtime.resolve import Wishes, resolve
from minisandbox.runtime.session import Session, open_session
from minisandbox.spec import Limits

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox


class Interactive:
    """Live processes, terminals and shells."""

    __slots__ = ()

    async def start(
        self,
        command: Sequence[str] | str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        user: str | int | None = None,
        limits: Limits | None = None,
    ) -> Process:
        """Start a command and return it with live streams; use it as an async context manager."""
        sandbox = cast("Sandbox", self)
        return await Process.open(sandbox, await resolve(sandbox, command, Wishes(env, cwd, user, limits)))

    async def open_terminal(
        self,
        command: Sequence[str] | str,
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        user: str | int | None = None,
        limits: Limits | None = None,
    ) -> Terminal:
        """Start a command on a terminal; use it as an async context manager.

        The sandbox must have been opened with `terminal=True`.
        """
        sandbox = cast("Sandbox", self)
        spec = await resolve(sandbox, command, Wishes(env, cwd, user, limits))
        return await Terminal.open(sandbox, spec, columns, rows)

    def open_session(
        self,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        user: str | int | None = None,
        limits: Limits | None = None,
    ) -> AbstractAsyncContextManager[Session]:
        """Open a shell for the block that keeps its state between commands; the sandbox must have bash."""
        return open_session(cast("Sandbox", self), Wishes(env, cwd, user, limits))
