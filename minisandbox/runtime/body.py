"""The body of a sandbox, what runs its commands, and how it is left for another one; `Sandbox` inherits it.

A body is all that belongs to one init: its number, slot, control socket, network, memory counters and commands. While a
sandbox moves it has none: who wants to use it waits in `settled`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import trio

from minisandbox.errors import BrokenError, BusyError, ClosedError, HostError
from minisandbox.kernel.launcher import step_deadline
from minisandbox.kernel.protocol import Record, RecordKind, Request
from minisandbox.runtime.slots import never

if TYPE_CHECKING:
    from minisandbox.runtime.options import Options
    from minisandbox.runtime.queue import Lease
    from minisandbox.runtime.sandbox import Sandbox

_PARTS = (
    "number",
    "slot",
    "observer",
    "network",
    "memory",
    "layers",
    "timing",
    "started",
    "start_failure",
    "stages",
    "_channel",
    "commands",
    "leftover",
    "_broken",
    "_disk",
    "directory",
)


DISK_DEADLINE_S = 30.0
"""How long init may take to hand out its disk."""

QUIET_S = 0.1
"""How long processes that were killed may take to be gone."""

_PAUSE_S = 0.005
_NAMED = 5


class DiskAnswer:
    """What init says when it is asked for the disk."""

    __slots__ = ("done", "fd")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.fd = -1

    def take(self, record: Record, fd: int) -> None:
        """Take the answer; the descriptor is ours now."""
        if record.kind == RecordKind.OPENED and self.fd < 0:
            self.fd, fd = fd, -1
        self.done.set()
        if fd >= 0:
            os.close(fd)


class Movable:
    """How a sandbox leaves its body and enters another."""

    lease: Lease | None = None
    """What was booked for it, whatever body it has; None while it belongs to nobody."""
    _moving: trio.Event | None

    async def settled(self) -> None:
        """Wait until the sandbox is not being moved. Raises ClosedError or BrokenError when it cannot be used."""
        await self.wait_moved()
        self._itself().check_open()

    async def wait_moved(self) -> None:
        """Wait until the sandbox is not being moved, whatever came of it."""
        while self._moving is not None:
            await self._moving.wait()

    def begin_move(self) -> None:
        """Let nothing begin in it until `end_move`. Nothing may have awaited since `settled`."""
        self._itself().check_open()
        self._moving = trio.Event()

    def end_move(self) -> None:
        """Let it be used again."""
        if self._moving is not None:
            self._moving.set()
            self._moving = None

    def is_still(self) -> bool:
        """Return whether nothing runs inside, not even in the background."""
        sandbox = self._itself()
        group = sandbox.slot.groups.lent_to(sandbox.slot)  # without any, nothing can run
        return not (sandbox.running or (group is not None and group.is_populated()))

    def is_quiet(self) -> bool:
        """Return whether nothing runs inside; what ended there is cleared away then, or it is not quiet yet."""
        return self.is_still() and self._itself().remove_leftover()

    def may_rest(self) -> bool:
        """Return whether it can do without control groups until it is used again."""
        return self._moving is None and self.is_quiet()

    async def wait_quiet(self) -> None:
        """Return when nothing runs inside. Raises BusyError, with names, when something goes on."""
        sandbox = self._itself()
        deadline = trio.current_time() + QUIET_S
        while not self.is_still():
            if trio.current_time() > deadline or sandbox.running:
                raise BusyError(
                    f"{_names(sandbox.slot.cgroup.processes())} still run in this sandbox; a snapshot needs it quiet:"
                    " end them, call kill_all() first, or give freeze=True"
                )
            await trio.sleep(_PAUSE_S)

    async def open_disk(self, *, quiet: bool = False) -> int:
        """Return a mount of the sandbox's writable file system; the caller owns it. Raises HostError, DeadlineError.

        With `quiet` nothing runs inside when it returns, or it raises what `wait_quiet` does.
        """
        sandbox = self._itself()
        answer = sandbox._disk = DiskAnswer()
        try:
            await sandbox._channel.send(Request("disk"))
            try:
                if quiet:
                    await self.wait_quiet()
            finally:
                # cancelled or not: what init says would be taken for something else later
                with trio.CancelScope(shield=True), step_deadline("init to hand out its disk", DISK_DEADLINE_S):
                    await answer.done.wait()
        except BaseException:
            if answer.fd >= 0:
                os.close(answer.fd)
            raise
        finally:
            sandbox._disk = None
        if answer.fd < 0:
            sandbox.check_open()
            raise HostError(
                "what this sandbox wrote cannot be kept as a snapshot: that needs root, and Linux 6.3 while it lies in"
                " memory; see `minisandbox doctor`"
            )
        return answer.fd

    async def found(self) -> Options:
        """Wait for what it is to start upon, hold that, and return what it is to be started with."""
        sandbox = self._itself()
        if sandbox.options.upon is not None:
            layers = await sandbox.options.upon()
            sandbox.layers = tuple(layer.hold() for layer in layers)
            sandbox.options = replace(sandbox.options, layers=layers, upon=None)
        return sandbox.options

    def leave_body(self, error: BrokenError | ClosedError) -> Sandbox:
        """Give up the body and return it as a sandbox of its own, to be closed. Commands end with the error."""
        sandbox = self._itself()
        old = object.__new__(type(sandbox))
        vars(old).update(vars(sandbox))
        old.ahead = True  # nobody's
        old._moving = None
        old.slot.is_quiet = never
        old.break_(error)
        sandbox._broken = None
        sandbox.commands, sandbox.leftover, sandbox.layers = {}, [], ()
        return old

    def enter_body(self, fresh: Sandbox) -> None:
        """Take the body of a sandbox that was just started, which is none any more."""
        sandbox = self._itself()
        sandbox.reactor.unregister(fresh._channel.fd)
        for name in _PARTS:
            setattr(sandbox, name, getattr(fresh, name))
        sandbox.slot.is_quiet = sandbox.may_rest
        sandbox.reactor.register(sandbox._channel.fd, sandbox._on_readable)

    def _itself(self) -> Sandbox:
        return cast("Sandbox", self)


def _names(pids: set[int]) -> str:
    names = []
    for pid in sorted(pids)[:_NAMED]:
        with contextlib.suppress(OSError):
            names.append(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    return (", ".join(names) or "processes") + more
