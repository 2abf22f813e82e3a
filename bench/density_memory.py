"""Where the memory of many sandboxes is, and what there is of everything on the host: it only looks.

Differences of figures of the whole host, so they are right where nothing else changes them: what processes hold for
themselves is therefore asked of the processes that are meant.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

HELD_BY_KERNEL = {"Slab": "slab", "KernelStack": "kernel stacks", "Percpu": "per-CPU"}
"""What proc_meminfo(5) tells of the kernel's memory, and how it is called here."""

ASKED = 50
"""So many inits are asked for their memory; they are alike."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What the host, this process and its children hold at one moment, in bytes."""

    parts: dict[str, int]
    slabs: dict[str, int]
    """By cache, see slabinfo(5)."""
    unavailable: int
    """All memory less what is available, as a check: it counts what others do meanwhile too."""

    def since(self, before: Memory) -> Memory:
        """Return what there is more than before."""
        return Memory(
            parts={name: value - before.parts.get(name, 0) for name, value in self.parts.items()},
            slabs={
                name: value - before.slabs.get(name, 0)
                for name, value in self.slabs.items()
                if value != before.slabs.get(name, 0)
            },
            unavailable=self.unavailable - before.unavailable,
        )

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self.parts.values())


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many of everything there are on the host; `slab_bytes` is memory of the kernel."""

    processes: int
    mounts: int
    cgroups: int
    network_namespaces: int
    descriptors: int
    slab_bytes: int


def look_at_memory(inits: Sequence[int] = (), launcher: int | None = None, group: Path | None = None) -> Memory:
    """Return what is held now, with that of the inits from some of them; `group` is the memory group of them all."""
    host = _meminfo()
    asked = random.Random(0).sample(inits, min(ASKED, len(inits)))
    share = len(inits) / max(1, len(asked))
    parts = {name: host[key] for key, name in HELD_BY_KERNEL.items()}
    parts["page tables of inits"] = int(share * sum(_number_in(Path(f"/proc/{pid}/status"), "VmPTE:") for pid in asked))
    parts["pages of inits"] = int(share * sum(_anonymous(pid) for pid in asked))
    parts["files in memory"] = 0 if group is None else _files(group)
    parts["launcher"] = 0 if launcher is None else _anonymous(launcher)
    parts["supervisor (Python)"] = psutil.Process().memory_info().rss
    return Memory(parts=parts, slabs=_slabs(), unavailable=host["MemTotal"] - host["MemAvailable"])


def count_everything(cgroups: Sequence[Path]) -> Counts:
    """Count. `cgroups` are the directories below which control groups are counted."""
    slabs = _slab_lines()
    return Counts(
        processes=len(psutil.pids()),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=sum(len(directories) for path in cgroups for _, directories, _ in os.walk(path)),
        network_namespaces=slabs["net_namespace"][0] if "net_namespace" in slabs else 0,
        descriptors=len(os.listdir("/proc/self/fd")),
        slab_bytes=_meminfo()["Slab"],
    )


def _anonymous(pid: int) -> int:
    """Return the memory that a process has for itself, and its share of what it has with those it was cloned from."""
    return _number_in(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:")


def _files(group: Path) -> int:
    """Return the bytes of files in memory that are charged below a group, of either version."""
    lines = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(lines.get("total_shmem", lines.get("shmem", "0")))


def _number_in(file: Path, key: str) -> int:
    """Return the bytes behind a key in a file of KiB; 0 when the process is gone."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(key)), 0)


def _meminfo() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}


def _slabs() -> dict[str, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return {name: slabs * pages * page for name, (_, slabs, pages) in _slab_lines().items()}


def _slab_lines() -> dict[str, tuple[int, int, int]]:
    """Return objects in use, slabs, and pages of each slab, by cache; nothing where it is not ours to read."""
    try:
        lines = Path("/proc/slabinfo").read_text().splitlines()[2:]
    except OSError:
        return {}
    found = {}
    for line in lines:
        words = line.split()
        found[words[0]] = (int(words[1]), int(words[14]), int(words[5]))
    return found
