"""The warm process of a template: started in a pod, told what to import, asked for forks until it is closed.

Owns its socket, its slot and what it says; the process is started and reaped by the launcher of the pod. It reads
nothing that a sandbox wrote: orders to it are sent by inits.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import trio

from minisandbox.errors import BrokenError, DeadlineError, ProtocolError, StartError, TemplateError
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.protocol import Record, RecordKind, Request, Stage, sealed_memfd, stage_name
from minisandbox.kernel.reactor import Reactor
from minisandbox.launcher import helper_path, stub_path
from minisandbox.runtime.capture import Capture
from minisandbox.runtime.pod import Place
from minisandbox.runtime.slots import Slot
from minisandbox.spec import Limits

PRELOAD_DEADLINE_S = 120.0
"""How long a preload may take, if nothing else is said."""

LOOK_EACH = 64
"""After so many forks it is looked whether a warm process grew."""

GROWTH_BYTES = 64 << 20

SAID_BYTES = 64 << 10
"""How much is kept of what a preload prints."""


class Preload(msgspec.Struct, frozen=True, kw_only=True):
    """What a template imports and executes before it waits."""

    modules: tuple[str, ...] = ()
    code: str | None = None
    filename: str = "<preload>"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSpec:
    """What a warm process is made of."""

    python: str
    preload: Preload
    env: Mapping[str, str]
    limits: Limits
    deadline_s: float

    @property
    def pinned(self) -> bool:
        """Whether addresses are not randomised: whoever gives a seed for hashes wants the same in another template."""
        return "PYTHONHASHSEED" in self.env


class WarmProcess:
    """A warm process from its request to its end. `ready` is set when it waits for orders, or never will."""

    def __init__(self, number: int, slot: Slot, place: Place, control: socket.socket, reactor: Reactor) -> None:
        self.number = number
        self.slot = slot
        self.place = place
        self.ready = trio.Event()
        self.ready_s = 0.0
        self.failure: Record | None = None
        self.lost: str | None = None
        """Why it can be asked no more."""
        self._channel = Channel(control, "the warm process of a template")
        self._reactor = reactor
        self._streams: list[Capture] = []
        self._asked = 0
        self._ready_bytes = 0
        self.leaf = slot.cgroup.open_run(slot.warden_uid)
        reactor.register(self._channel.fd, self._on_readable)

    def has_grown(self) -> bool:
        """Note that it is asked once more, and return whether it holds much more memory than when it became ready."""
        self._asked += 1
        if self._asked % LOOK_EACH != 1:
            return False
        held = self.slot.cgroup.memory_current()
        self._ready_bytes = self._ready_bytes or held
        return held > 2 * self._ready_bytes + GROWTH_BYTES

    @property
    def socket_fd(self) -> int:
        """The descriptor by which an init asks for a fork. Borrowed."""
        return self._channel.fd

    def _on_readable(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                record, fd = received
                if fd >= 0:
                    os.close(fd)
                if record.kind == RecordKind.FAILED:
                    self.failure = record
                self.ready.set()
        except (BrokenError, ProtocolError) as error:
            self.lose(str(error))

    def lose(self, why: str) -> None:
        """Take note that it can be asked no more."""
        if self.lost is None:
            self.lost = why
            self._reactor.unregister(self._channel.fd)
            self.ready.set()

    async def start(self, spec: WarmSpec, theirs: socket.socket) -> None:
        """Start it and wait until it is ready. Raises TemplateError with the traceback when its preload fails."""
        begun = time.monotonic()
        memfds = [
            sealed_memfd("minisandbox-warm", helper_path().read_bytes()),
            sealed_memfd("template", stub_path().read_bytes()),
            sealed_memfd("preload", msgspec.json.encode(spec.preload)),
        ]
        pipes: list[int] = []
        try:
            request = Request("warm").option("id", self.number).option("slot", self.slot.number)
            request.descriptor("control", theirs.fileno()).option("hostname", "template")
            if self.leaf.dir_fd >= 0:
                request.descriptor("cgroup", self.leaf.dir_fd)
            for fd in self.leaf.tasks_fds:
                request.descriptor("tasks", fd)
            null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            pipes = [null_fd, self._pipe(), self._pipe()]
            for fd in (*pipes, theirs.fileno(), *memfds):
                request.descriptor("stdio", fd)
            if spec.pinned:
                request.flag("fixed-addresses")
            request.option("cwd", "/").option("rlimit", "core:1")
            request.words.extend(f"--env={name}={value}" for name, value in spec.env.items())
            await self.place.launcher.send(request.command([spec.python, "/proc/self/fd/5"]))
            self.leaf.close_start_fds()
        finally:
            theirs.close()
            for fd in (*memfds, *pipes):
                os.close(fd)
        with trio.move_on_after(spec.deadline_s) as scope:
            await self.ready.wait()
        self.ready_s = time.monotonic() - begun
        if scope.cancelled_caught:
            raise DeadlineError(f"the preload of a template did not end within {spec.deadline_s:g} s")
        self._check(spec)

    def _pipe(self) -> int:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        capture = Capture(
            self._reactor, read_fd, kept_bytes=SAID_BYTES, limit_bytes=None, on_data=None, on_change=lambda: None
        )
        self._streams.append(capture)
        return write_fd

    def _check(self, spec: WarmSpec) -> None:
        for stream in self._streams:
            stream.drain()
        said = self._streams[1].kept().decode(errors="replace").strip()
        failure = self.failure
        if failure is not None and failure.stage == Stage.COMMAND_EXEC:
            raise TemplateError(f"cannot start {spec.python} in the rootfs: {os.strerror(failure.error)}")
        if failure is not None and failure.stage != Stage.NONE:
            stage = stage_name(failure.stage)
            raise StartError("cannot start a template", stage, failure.error, failure.item)
        if failure is not None or self.lost is not None:
            last = said.splitlines()[-1] if said else f"{spec.python} ended before it was ready"
            raise TemplateError(f"the preload failed: {last}", said)

    def close(self) -> None:
        """Close the socket, which ends it, and its pipes. The launcher tells when it is gone."""
        self.lose("it was closed")
        self._channel.close()
        for stream in self._streams:
            stream.close()
