"""What a sandbox is opened with, everything looked up."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from minisandbox.binds import Bind
from minisandbox.images.rootfs import Rootfs
from minisandbox.policy import Policy
from minisandbox.spec import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that makes one sandbox differ from another."""

    rootfs: Rootfs
    policy: Policy
    limits: Limits
    binds: tuple[Bind, ...]
    hostname: str
    env: dict[str, str]
    lifetime_s: float | None
    terminal: bool
    trace: bool

    @property
    def parkable(self) -> bool:
        """Whether it makes no difference when the sandbox was started."""
        return self.lifetime_s is None and not self.trace

    @property
    def kind(self) -> Hashable:
        """What is fixed when a sandbox starts; memory, processes, CPU and variables are given when it is handed out."""
        policy, limits = self.policy, self.limits
        return (
            self.rootfs.layers,
            self.rootfs.binds,
            policy.seccomp,
            policy.capabilities,
            policy.network,
            policy.proc,
            limits.disk_bytes,
            limits.disk_inodes,
            self.binds,
            self.hostname,
            self.terminal,
        )
