"""What this host has left at this moment: memory, process numbers, descriptors; and how hard memory is pressed for.

It only reads: /proc, the files of our own control groups, and the lowest free descriptor number. `LoadMeter` keeps open
what it reads often, and looks no more often than is useful.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minisandbox.kernel.cgroup_layout import CgroupLayout

LOOK_S = 0.05
"""How old a look may be. A start takes longer, and dozens of them are under way at most."""

_UNLIMITED = 1 << 62
_READ_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Load:
    """One look."""

    available_bytes: int
    """MemAvailable of proc_meminfo(5), or what the limit of our own control group leaves, if that is less."""
    free_processes: int
    free_descriptors: int
    memory_pressure: float | None
    """Percent of the last ten seconds in which no task got on for want of memory; None without PSI."""


class LoadMeter:
    """Looks at the host, and remembers a look for a moment."""

    def __init__(self, layout: CgroupLayout, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._memory = list(_above(layout.where("memory"), ("memory.max", "memory.limit_in_bytes")))
        self._pids = list(_above(layout.where("pids"), ("pids.max",)))
        self._fds: dict[str, int] = {}
        self._most_processes = self._read_most_processes()
        self._most_bytes = 0
        self._used: Callable[[], int | None] = lambda: None
        self._last: Load | None = None
        self._looked_at = 0.0

    def look(self) -> Load:
        """Return what is left, as it was at most `LOOK_S` ago."""
        now = time.monotonic()
        if self._last is None or now - self._looked_at > LOOK_S:
            try:
                self._last, self._looked_at = self._look(), now
            except OSError as error:
                return _unknown(error)
        return self._last

    def bound(self, most_bytes: int, used: Callable[[], int | None]) -> None:
        """Count memory as available only up to a bound upon what we use ourselves, which `used` tells."""
        self._most_bytes, self._used = most_bytes, used

    def memory_bytes(self) -> int:
        """Return how much memory there is in all, for the host or for our own control group."""
        limits = [limit for each in self._memory if (limit := _number(each)) is not None]
        return min([self._field("meminfo", "MemTotal") * 1024, *limits])

    def processes(self) -> int:
        """Return how many processes there may be in all."""
        limits = [limit for each in self._pids if (limit := _number(each)) is not None]
        return min([self._most_processes, *limits])

    def close(self) -> None:
        """Close the files that are kept open."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _look(self) -> Load:
        available = [self._field("meminfo", "MemAvailable") * 1024]
        available += _left(self._memory, ("memory.current", "memory.usage_in_bytes"))
        if self._most_bytes and (used := self._used()) is not None:
            available.append(max(0, self._most_bytes - used))
        running = int(self._text("loadavg").split()[3].partition("/")[2])
        free = [self._most_processes - running, *_left(self._pids, ("pids.current",))]
        return Load(min(available), min(free), self._free_descriptors(), self._pressure())

    def _read_most_processes(self) -> int:
        most = [self._proc / "sys/kernel/pid_max", self._proc / "sys/kernel/threads-max"]
        return min((number for path in most if (number := _number(path)) is not None), default=_UNLIMITED)

    def _pressure(self) -> float | None:
        with contextlib.suppress(OSError, ValueError, IndexError):  # off at boot: reading says EOPNOTSUPP then
            for line in self._text("pressure/memory").splitlines():
                if line.startswith("full avg10="):
                    return float(line.split()[1].removeprefix("avg10="))
        return None

    def _field(self, name: str, key: str) -> int:
        lines = (line.partition(":") for line in self._text(name).splitlines())
        return next(int(value.split()[0]) for found, _, value in lines if found == key)

    def _text(self, name: str) -> str:
        return os.pread(self._fd(name), _READ_BYTES, 0).decode()

    def _fd(self, name: str) -> int:
        if name not in self._fds:
            self._fds[name] = os.open(self._proc / name, os.O_RDONLY | os.O_CLOEXEC)
        return self._fds[name]

    def _free_descriptors(self) -> int:
        """Return about how many more this process may open: numbers are given out from the lowest (open(2))."""
        lowest = fcntl.fcntl(self._fd("loadavg"), fcntl.F_DUPFD_CLOEXEC, 0)
        os.close(lowest)
        return max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - lowest)


def _unknown(error: OSError) -> Load:
    """Return a look that came to nothing: it stops nobody, unless it was for want of descriptors."""
    free_descriptors = 0 if error.errno in (errno.EMFILE, errno.ENFILE) else _UNLIMITED
    return Load(_UNLIMITED, _UNLIMITED, free_descriptors, None)


def _above(own: Path | None, names: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files that limit our own group and those above it, as far as they can be seen and say a limit."""
    while own is not None and own != own.parent:
        for name in names:
            number = _number(own / name)
            if number is not None and number < _UNLIMITED:
                yield own / name
        own = own.parent


def _left(limits: list[Path], counters: tuple[str, ...]) -> Iterator[int]:
    for limit in limits:
        most = _number(limit)
        used = next((number for name in counters if (number := _number(limit.with_name(name))) is not None), None)
        if most is not None and used is not None:
            yield max(0, most - used)


def _number(path: Path) -> int | None:
    """Return the number in a file; None when there is none, as with "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
