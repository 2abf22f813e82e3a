"""One hierarchy: the directory of an instance in it, held open, and what v1 and v2 have in common there.

It never touches anything outside that directory, and signals a process only while it is listed in it. All methods
block for as long as the kernel takes, and no longer than the deadline where one is given.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from minisandbox.errors import CgroupError
from minisandbox.kernel.cgroup_charge import Charge

READ_BYTES = 16384  # more than any file that is read at one go; longer lists are read in pieces

PIDFDS_AT_ONCE = 128  # processes that are signalled and waited for together: each takes a descriptor

DEATH_S = 0.1  # how long a killed process may take before others get their turn; it is looked at again afterwards


class Memory(ABC):
    """Memory of one group: anonymous and shared memory, page cache, and what the kernel allocates for its processes."""

    __slots__ = ("_group", "_tree")

    def __init__(self, tree: Hierarchy, group: str) -> None:
        self._tree, self._group = tree, group

    @abstractmethod
    def set_limit(self, limit_bytes: int | None) -> None:
        """Limit memory, with swap off; None for no limit."""

    @abstractmethod
    def current(self) -> int:
        """Return the charge in bytes."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Let the peak start again at the charge of now."""

    @abstractmethod
    def peak(self) -> int | None:
        """Return the highest charge since the last reset, or None when the kernel does not say."""

    @abstractmethod
    def oom_kills(self) -> int:
        """Return how many processes of the group were killed for its limit, ever."""

    @abstractmethod
    def charge(self) -> Charge:
        """Return what the charge consists of, late by up to `stat_lag_bytes`."""

    @abstractmethod
    def kernel_bytes(self) -> int:
        """Return what the kernel holds for the group."""

    @abstractmethod
    def drain(self) -> int:
        """Reclaim what can be, and return the bytes that stay beside the kernel's own."""

    @abstractmethod
    def close(self) -> None:
        """End the measurement of the peak; only v2 holds anything for it."""


