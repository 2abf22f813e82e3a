"""How many sandboxes this host can hold: each of its limits, what is used of it, and what one sandbox takes.

It only reads: /proc, and the control groups that we are in. A limit that the kernel does not show is left out, and one
that the host does not set is no limit.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from minisandbox.errors import HostError
from minisandbox.kernel.cgroup_layout import CgroupLayout, detect_layout
from minisandbox.kernel.ids import BLOCK_SLOTS, MAX_SLOTS

SANDBOX_BYTES = 700 << 10
"""The memory of an idle sandbox, everything counted, that the project allows itself (bench/density.py measures it)."""

PROCESSES_EACH = 2
"""Its init, and one process of a command."""

SUPERVISOR_FDS_EACH = 1
"""Its control socket; the launcher, another process, holds its network namespace."""

FDS_KEPT = 64
"""Kept free for commands that start and run: each has pipes, and files of its control group while it is started."""

HOST_FDS_EACH = 12
"""Open files of all processes: both ends of its control socket, its network namespace, its layers, its file system."""

SUPERBLOCKS_EACH = 4
"""tmpfs, overlay, proc, and the mqueue of its ipc namespace."""

ANONYMOUS_DEVICES = 1 << 20
"""Superblocks without a block device have a minor number each (get_anon_bdev, MINORBITS)."""

MEMORY_GROUP_IDS = 65535
"""MEM_CGROUP_ID_MAX of mm/memcontrol.c; groups that are removed keep theirs while a page is charged to them."""

LOOK_S = 1.0
"""How often `Room` looks at the host, at least."""

NAMESPACES = ("user", "net", "mnt", "pid", "ipc", "uts")
UNLIMITED = 1 << 62
"""From here on a number means no limit, as in memory.limit_in_bytes."""


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of the host, as it bounds how many sandboxes there can be."""

    name: str
    limit: int
    used: int
    """By everything that the limit is for, open sandboxes included; of open files also what is kept for commands."""
    each: int
    """What one sandbox takes of it."""
    advice: str
    """How to raise it."""

    @property
    def allows(self) -> int:
        """How many sandboxes can be opened beside what is there."""
        return max(0, (self.limit - self.used) // self.each)


def read_capacity() -> tuple[Ceiling, ...]:
    """Return every limit of this host, that which comes first before the others; a few milliseconds.

    Raises HostError when it cannot be found out, as where this process has no descriptor left to read with.
    """
    try:
        found = [*_of_kernel(), *_of_process(), *_of_memory(), *_of_groups()]
    except OSError as error:
        raise HostError(f"cannot find out what this host can hold: {error.filename}: {error.strerror}") from error
    return tuple(sorted((each for each in found if each.limit < UNLIMITED), key=lambda each: each.allows))


class Room:
    """Says before each new sandbox whether the host can hold it. Most answers cost nothing: see `take`."""

    def __init__(self) -> None:
        self._left = 0
        self._looked_at = -LOOK_S

    def take(self) -> None:
        """Count one sandbox more. Raises HostError, with the limit and by how much, when the host cannot hold it.

        It looks again after `LOOK_S`, or when half of what there was is taken: others use the host too.
        """
        now = time.monotonic()
        if self._left <= 0 or now - self._looked_at >= LOOK_S:
            check_capacity(1)
            self._left, self._looked_at = read_capacity()[0].allows // 2, now
        self._left -= 1


def check_capacity(wanted: int) -> None:
    """Raise HostError, with the limit and by how much, unless so many sandboxes can be opened beside what is there."""
    first = read_capacity()[0]
    if wanted > first.allows:
        raise HostError(refusal(first, wanted))


def refusal(ceiling: Ceiling, wanted: int) -> str:
    """Return what stands in the way of so many sandboxes, and by how much."""
    beyond = wanted * ceiling.each - max(0, ceiling.limit - ceiling.used)
    return (
        f"this host cannot hold {wanted:,} more sandboxes, but {ceiling.allows:,}: it has {ceiling.limit:,}"
        f" {ceiling.name}, {ceiling.used:,} are used, each sandbox takes {ceiling.each:,}: {beyond:,} too many;"
        f" {ceiling.advice}"
    )


def _of_kernel() -> Iterator[Ceiling]:
    threads = _threads()
    for name, file in (("process ids", "pid_max"), ("threads", "threads-max")):
        if (limit := _number(Path(f"/proc/sys/kernel/{file}"))) is not None:
            advice = f"sysctl -w kernel.{file}=4194304"
            yield Ceiling(name=name, limit=limit, used=threads, each=PROCESSES_EACH, advice=advice)
    for kind in NAMESPACES:
        if (limit := _number(Path(f"/proc/sys/user/max_{kind}_namespaces"))) is not None:
            advice = f"sysctl -w user.max_{kind}_namespaces=1000000"
            yield Ceiling(name=f"{kind} namespaces", limit=limit, used=0, each=1, advice=advice)
    used, _, most = (int(word) for word in Path("/proc/sys/fs/file-nr").read_text().split())
    advice = "sysctl -w fs.file-max=10000000"
    yield Ceiling(name="open files of the host", limit=most, used=used, each=HOST_FDS_EACH, advice=advice)
    yield Ceiling(
        name="superblocks",
        limit=ANONYMOUS_DEVICES,
        used=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        each=SUPERBLOCKS_EACH,
        advice="none: the kernel has so many minor numbers; use another host beside this one",
    )
    if os.geteuid() == 0:
        yield Ceiling(
            name="ranges of user ids",
            limit=MAX_SLOTS,
            used=BLOCK_SLOTS * Path("/proc/net/unix").read_text().count("@minisandbox-ids-"),
            each=1,
            advice="none: there are so many; close other supervisors of this host",
        )


def _of_process() -> Iterator[Ceiling]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"ulimit -n {hard}" if soft < hard else "ulimit -Hn 1048576 as root, or LimitNOFILE= of the service"
    yield Ceiling(
        name="open files of the supervisor",
        limit=UNLIMITED if soft == resource.RLIM_INFINITY else soft,
        used=_descriptors() + FDS_KEPT,
        each=SUPERVISOR_FDS_EACH,
        advice=advice,
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and soft != resource.RLIM_INFINITY:
        used = sum(each.info["uids"].real == os.getuid() for each in psutil.process_iter(["uids"]) if each.info["uids"])
        yield Ceiling(
            name="processes of the user", limit=soft, used=used, each=PROCESSES_EACH, advice="ulimit -u unlimited"
        )


def _of_memory() -> Iterator[Ceiling]:
    memory = psutil.virtual_memory()
    yield Ceiling(
        name="bytes of memory",
        limit=memory.total,
        used=memory.total - memory.available,
        each=SANDBOX_BYTES,
        advice="more memory, or another host beside this one",
    )


def _of_groups() -> Iterator[Ceiling]:
    groups = {
        name: int(count) for name, _, count, _ in map(str.split, _lines(Path("/proc/cgroups"))) if count.isdigit()
    }
    yield Ceiling(
        name="memory groups",
        limit=MEMORY_GROUP_IDS,
        used=groups.get("memory", 0),
        each=1,
        advice="none: the kernel has so many ids; close what holds groups, also removed ones, such as files in memory",
    )
    try:
        layout = detect_layout()
    except HostError:
        return
    for name, files, each in (
        ("processes of our control group", ("pids.max", "pids.current"), PROCESSES_EACH),
        ("memory of our control group", ("memory.max", "memory.current"), SANDBOX_BYTES),
        ("memory of our control group", ("memory.limit_in_bytes", "memory.usage_in_bytes"), SANDBOX_BYTES),
        ("control groups below ours", ("cgroup.max.descendants", ""), 2),
    ):
        for directory in _upwards(layout):
            limit, used = _number(directory / files[0]), _number(directory / files[1]) if files[1] else 0
            if limit is not None and used is not None:
                advice = f"write a higher number, or max, to {directory / files[0]}"
                yield Ceiling(name=name, limit=limit, used=used, each=each, advice=advice)


def _upwards(layout: CgroupLayout) -> Iterator[Path]:
    """Yield our own groups and those above them: a limit holds for all that is below it."""
    own = [*([layout.unified] if layout.unified else []), *layout.v1.values()]
    yield from dict.fromkeys(each for path in own for each in (path, *path.parents) if each.is_relative_to("/sys/fs"))


def _threads() -> int:
    """Return how many threads the host runs; the fourth field of proc_loadavg(5) has them after a slash."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])


def _descriptors() -> int:
    """Return about how many this process has: numbers are given out from the lowest (open(2)), and none is counted."""
    lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(lowest)
    return lowest


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if not line.startswith("#")]
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """Return the number in a file, or None when there is none: "max" is no limit."""
    text = " ".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None
