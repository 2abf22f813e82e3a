"""What a sandbox is opened with, everything looked up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minisandbox.binds import Bind
from minisandbox.errors import UsageError
from minisandbox.images.rootfs import Rootfs
from minisandbox.images.snapshot_manifest import StoredSnapshot
from minisandbox.policy import Network, Policy
from minisandbox.runtime.disk import Disk
from minisandbox.runtime.engines.choice import DEFAULT_ENGINE, check_engine
from minisandbox.runtime.resolve import env_words
from minisandbox.runtime.snapshot import Layers
from minisandbox.spec import MAX_SECONDS, Limits

if TYPE_CHECKING:
    from minisandbox.runtime.template import Template

MIN_DISK_BYTES = 16 << 10
MIN_DISK_INODES = 16
"""An overlay has a few directories of its own on the writable file system; below this a sandbox could not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that makes one sandbox differ from another."""

    engine: str
    rootfs: Rootfs
    policy: Policy
    limits: Limits
    binds: tuple[Bind, ...]
    hostname: str
    env: dict[str, str]
    lifetime_s: float | None
    terminal: bool
    trace: bool
    deterministic: bool = False
    disk: Disk = Disk.MEMORY
    template: Template | None = None
    stored: StoredSnapshot | None = None
    """What the root file system was made of, if it was a snapshot."""
    layers: Layers = ()
    """What lies upon the root file system, top first; borrowed."""
    upon: Callable[[], Awaitable[Layers]] | None = None
    """Waits for those layers where they are only being made."""
    ahead: bool = False
    """Whether it is started ahead, for nobody yet."""

    @property
    def parkable(self) -> bool:
        """Whether it makes no difference when the sandbox was started."""
        special = self.trace or self.layers or self.upon or self.deterministic or self.disk is not Disk.MEMORY
        return self.lifetime_s is None and not special

    @property
    def kind(self) -> Hashable:
        """What is fixed when a sandbox starts; memory, processes, CPU and variables are given when it is handed out."""
        policy, limits = self.policy, self.limits
        return (
            self.engine,
            self.rootfs.layers,
            self.rootfs.binds,
            policy.seccomp,
            policy.capabilities,
            policy.network,
            policy.proc,
            policy.addresses,
            limits.disk_bytes,
            limits.disk_inodes,
            self.binds,
            self.hostname,
            self.terminal,
            id(self.template),
        )


def check_options(options: Options) -> None:
    """Raise UsageError for what cannot be, while nothing is started yet."""
    check_engine(options.engine)
    check_lifetime(options.lifetime_s)
    hostname = options.hostname
    if not 1 <= len(hostname) <= 64 or not hostname.isascii() or not hostname.isprintable() or " " in hostname:
        raise UsageError(f"hostname {hostname!r} is not 1 to 64 printable ASCII characters")
    if options.deterministic and options.engine != DEFAULT_ENGINE:
        raise UsageError(
            f"the engine {options.engine} cannot make deterministic sandboxes; leave it at {DEFAULT_ENGINE}"
        )
    env_words(options.env)
    if options.template is not None:
        _check_template(options)
    for name, least in (("disk_bytes", MIN_DISK_BYTES), ("disk_inodes", MIN_DISK_INODES)):
        value = getattr(options.limits, name)
        if value is not None and value < least:
            raise UsageError(f"limit {name} is {value}, less than the {least} that every sandbox needs")


def check_lifetime(lifetime_s: float | None) -> float | None:
    """Return a lifetime that can be. Raises UsageError."""
    if lifetime_s is not None and not 0 < lifetime_s <= MAX_SECONDS:
        raise UsageError(f"lifetime_s is {lifetime_s!r}; give seconds greater than 0, or None for no end")
    return lifetime_s


def _check_template(options: Options) -> None:
    if options.binds:
        raise UsageError("binds of a sandbox with a template are those of the template; give them to open_template")
    if options.policy.network is Network.HOST:
        raise UsageError("a sandbox with a template has a network of its own; choose a policy with network = none")
    if options.engine != DEFAULT_ENGINE:
        raise UsageError(f"templates need the engine {DEFAULT_ENGINE}, not {options.engine}")
    if options.deterministic:
        raise UsageError("a fork of a template has what that was started with; it cannot be deterministic")
