"""The native engine: our own launcher makes the container."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from minisandbox.binds import Bind
from minisandbox.kernel.launcher import Launcher
from minisandbox.kernel.protocol import Request
from minisandbox.policy import Network, Policy, Proc
from minisandbox.spec import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpec:
    """What a sandbox is made of. All descriptors are borrowed."""

    slot: int
    policy: Policy
    limits: Limits
    hostname: str
    layer_fds: Sequence[int]
    """Directories of the layers, top first."""
    binds: Sequence[tuple[Bind, int]]
    """Each with a descriptor of its source."""
    filter_fds: Sequence[int]
    """Sealed memory files with BPF programs."""
    lifetime_s: float | None
    terminal: bool
    trace: bool


def start_request(spec: StartSpec, control_fd: int) -> Request:
    """Return the request that makes the launcher start a sandbox."""
    request = Request("start").option("slot", spec.slot).descriptor("control", control_fd)
    request.option("hostname", spec.hostname)
    for fd in spec.layer_fds:
        request.descriptor("layer", fd)
    for bind, fd in spec.binds:
        request.words.append(f"--bind={'rw' if bind.writable else 'ro'}:{bind.target}")
        request.fds.append(fd)
    for fd in spec.filter_fds:
        request.descriptor("filter", fd)
    if spec.limits.disk_bytes is not None:
        request.option("disk-bytes", spec.limits.disk_bytes)
    if spec.limits.disk_inodes is not None:
        request.option("disk-inodes", spec.limits.disk_inodes)
    if spec.lifetime_s is not None:
        request.option("lifetime-ms", int(spec.lifetime_s * 1000))
    flags = {
        "host-network": spec.policy.network is Network.HOST,
        "pid-proc": spec.policy.proc is Proc.PID,
        "terminal": spec.terminal,
        "trace": spec.trace,
    }
    for name, on in flags.items():
        if on:
            request.flag(name)
    return request


async def start(launcher: Launcher, spec: StartSpec) -> socket.socket:
    """Ask the launcher for a sandbox and return our end of its control socket; READY or a failure comes on it.

    Cancelled: the end is closed, and an init that was started ends by itself.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            await launcher.send(start_request(spec, theirs.fileno()))
        except (Exception, trio.Cancelled):
            ours.close()
            raise
    return ours
