"""Descriptors that many sandboxes share: layers, the host directories of a rootfs, seccomp programs.

Opened once, closed with the supervisor. Each is a name that cannot be swapped under us once it is open.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from minisandbox.binds import Bind
from minisandbox.errors import UsageError
from minisandbox.images.garbage import hold_layer
from minisandbox.images.rootfs import Rootfs
from minisandbox.kernel.protocol import sealed_memfd
from minisandbox.policy import Policy, filters


class Handles:
    """Open descriptors by what they are of."""

    def __init__(self) -> None:
        self._paths: dict[Path, int] = {}
        self._filters: dict[tuple[object, ...], list[int]] = {}

    def layer_fds(self, rootfs: Rootfs) -> list[int]:
        """Return a descriptor of each layer, top first. It also keeps the layer from being removed as unused."""
        for layer in rootfs.layers:
            if layer.path not in self._paths:
                self._paths[layer.path] = hold_layer(layer)
        return [self._paths[layer.path] for layer in rootfs.layers]

    def rootfs_binds(self, rootfs: Rootfs) -> list[tuple[Bind, int]]:
        """Return the host directories that the rootfs shows, each with its descriptor."""
        return [(bind, self.path_fd(bind.source)) for bind in rootfs.binds]

    def filter_fds(self, policy: Policy) -> list[int]:
        """Return a sealed memory file for each seccomp program of the policy, compiled at its first use."""
        key = (policy.seccomp, policy.capabilities)
        if key not in self._filters:
            self._filters[key] = [sealed_memfd("filter", program) for program in filters(policy)]
        return self._filters[key]

    @contextlib.contextmanager
    def bind_fds(self, binds: Sequence[Bind]) -> Iterator[list[tuple[Bind, int]]]:
        """Open the sources of binds for the block. Raises UsageError when one is not there."""
        opened: list[tuple[Bind, int]] = []
        try:
            for bind in binds:
                if bind.writable:
                    _require_private(bind.source)
                opened.append((bind, _open_path(bind.source)))
            yield opened
        finally:
            for _bind, fd in opened:
                os.close(fd)

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
