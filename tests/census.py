"""Counts what a run of the suite could leave behind: processes, mounts, control groups, descriptors, instances.

It only looks. Two runs of the suite at once on one machine see each other's control groups.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from minisandbox.kernel.cgroup_layout import SUPERVISOR_LEAF

OURS = "minisandbox"
"""How the names of the launcher's processes and of our control groups begin."""


@dataclass(frozen=True, slots=True)
class Census:
    """What was there at one moment, each thing as a line that a person can look for."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    descriptors: tuple[str, ...]
    instances: frozenset[str]


def take_census(temporary: Path) -> Census:
    """Return what is there now. `temporary` is the directory that holds all state directories of the tests."""
    return Census(
        processes=frozenset(_processes()),
        mounts=frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=frozenset(_cgroups()),
        descriptors=tuple(sorted(_descriptors())),
        instances=frozenset(str(path) for path in temporary.rglob("instances/*")),
    )


def _processes() -> list[str]:
    """Return our descendants, and processes of a launcher that lost its parent.

    The parent of such an orphan is an ancestor of ours: pid 1, or the nearest subreaper (prctl(2)).
    That of the launcher of somebody else's live supervisor is not.
    """
    me = psutil.Process()
    foster_parents = {parent.pid for parent in me.parents()}
    orphans = [p for p in psutil.process_iter() if _parent(p) in foster_parents and _name(p).startswith(OURS)]
    return [f"{p.pid} {_name(p)}" for p in [*me.children(recursive=True), *orphans]]


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return -1


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "(gone)"


def _cgroups() -> list[str]:
    """Return our control groups below the one we are in, of every hierarchy."""
    found: list[str] = []
    for own in own_cgroups():
        for path, directories, _ in os.walk(own):
            found += [os.path.join(path, name) for name in directories if name.startswith(OURS + "-")]
    return found


def own_cgroups() -> list[Path]:
    """Return the directory of our own group in each mounted hierarchy (cgroups(7), proc_pid_mountinfo(5)).

    A supervisor, or one in another process of ours, may have moved us into a leaf of it.
    """
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[frozenset(filter(None, controllers.split(",")))] = path
    directories = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, mounted_at = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        for names, path in own.items():
            if kind == ("cgroup" if names else "cgroup2") and names <= set(options.split(",")):
                directory = Path(os.path.normpath(os.path.join(mounted_at, os.path.relpath(path, root))))
                directories.append(directory.parent if directory.name == SUPERVISOR_LEAF else directory)
    return directories


def groups_of(process: psutil.Process) -> list[Path]:
    """Return the control groups of the instance that a process of a sandbox belongs to, in every hierarchy."""
    lines = Path(f"/proc/{process.pid}/cgroup").read_text().splitlines()
    (name,) = {part for line in lines for part in line.split("/") if part.startswith(f"{OURS}-")}
    return [own / name for own in own_cgroups() if (own / name).exists()]


def _descriptors() -> list[str]:
    """Return what each open descriptor of this process refers to, but for the directory that is read to find out."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        if "/mpl-data/fonts/" not in target:  # matplotlib keeps its fonts open for as long as the process lives
            targets.append(target)
    return targets
