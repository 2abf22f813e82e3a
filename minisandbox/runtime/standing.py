"""A fork that stands by: made while a sandbox of a template starts, and told later what it is to do.

It is a command like any other, with the sandbox's own user, limits and filters, whose program has not begun. Nothing of
a workload ever runs beside it: it runs the first `run_warm` that it fits, and is killed before anything else runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minisandbox.errors import SandboxError
from minisandbox.kernel.descriptors import open_pipe, open_socket_pair
from minisandbox.kernel.protocol import Request, Stage
from minisandbox.runtime.capture import Feed
from minisandbox.runtime.command import Command, CommandSpec, add_rights, common_request, open_streams
from minisandbox.runtime.resolve import Wishes, resolve

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox
    from minisandbox.runtime.template import Template
    from minisandbox.runtime.warm_process import WarmProcess

ORDER_MAX_BYTES = 64 << 10
"""A socket takes so much at once (unix(7)); what is longer goes to a fork of its own."""


class Standing:
    """One such fork. Its command owns it: `close` comes with the end of that."""

    def __init__(self, sandbox: Sandbox, command: Command, spec: CommandSpec) -> None:
        self.command = command
        self.took_order = False
        """Whether it read what it was to do; known once it is closed."""
        self.held_bytes = sandbox.slot.cgroup.memory_current()
        """What the sandbox held without it."""
        self._sandbox = sandbox
        self._fixed = _fixed(spec)
        self._stdin_fd = -1
        self._warm: WarmProcess | None = None
        self._socket, self._theirs = open_socket_pair(socket.SOCK_STREAM)
        self._socket.setblocking(False)

    async def start(self, template: Template, spec: CommandSpec) -> None:
        """Have it forked."""
        sandbox, command = self._sandbox, self.command
        warm = self._warm = await template.ensure()
        read_fd, self._stdin_fd = open_pipe()
        try:
            pipes = open_streams(command, spec, sandbox.reactor)
            pipes.owned.append(read_fd)
            read_fd = -1
            try:
                stdio = [pipes.owned[-1], *pipes.stdio]
                request = fork_request(command, spec, sandbox.filter_fds, stdio).flag("ahead")
                request.descriptor("template", warm.socket_fd).descriptor("payload", self._theirs.fileno())
                await sandbox.start_command(command, request)
            finally:
                pipes.close()
        finally:
            self._theirs.close()
            if read_fd >= 0:
                os.close(read_fd)

    def fits(self, spec: CommandSpec, order: bytes) -> bool:
        """Whether it is what such a command would be, and there."""
        return self._fixed == _fixed(spec) and len(order) <= ORDER_MAX_BYTES and not self.command.ended.is_set()

    def blame(self) -> None:
        """Let the template replace the warm process if that did not fork."""
        failure = self.command.outcome.failure
        if self._warm is not None and failure is not None and failure.stage == Stage.COMMAND_WARM:
            self._warm.lose(f"it did not fork: {os.strerror(failure.error)}")

    async def begin(self, spec: CommandSpec, order: bytes) -> None:
        """Tell it what to do. When it has ended meanwhile it takes no order, and `took_order` says so."""
        command, limits = self.command, spec.limits
        command.leaf.prepare(self._sandbox.slot.warden_uid, limits.processes)
        if command.stdout is not None and command.stderr is not None:
            command.stdout.adjust(limits.output_kept_bytes, limits.stdout_bytes, spec.on_stdout)
            command.stderr.adjust(limits.output_kept_bytes, limits.stderr_bytes, spec.on_stderr)
        stdin_fd, self._stdin_fd = self._stdin_fd, -1
        command.feed = Feed(self._sandbox.reactor, stdin_fd, spec.stdin)
        try:
            self._socket.send(order)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # it is gone
            self._socket.close()

    def close(self) -> None:
        """Give back what it held. A second call does nothing."""
        if self._stdin_fd >= 0:
            os.close(self._stdin_fd)
            self._stdin_fd = -1
        self._theirs.close()
        if self._socket.fileno() >= 0:
            try:
                self.took_order = self._socket.recv(1) == b""
            except OSError:  # ECONNRESET: it was closed before all was read
                self.took_order = False
            self._socket.close()


def fork_request(command: Command, spec: CommandSpec, filter_fds: Sequence[int], stdio: Sequence[int]) -> Request:
    """Return the part of a request for a fork that does not depend on when it is made."""
    request = common_request("fork", command, stdio)
    add_rights(request, spec, len(stdio))
    for fd in filter_fds:
        request.descriptor("filter", fd)
    return request


async def prepare(sandbox: Sandbox) -> None:
    """Make ready what its first command needs, while a sandbox starts: a fork of its template, or a leaf."""
    if sandbox.options.template is None:
        sandbox.slot.cgroup.prepare_spare(sandbox.slot.warden_uid)
    else:
        with contextlib.suppress(SandboxError):  # the start says what is wrong, or the first run_warm
            await stand_by(sandbox)


async def stand_by(sandbox: Sandbox) -> None:
    """Have the template of a sandbox fork into it ahead of the next `run_warm`, unless one stands by already."""
    template = sandbox.options.template
    if template is None or sandbox.standing is not None:
        return
    spec = await resolve(sandbox, ["-c"], Wishes(env=None, cwd="/", user=None, limits=None))
    command = sandbox.new_command(spec.limits)
    try:
        command.standing = Standing(sandbox, command, spec)
        await command.standing.start(template, spec)
    except BaseException:
        if command.standing is not None:
            command.standing.close()
        await sandbox.abandon(command)
        raise
    sandbox.standing = command.standing


def _fixed(spec: CommandSpec) -> tuple[object, ...]:
    """What cannot be changed any more once it is there."""
    limits = spec.limits
    return spec.uid, spec.gid, spec.capabilities, spec.cwd, limits.open_files, limits.cpu_time_s
