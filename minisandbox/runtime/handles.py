"""Descriptors that many sandboxes share: layers, the host directories of a rootfs, seccomp programs.

Opened once, closed with the supervisor. Each is a name that cannot be swapped under us once it is open.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import trio

from minisandbox.binds import Bind
from minisandbox.errors import DeadlineError, UsageError
from minisandbox.images.garbage import hold_layer
from minisandbox.images.rootfs import Rootfs
from minisandbox.kernel.protocol import sealed_memfd
from minisandbox.policy import Policy, filters

OPEN_DEADLINE_S = 5.0
"""How long a file system may take to open something. One that does not answer hangs a thread, and nobody else."""

_THREADS = 16
"""So many opens may hang at once; whoever comes then waits for one, up to the same deadline."""


Open = Callable[[], int]


class Handles:
    """Open descriptors by what they are of."""

    def __init__(self) -> None:
        self._paths: dict[Path, int] = {}
        self._filters: dict[tuple[object, ...], list[int]] = {}
        self._threads = trio.CapacityLimiter(_THREADS)
        self._opening = trio.Lock()

    async def open_rootfs(self, rootfs: Rootfs) -> None:
        """Open what a rootfs is made of and what it shows, at its first use.

        Raises DeadlineError, UsageError when a directory is not there, StateError when a layer is not.
        """
        if self._missing(rootfs):
            async with self._opening:
                if missing := self._missing(rootfs):
                    opened = await self._open_in_time([each for _, each in missing], "a root file system")
                    self._paths.update(zip((path for path, _ in missing), opened, strict=True))

    def _missing(self, rootfs: Rootfs) -> list[tuple[Path, Open]]:
        wanted: dict[Path, Open] = {layer.path: partial(hold_layer, layer) for layer in rootfs.layers}
        wanted |= {bind.source: partial(_open_path, bind.source) for bind in rootfs.binds}
        return [(path, each) for path, each in wanted.items() if path not in self._paths]

    def layer_fds(self, rootfs: Rootfs) -> list[int]:
        """Return a descriptor of each layer, top first. It also keeps the layer from being removed as unused."""
        return [self._paths[layer.path] for layer in rootfs.layers]

    def rootfs_binds(self, rootfs: Rootfs) -> list[tuple[Bind, int]]:
        """Return the host directories that the rootfs shows, each with its descriptor."""
        return [(bind, self._paths[bind.source]) for bind in rootfs.binds]

    def filter_fds(self, policy: Policy) -> list[int]:
        """Return a sealed memory file for each seccomp program of the policy, compiled at its first use."""
        key = (policy.seccomp, policy.capabilities)
        if key not in self._filters:
            fds = self._filters.setdefault(key, [])
            try:
                fds += (sealed_memfd("filter", program) for program in filters(policy))
            except BaseException:  # a part of the filters must never be taken for all of them
                for fd in self._filters.pop(key):
                    os.close(fd)
                raise
        return self._filters[key]

    @contextlib.asynccontextmanager
    async def bind_fds(self, binds: Sequence[Bind]) -> AsyncIterator[list[tuple[Bind, int]]]:
        """Open the sources of binds for the block. Raises UsageError when one is not there, DeadlineError."""
        if not binds:
            yield []
            return
        what = ", ".join(str(bind.source) for bind in binds)
        fds = await self._open_in_time([partial(_open_source, bind) for bind in binds], what)
        try:
            yield list(zip(binds, fds, strict=True))
        finally:
            for fd in fds:
                os.close(fd)

    async def _open_in_time(self, opens: Sequence[Open], what: str) -> list[int]:
        """Open in a thread, which is left to itself when it does not come back: it closes what it opens then."""
        several = _Several(opens)
        try:
            with trio.fail_after(OPEN_DEADLINE_S):
                await trio.to_thread.run_sync(several.open, abandon_on_cancel=True, limiter=self._threads)
            return several.take()
        except trio.TooSlowError as error:
            raise DeadlineError(
                f"opening {what} took more than {OPEN_DEADLINE_S:g} s; is a file system there that does not answer?"
            ) from error
        finally:
            several.abandon()

    def path_fd(self, path: Path) -> int:
        """Return a descriptor of a file or directory of the host, to be mounted inside."""
        if path not in self._paths:
            self._paths[path] = _open_path(path)
        return self._paths[path]

    def close(self) -> None:
        """Close all."""
        filter_fds = [fd for fds in self._filters.values() for fd in fds]
        for fd in (*self._paths.values(), *filter_fds):
            os.close(fd)
        self._paths.clear()
        self._filters.clear()


class _Several:
    """Opens one after another; what nobody takes is closed, whenever it is there."""

    def __init__(self, opens: Sequence[Open]) -> None:
        self._opens, self._fds = opens, list[int]()
        self._given_up = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open all, in whichever thread."""
        for each in self._opens:
            fd = each()
            with self._lock:
                self._fds.append(fd)
                if self._given_up:
                    break
        if self._given_up:
            self.abandon()

    def take(self) -> list[int]:
        """Return the descriptors; they are the caller's."""
        with self._lock:
            taken, self._fds = self._fds, []
            return taken

    def abandon(self) -> None:
        """Close what there is and what comes."""
        self._given_up = True
        for fd in self.take():
            os.close(fd)


def _open_source(bind: Bind) -> int:
    if bind.writable:
        _require_private(bind.source)
    return _open_path(bind.source)


def _require_private(source: Path) -> None:
    """Refuse to bind writable what other users of the host can reach: root inside could leave setuid programs there."""
    try:
        modes = [place.stat().st_mode for place in (source, *source.parents)]
    except OSError as error:
        raise UsageError(f"cannot bind {source} into a sandbox: {error.strerror}") from error
    if all(mode & stat.S_IXOTH for mode in modes if stat.S_ISDIR(mode)):
        raise UsageError(
            f"cannot bind {source} writable: other users of this host can reach it, and root inside could leave"
            f" setuid programs there for them; chmod o-x {source} or a directory above it first"
        )


def _open_path(path: Path) -> int:
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"cannot bind {path} into a sandbox: {error.strerror}") from error
