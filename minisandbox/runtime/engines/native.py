"""The native engine: our own launcher makes the container."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minisandbox.binds import Bind
from minisandbox.kernel.protocol import Request
from minisandbox.policy import Network, Policy, Proc
from minisandbox.spec import Limits

HARMLESS = frozenset(
    f"CAP_{name}"
    for name in (
        "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP SETFCAP SYS_CHROOT"
        " NET_BIND_SERVICE SYS_PTRACE"
    ).split()
)
"""With others, and without a filter, root inside can change settings of its user namespace that would outlive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpec:
    """What a sandbox is made of. All descriptors are borrowed."""

    number: int
    """Of the sandbox; never used twice."""
    slot: int
    policy: Policy
    limits: Limits
    hostname: str
    control_fd: int
    """The end of its control socket that the init gets."""
    disk_fd: int
    """A directory for all that it writes, -1 for a tmpfs."""
    layer_fds: Sequence[int]
    """Directories of the layers, top first."""
    namespace_fds: Sequence[int]
    """Mount namespaces in which some of them are, before Linux 6.15."""
    binds: Sequence[tuple[Bind, int]]
    """Each with a descriptor of its source."""
    pinned: Sequence[tuple[str, int]]
    """Files that are mounted read-only over those of the system, by place inside; of a deterministic sandbox."""
    filter_fds: Sequence[int]
    """Sealed memory files with BPF programs."""
    lifetime_s: float | None
    terminal: bool
    trace: bool
    deterministic: bool


class NativeEngine:
    """Starts sandboxes by the launcher alone; it holds nothing."""

    @contextlib.contextmanager
    def attempt(self) -> Iterator[NativeEngine]:
        """Begin a start."""
        yield self

    def request(self, spec: StartSpec) -> Request:
        """Return what to ask of the launcher."""
        return start_request(spec)

    def failure(self) -> None:
        """Return nothing: whatever fails says so on the control socket."""
        return None

    def close(self) -> None:
        """Do nothing."""


def start_request(spec: StartSpec) -> Request:
    """Return the request that makes the launcher start a sandbox; READY or a failure comes on its control socket."""
    request = Request("start").option("id", spec.number).option("slot", spec.slot)
    request.descriptor("control", spec.control_fd).option("hostname", spec.hostname)
    if spec.disk_fd >= 0:
        request.descriptor("disk", spec.disk_fd)
    for fd in spec.namespace_fds:
        request.descriptor("layer-namespace", fd)
    for fd in spec.layer_fds:
        request.descriptor("layer", fd)
    for bind, fd in spec.binds:
        request.words.append(f"--bind={'rw' if bind.writable else 'ro'}:{bind.target}")
        request.fds.append(fd)
    for target, fd in spec.pinned:
        request.words.append(f"--bind=ro:{target}")
        request.fds.append(fd)
    for fd in spec.filter_fds:
        request.descriptor("filter", fd)
    if spec.limits.disk_bytes is not None and spec.disk_fd < 0:
        request.option("disk-bytes", spec.limits.disk_bytes)
    if spec.limits.disk_inodes is not None and spec.disk_fd < 0:
        request.option("disk-inodes", spec.limits.disk_inodes)
    if spec.lifetime_s is not None:
        request.option("lifetime-ms", math.ceil(spec.lifetime_s * 1000))
    flags = {
        "host-network": spec.policy.network is Network.HOST,
        "pid-proc": spec.policy.proc is Proc.PID,
        "terminal": spec.terminal,
        "taints": not spec.policy.seccomp or not spec.policy.capabilities <= HARMLESS,
        "trace": spec.trace,
        "deterministic": spec.deterministic,
    }
    for name, on in flags.items():
        if on:
            request.flag(name)
    return request
