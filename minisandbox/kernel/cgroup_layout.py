"""Where our own control groups are: which hierarchies are mounted, and which directory of each we are in.

It only reads. The cgroup file systems are probed by what is mounted, never by version (cgroups(7)).
"""

from __future__ import annotations

import enum
import os
import re
from pathlib import Path

import msgspec

from minisandbox.errors import HostError, UsageError

CONTROLLERS = ("pids", "memory", "cpu", "cpuacct")
"""The controllers that this package uses; cpuacct is v1 alone. That of pids comes first: it can stop forks."""

CPUSET = "cpuset"
"""Used only to keep cores free (cgroup_reserve.py), in its v1 hierarchy or in the unified one."""

SUPERVISOR_LEAF = "minisandbox-supervisor"
"""Where a supervisor moves itself so that its own v2 group can give controllers to its children."""


class CgroupKind(enum.StrEnum):
    """How the hierarchies of a host are arranged."""

    V2 = "v2"
    """One unified tree."""
    HYBRID = "hybrid"
    """A unified tree for membership, while v1 hierarchies hold controllers that we use."""
    V1 = "v1"
    """No unified tree."""


class CgroupLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The directories of our own control groups."""

    unified: Path | None = None
    """Our directory in the unified (v2) tree."""
    unified_controllers: frozenset[str] = frozenset()
    """Controllers that the unified tree gives there, of those in `CONTROLLERS`."""
    v1: dict[str, Path] = {}
    """Our directory in the v1 hierarchy of each controller; two controllers may share one."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no control group at all."""
        return self.unified is None and not self.v1.keys() - {CPUSET}

    @property
    def kind(self) -> CgroupKind:
        """How the hierarchies are arranged."""
        if self.unified is None:
            return CgroupKind.V1
        return CgroupKind.HYBRID if self.v1.keys() - {CPUSET} else CgroupKind.V2

    def where(self, controller: str) -> Path | None:
        """Return the directory through which `controller` is used, or None when the host lacks it."""
        return self.unified if controller in self.unified_controllers else self.v1.get(controller)


def detect_layout(parent: Path | None = None) -> CgroupLayout:
    """Return where our own control groups are.

    `parent` takes the place of our own group in the unified tree: an empty group delegated to us.
    Raises UsageError when `parent` is no v2 group, HostError when no usable hierarchy is mounted.
    """
    unified, v1 = own_directories(
        Path("/proc/self/mountinfo").read_text(errors="surrogateescape"),
        Path("/proc/self/cgroup").read_text(errors="surrogateescape"),
    )
    unified = parent if parent is not None else _above_supervisor_leaf(unified)
    if parent is not None and not (parent / "cgroup.subtree_control").is_file():
        raise UsageError(f"cgroup parent {parent} is not a cgroup v2 directory; give one below a cgroup2 mount")
    given: frozenset[str] = frozenset()
    if unified is not None:
        given = frozenset(CONTROLLERS) & _words(unified / "cgroup.controllers")
    layout = CgroupLayout(unified=unified, unified_controllers=given, v1=v1)
    if unified is None and not v1:
        raise HostError("no control groups here: neither a cgroup2 nor a v1 hierarchy is mounted below /sys/fs/cgroup")
    return layout


def writable_layout(layout: CgroupLayout) -> CgroupLayout:
    """Return what of a layout an ordinary user may use: where he may make groups and move his processes.

    Where nothing is his, the layout that is returned is empty.
    """
    unified = layout.unified if layout.unified is not None and _is_ours(layout.unified, "cgroup.procs") else None
    return CgroupLayout(
        unified=unified,
        unified_controllers=layout.unified_controllers if unified else frozenset(),
        v1={name: own for name, own in layout.v1.items() if _is_ours(own, "tasks")},
    )


def _is_ours(group: Path, members: str) -> bool:
    return os.access(group, os.W_OK | os.X_OK) and os.access(group / members, os.W_OK)


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError as error:
        raise HostError(f"cannot read {path} of our own control group: {error.strerror}; was it removed?") from error


def own_directories(mountinfo: str, membership: str) -> tuple[Path | None, dict[str, Path]]:
    """Return our directory in the unified tree and that of each v1 controller, from the text of two files of /proc.

    A hierarchy of which no mount shows our own group counts as not there: in a container, the mount may show
    another part of the tree (proc_pid_mountinfo(5), cgroup_namespaces(7)).
    """
    groups = dict(_parse_membership(membership))
    unified: Path | None = None
    found: dict[str, Path] = {}
    for kind, options, root, mount_point in _parse_mounts(mountinfo):
        if kind == "cgroup2":
            unified = unified or _below_mount(mount_point, root, groups.get(""))
            continue
        for controller in options - found.keys():
            if directory := _below_mount(mount_point, root, groups.get(controller)):
                found[controller] = directory
    known = (*CONTROLLERS, CPUSET)
    return unified, {controller: found[controller] for controller in known if controller in found}


def _parse_membership(text: str) -> list[tuple[str, str]]:
    """Return (controller, group) pairs; the unified tree has the empty name."""
    fields = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    return [(name, group) for _, names, group in fields for name in names.split(",")]


def _parse_mounts(text: str) -> list[tuple[str, set[str], str, str]]:
    """Return (type, super options, root, mount point) of each cgroup mount."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if separator and len(fields) >= 6 and len(rest) >= 3 and rest[0] in ("cgroup", "cgroup2"):
            mounts.append((rest[0], set(rest[2].split(",")), _unescape(fields[3]), _unescape(fields[4])))
    return mounts


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _below_mount(mount_point: str, root: str, group: str | None) -> Path | None:
    # A name that begins with "/.." is outside the root of our cgroup namespace.
    if group is None or ".." in (group + "/" + root).split("/"):
        return None
    inner = os.path.relpath(group, root)
    return (
        None if inner.startswith("../") or inner == ".." else Path(os.path.normpath(os.path.join(mount_point, inner)))
    )


def _above_supervisor_leaf(own: Path | None) -> Path | None:
    return own.parent if own is not None and own.name == SUPERVISOR_LEAF else own