class Hierarchy(ABC):
    """The directory of one instance in one mounted hierarchy; every name below is relative to it, "." is itself.

    Raises CgroupError from every method when the kernel refuses or the group is gone.
    """

    CPU_FILE = MEMORY_FILE = ""  # where a group counts them

    __slots__ = ("controllers", "fd", "path")

    def __init__(self, path: Path, controllers: frozenset[str]) -> None:
        self.path, self.controllers = path, controllers
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise CgroupError(f"cannot open control group {path}: {error.strerror}") from error

    @abstractmethod
    def is_populated(self, group: str) -> bool:
        """Return whether a live process is in the group or below it."""

    @abstractmethod
    def kill(self, group: str) -> None:
        """Send SIGKILL to every process in the group and below it."""

    @abstractmethod
    def kill_and_wait(self, group: str, deadline: float) -> bool:
        """Kill the group and return whether it is empty; give up at `deadline` on the clock of `time.monotonic`."""

    @abstractmethod
    def memory(self, group: str) -> Memory:
        """Return the memory of a group; the hierarchy must have the controller."""

    @abstractmethod
    def set_bandwidth(self, group: str, cpus: float | None) -> None:
        """Limit CPU bandwidth, None for no limit; the hierarchy must have the cpu controller.

        Raises UsageError when it is less than the kernel can give.
        """

    @abstractmethod
    def cpu_time_s(self, group: str) -> float:
        """Return CPU seconds used in the group, also by processes that are gone."""

    def lock(self) -> bool:
        """Mark the directory as in use until it is closed, or this process ends; return False when another one does."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the directory; what is in it stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def open(self, name: str, mode: int) -> int:
        """Return a new descriptor of a file or directory; the caller owns it."""
        try:
            return os.open(name, mode | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError as error:
            raise self._failure("open", name, error) from error

    def read(self, name: str) -> bytes:
        """Return what a file holds."""
        text = self.read_optional(name)
        if text is None:
            raise CgroupError(f"cannot read {self.path}/{name}: no such file; the group is gone or the kernel lacks it")
        return text

    def read_optional(self, name: str) -> bytes | None:
        """Return what a file holds, or None when there is no such file."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                return os.read(fd, READ_BYTES)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure("read", name, error) from error

    def read_int(self, name: str) -> int | None:
        """Return the number a file holds, or None when there is no such file."""
        text = self.read_optional(name)
        return None if text is None else int(text)

    def write(self, name: str, value: str) -> None:
        """Write a value to a file."""
        if not self.write_optional(name, value):
            raise CgroupError(
                f"cannot write {self.path}/{name}: no such file; the group is gone or the kernel lacks it"
            )

    def write_optional(self, name: str, value: str) -> bool:
        """Write a value to a file and return True, or False when there is no such file."""
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._failure(f"write {value} to", name, error) from error
        return True

    def make(self, group: str) -> None:
        """Make a group."""
        try:
            os.mkdir(group, 0o755, dir_fd=self.fd)
        except OSError as error:
            raise self._failure("make control group", group, error) from error

    def give(self, name: str, uid: int = -1, gid: int = -1) -> None:
        """Make a file belong to a user or a group; -1 leaves as it is."""
        try:
            os.chown(name, uid, gid, dir_fd=self.fd)
        except OSError as error:
            raise self._failure(f"give to uid {uid}, gid {gid} the file", name, error) from error

    def remove(self, group: str) -> bool:
        """Remove a group and return True, or False while it holds processes or groups. One that is gone counts."""
        try:
            os.rmdir(group, dir_fd=self.fd)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise self._failure("remove control group", group, error) from error
        return True

    def remove_all(self) -> list[str]:
        """Remove the directory of the instance with all groups below it, bottom up; return those that stay."""
        left = []
        for directory, _, _ in os.walk(self.path, topdown=False):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue
            except OSError:
                left.append(directory)
        return left

    def pids(self, group: str) -> set[int]:
        """Return the process ids in the group and below it, without those outside our own pid namespace."""
        found: set[int] = set()
        for each in self._groups_from(group):
            found.update(self._listed(each))
        return found - {0}

    def _kill_members(self, group: str, deadline: float) -> bool:
        """Kill process by process until none is listed; needs neither cgroup.kill nor a freezer.

        With pids.max at 0 no process can be added, but a fork under way when it was written still ends with a child.
        Its parent cannot die before that, so once all that were listed are dead, the next list is complete.
        """
        self.write_optional(f"{group}/pids.max", "0")
        while pids := sorted(self.pids(group)):
            if time.monotonic() >= deadline:
                return False
            for first in range(0, len(pids), PIDFDS_AT_ONCE):
                self._kill_some(group, pids[first : first + PIDFDS_AT_ONCE])
        return True

    def _kill_some(self, group: str, pids: list[int]) -> None:
        """Kill processes, and wait for their end as long as it usually takes."""
        deadline = time.monotonic() + DEATH_S
        with contextlib.ExitStack() as opened:
            pidfds: dict[int, int] = {}
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    pidfds[pid] = os.pidfd_open(pid)
                    opened.callback(os.close, pidfds[pid])
            waiting = select.poll()
            # A number may have been reused between the listing and pidfd_open: signal only what is listed once more.
            victims = {pidfds[pid] for pid in self.pids(group) & pidfds.keys()}
            for pidfd in victims:
                self._send_sigkill(pidfd)
                waiting.register(pidfd, select.POLLIN)
            while victims and (remaining_s := deadline - time.monotonic()) > 0:
                for pidfd, _ in waiting.poll(remaining_s * 1000):
                    waiting.unregister(pidfd)
                    victims.discard(pidfd)

    def _send_sigkill(self, pidfd: int) -> None:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except OSError as error:
            raise self._failure("kill a process of", ".", error) from error

    def _groups_from(self, group: str) -> Iterator[str]:
        pending = [group]
        while pending:
            each = pending.pop()
            try:
                fd = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
            except FileNotFoundError:
                continue
            try:
                with os.scandir(fd) as entries:
                    pending += [f"{each}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
            finally:
                os.close(fd)
            yield each

    def _listed(self, group: str) -> list[int]:
        try:
            fd = os.open(f"{group}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
            with open(fd, "rb") as procs:
                return [int(line) for line in procs]
        except OSError as error:
            # ENODEV: removed between open and read.
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return []
            raise self._failure("list the processes of", group, error) from error

    def _failure(self, tried: str, name: str, error: OSError) -> CgroupError:
        return CgroupError(f"cannot {tried} {self.path}/{name}: {error.strerror}")
