"""What users call to move files and directories between the host and a sandbox; `Sandbox` inherits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from minisandbox.runtime import files

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox


class Transfers:
    """Files in and out of a sandbox."""

    __slots__ = ()

    async def read_file(self, path: str, *, max_bytes: int = files.DEFAULT_MAX_BYTES) -> bytes:
        """Return the content of a regular file inside. Raises FileTransferError; never follows a link at its end."""
        return await files.read_file(cast("Sandbox", self), path, max_bytes)

    async def write_file(
        self,
        path: str,
        data: bytes,
        *,
        mode: int = 0o644,
        user: str | int = "root",
    ) -> None:
        """Make or replace a regular file, charged to the sandbox. Raises FileTransferError unless it is whole."""
        await files.write_file(cast("Sandbox", self), path, data, mode, user)
