"""What users call to move files and directories between the host and a sandbox; `Sandbox` inherits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from minisandbox.runtime import files, trees
from minisandbox.runtime.tree_archive import Reader, Writer
from minisandbox.runtime.tree_pump import Progress, TreeBounds, TreeReport

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox

DEFAULT_BOUNDS = TreeBounds()


class Transfers:
    """Files and directories in and out of a sandbox."""

    __slots__ = ()

    async def read_file(self, path: str, *, max_bytes: int = files.DEFAULT_MAX_BYTES) -> bytes:
        """Return the content of a regular file inside. Raises FileTransferError; never follows a link at its end."""
        return await files.read_file(cast("Sandbox", self), path, max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644, user: str | int = "root") -> None:
        """Make or replace a regular file, charged to the sandbox. Raises FileTransferError unless it is whole."""
        await files.write_file(cast("Sandbox", self), path, data, mode, user)

    async def put_tree(
        self,
        source: trees.HostPath | Reader,
        path: str,
        *,
        user: str | int = "root",
        progress: Progress | None = None,
    ) -> TreeReport:
        """Put what is in a directory of the host, or in a tar archive, into a directory inside, and return what it was.

        The directory is made if it is not there, not the one above it. All belongs to `user`; permissions, times of
        files and symbolic links come along, owners, set-id bits and extended attributes do not. What is there already
        is replaced, directories are filled, links inside are never followed. Devices, FIFOs and sockets are skipped.
        Raises FileTransferError when not all could be written, UsageError for an archive that is broken or leads out;
        what was written until then stays, also when cancelled.
        """
        return await trees.put_tree(cast("Sandbox", self), source, path, user, progress)

    async def get_tree(
        self,
        path: str,
        target: trees.HostPath | Writer,
        *,
        bounds: TreeBounds = DEFAULT_BOUNDS,
        keep_owners: bool = False,
        progress: Progress | None = None,
    ) -> TreeReport:
        """Get what is in a directory inside as a new directory of the host, or as a tar archive; return what it was.

        The target appears when it is whole: a failed or cancelled call leaves nothing. What was made belongs to us, or
        with `keep_owners` to the ids that it has inside; set-id bits are dropped, and every directory can be used by
        its owner. Skipped are devices, FIFOs, sockets, and symbolic links that could lead out of the tree.
        Raises FileTransferError when it cannot be read or is beyond `bounds`, UsageError when the target is there
        already and no empty directory, HostError when it cannot be made.
        """
        return await trees.get_tree(cast("Sandbox", self), path, target, bounds, progress, keep_owners=keep_owners)
