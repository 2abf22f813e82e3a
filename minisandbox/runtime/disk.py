"""Where sandboxes write: in memory, or to a directory of their own below the state directory.

The directories lie in one scratch directory of the supervisor: whoever opens the state directory after it died removes
them. Ids on them are those seen inside, so nobody but root may search it.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from minisandbox.degradation import Degradation, refusal
from minisandbox.errors import HostError, UsageError
from minisandbox.images.state import StateDir, reporting
from minisandbox.images.tree import remove_tree

if TYPE_CHECKING:
    from minisandbox.runtime.cleanup import Cleanup
    from minisandbox.runtime.options import Options
    from minisandbox.runtime.sandbox import Sandbox


class Disk(enum.StrEnum):
    """What holds the files that a sandbox writes."""

    MEMORY = "memory"
    """A tmpfs: fast, limited, charged as memory."""
    STATE = "state"
    """The file system of the state directory, which limits a sandbox in nothing."""


def find_disk(name: str) -> Disk:
    """Return what has this name. Raises UsageError."""
    try:
        return Disk(name)
    except ValueError:
        raise UsageError(f"disk is {name!r}; it can be {' or '.join(Disk)}") from None


class DiskDirectory:
    """One directory, owned by a sandbox and then by the layer that it became."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> int:
        """Return a descriptor of it, which the caller owns."""
        return os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def remove(self) -> None:
        """Remove all that is in it; blocks."""
        with contextlib.suppress(OSError):  # what stays goes with the scratch directory
            remove_tree(self._path)

    async def aclose(self, cleanup: Cleanup) -> None:
        """Remove all that is in it. Shielded."""
        await cleanup.free("disk", self.remove)


class DiskDirectories:
    """Those of one supervisor. `close` it when no sandbox and no layer is left."""

    def __init__(self, state: StateDir, *, without_limit: bool) -> None:
        """`without_limit`: it was agreed that limits of these disks are not enforced."""
        self.state, self._without_limit = state, without_limit
        self._stack = contextlib.ExitStack()
        self._scratch: Path | None = None
        self._numbers = itertools.count()

    def check(self, options: Options) -> tuple[Degradation, ...]:
        """Return what such a sandbox does without. Raises HostError for a limit, and UsageError for what cannot be."""
        if options.disk is Disk.MEMORY:
            return ()
        if os.geteuid() != 0:
            raise HostError('disk="state" needs root: overlayfs takes no directory of an ordinary user\'s as its upper')
        if options.engine != "native" or options.template is not None:
            raise UsageError('disk="state" is for the native engine, and not for sandboxes of a template')
        if options.limits.disk_bytes is None and options.limits.disk_inodes is None:
            return ()
        if not self._without_limit:
            raise refusal(Degradation.DISK_LIMIT)
        return (Degradation.DISK_LIMIT,)

    @contextlib.contextmanager
    def opened(self, sandbox: Sandbox, options: Options) -> Iterator[int]:
        """Make a directory for a sandbox that needs one, and open it for the block; else it is -1."""
        if options.disk is Disk.MEMORY:
            yield -1
            return
        sandbox.directory = self._make()
        fd = sandbox.directory.open()
        try:
            yield fd
        finally:
            os.close(fd)

    def _make(self) -> DiskDirectory:
        with reporting(f"make a directory for a sandbox in {self.state.path}"):
            if self._scratch is None:
                self._scratch = self._stack.enter_context(self.state.open_scratch())
            path = self._scratch / str(next(self._numbers))
            path.mkdir(mode=0o700)
        return DiskDirectory(path)

    def close(self) -> None:
        """Remove whatever is left."""
        self._stack.close()
