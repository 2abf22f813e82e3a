"""What a supervisor says about itself to whoever may read its state directory: one answer for each connection.

A socket beside the lock of the instance; nothing is done while nobody asks. The answer is JSON lines, a header and then
one for each sandbox, and costs the supervisor no file to read: control groups are read by the one who asks (top.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import trio

from minisandbox.images.state import STATUS_SUFFIX
from minisandbox.runtime.background import background
from minisandbox.runtime.supervisor import Supervisor

ANSWER_DEADLINE_S = 2.0
"""How long one who asked may take to read; others wait meanwhile, sandboxes do not."""

_ROWS_AT_ONCE = 256
_BACKLOG = 16
_WAITING_SHOWN = 5


class SandboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox."""

    number: int
    slot: int
    group: str
    """Its control groups for now; empty when it needs none, since nothing runs in it and nothing is charged."""
    parked: bool
    opened_at: float
    """Unix time, as all times here."""
    commands: int
    running: int
    last: str
    """How its last command that ended did so; empty when none did."""
    changed_at: float
    """When a command began or ended last."""
    memory_limit_bytes: int | None


class WaitingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One who waits to be let in."""

    ticket: int
    priority: int
    since: float
    waits_for: str


class SupervisorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor; `sandboxes` says how many lines follow."""

    instance: str
    pid: int
    opened_at: float
    serving: bool
    live: int
    parked: int
    starting: int
    queued: int
    quarantined: int
    max_sandboxes: int
    files: dict[str, str]
    """Where the counters of a slot are: templates with `{group}`."""
    sandboxes: int
    promised_bytes: int = 0
    """The memory that was promised to open sandboxes."""
    waiting: list[WaitingStatus] = []
    """The first of those who wait for admission; `queued` says how many there are."""


def status_of(supervisor: Supervisor) -> tuple[SupervisorStatus, list[SandboxStatus]]:
    """Return what is known now, without asking the kernel."""
    counts = supervisor.telemetry
    rows = [
        SandboxStatus(
            number=sandbox.number,
            slot=sandbox.slot.number,
            group=sandbox.slot.group_name,
            parked=sandbox.ahead,
            opened_at=watch.opened_at,
            commands=watch.commands,
            running=watch.running,
            last=watch.last,
            changed_at=watch.changed_at,
            memory_limit_bytes=sandbox.limits.memory_bytes,
        )
        for sandbox, watch in supervisor.watched()
    ]
    header = SupervisorStatus(
        instance=counts.instance,
        pid=os.getpid(),
        opened_at=counts.opened_at,
        serving=supervisor.serving,
        live=supervisor.live,
        parked=supervisor.parking.parked,
        starting=counts.starting,
        queued=counts.queued,
        quarantined=len(supervisor.quarantined),
        max_sandboxes=supervisor.max_sandboxes,
        files=supervisor.counter_files(),
        sandboxes=len(rows),
        promised_bytes=supervisor.queue.books.booked.memory_bytes,
        waiting=[
            WaitingStatus(ticket=each.number, priority=each.priority, since=each.since, waits_for=str(each.waits_for))
            for each in supervisor.queue.waiting[:_WAITING_SHOWN]
        ],
    )
    return header, rows


def _pieces(supervisor: Supervisor) -> Iterator[bytes]:
    header, rows = status_of(supervisor)
    yield msgspec.json.encode(header) + b"\n"
    for begin in range(0, len(rows), _ROWS_AT_ONCE):
        yield b"".join(msgspec.json.encode(row) + b"\n" for row in rows[begin : begin + _ROWS_AT_ONCE])


@contextlib.contextmanager
def reaching(path: Path) -> Iterator[str]:
    """Return another name of a socket that is short enough for one, however long its path is (unix(7), sun_path)."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


@contextlib.asynccontextmanager
async def serving_status(supervisor: Supervisor, lock: Path) -> AsyncIterator[None]:
    """Answer who asks, for the block; the socket lies beside the lock of the instance."""
    path = lock.with_name(lock.name + STATUS_SUFFIX)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with listener:
            with reaching(path) as name:
                listener.bind(name)
            listener.listen(_BACKLOG)
            waiting = trio.socket.from_stdlib_socket(listener)

            async def serve() -> None:
                while True:
                    await _answer_one(supervisor, waiting)

            async with background(serve):
                yield
    finally:
        path.unlink(missing_ok=True)


async def _answer_one(supervisor: Supervisor, listener: trio.socket.SocketType) -> None:
    """Take one connection and answer it; what goes wrong with it is the other side's affair."""
    try:
        connection, _ = await listener.accept()
    except OSError:  # out of descriptors: it waits in the queue until there are some
        await trio.sleep(ANSWER_DEADLINE_S)
        return
    with contextlib.suppress(trio.BrokenResourceError), trio.move_on_after(ANSWER_DEADLINE_S):
        async with trio.SocketStream(connection) as stream:
            for piece in _pieces(supervisor):
                await stream.send_all(piece)
