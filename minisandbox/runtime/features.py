"""What newer kernels do better: how a sandbox shows which way was taken, and what the older way costs.

Nothing here is decided by a version: the launcher and the control groups try the newer way first. The versions are for
people, who may want to know which kernel brings what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minisandbox.runtime.finding import Finding
from minisandbox.spec import Usage


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a sandbox."""

    mounts: str
    """Its mount table, see proc_pid_mountinfo(5)."""
    usage: Usage
    """Of a command that needed less memory than one before it."""
    landlock_abi: int


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that older kernels lack."""

    name: str
    since: str
    is_there: Callable[[Seen], bool]
    cost: str

    def find(self, seen: Seen) -> Finding:
        """Return whether it is there, or what its lack costs. No lack makes a sandbox less safe."""
        if self.is_there(seen):
            return Finding(name=self.name, ok=True, detail="used")
        return Finding(name=self.name, ok=None, detail=self.cost, advice=f"Linux {self.since} has it")


def _tmpfs_is_idmapped(seen: Seen) -> bool:
    return any(
        line.split()[4] == "/dev/shm" and "idmapped" in line.split()[5].split(",") for line in seen.mounts.splitlines()
    )


def _overlay_is_by_descriptor(seen: Seen) -> bool:
    return "/x/l/" not in seen.mounts


FEATURES = (
    Feature(
        "idmapped tmpfs",
        "6.3",
        _tmpfs_is_idmapped,
        "missing: what a sandbox writes carries the ids of its slot, so it cannot be handed to another one as it is",
    ),
    Feature(
        "overlay by descriptor",
        "6.15",
        _overlay_is_by_descriptor,
        "missing: overlays are made by path, with a few mounts more at each start",
    ),
    Feature(
        "snapshots in memory",
        "6.3 (as root)",
        _tmpfs_is_idmapped,
        "missing: snapshot, fork and restore are refused; stored snapshots can be opened",
    ),
    Feature(
        "memory peak",
        "6.12 (with control groups v2)",
        lambda seen: seen.usage.memory_peak_bytes is not None,
        "cannot be reset: the peak of a command is unknown where an earlier one in its sandbox needed more",
    ),
    Feature(
        "landlock",
        "5.13 (built with CONFIG_SECURITY_LANDLOCK and lsm=landlock)",
        lambda seen: seen.landlock_abi > 0,
        "missing: programs that confine themselves with it cannot; no sandbox rests on it",
    ),
)
"""All of them, in the order in which they are shown."""


def find_features(seen: Seen) -> list[Finding]:
    """Return one finding for each feature."""
    return [feature.find(seen) for feature in FEATURES]
