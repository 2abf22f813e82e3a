"""A program of the host's that a policy is: spawned in a session of its own, and killed with all of its group.

It is no sandbox: it runs as whoever runs this, and what it starts and moves to a session of its own is not found again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence

import trio

from minisandbox.errors import UsageError
from minisandbox.kernel.descriptors import open_pipe

GRACE_S = 1.0
"""How long it may take to end by itself once its input is closed."""


class Child:
    """A running program with three pipes."""

    def __init__(self, pid: int, stdin_fd: int, stdout_fd: int, stderr_fd: int) -> None:
        self.pid = pid
        self.pid_fd = os.pidfd_open(pid)
        self.stdin = trio.lowlevel.FdStream(stdin_fd)
        self.stdout = trio.lowlevel.FdStream(stdout_fd)
        self.stderr = trio.lowlevel.FdStream(stderr_fd)

    async def end(self) -> None:
        """Close its input, kill what is left of it soon after, and reap it. Cancelled: at once."""
        try:
            await self.stdin.aclose()
            with trio.move_on_after(GRACE_S):
                await trio.lowlevel.wait_readable(self.pid_fd)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # before it is reaped, or the number could be another's
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(self.pid_fd)
            os.waitid(os.P_PIDFD, self.pid_fd, os.WEXITED)
            os.close(self.pid_fd)
            for stream in (self.stdin, self.stdout, self.stderr):
                stream.close()


@contextlib.asynccontextmanager
async def spawned(argv: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[Child]:
    """Spawn a program for the block. Raises UsageError when there is none of that name."""
    with contextlib.ExitStack() as ours_on_failure, contextlib.ExitStack() as theirs:
        ends: list[int] = []
        actions = []
        for number in range(3):
            read_fd, write_fd = open_pipe()
            ours, their = (write_fd, read_fd) if number == 0 else (read_fd, write_fd)
            ours_on_failure.callback(os.close, ours)
            theirs.callback(os.close, their)
            ends.append(ours)
            actions.append((os.POSIX_SPAWN_DUP2, their, number))
        try:
            pid = os.posix_spawnp(
                argv[0],
                list(argv),
                dict(environment),
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
            )
        except OSError as error:
            raise UsageError(f"the policy {argv[0]} cannot be started: {error.strerror}") from error
        ours_on_failure.pop_all()
    child = Child(pid, *ends)
    try:
        yield child
    finally:
        await child.end()
