"""What users call to seal, fork and restore a sandbox; `Sandbox` inherits it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, cast

from minisandbox.errors import UsageError
from minisandbox.runtime.branching import Branches
from minisandbox.runtime.snapshot import Snapshot

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox


class Branchable:
    """Snapshots of a sandbox, and what is made of them."""

    branches: Branches

    async def snapshot(self, *, freeze: bool = False) -> Snapshot:
        """Seal all that was written to the root file system, and return it. The sandbox goes on; close the snapshot.

        It takes the same short time whatever is there. /dev/shm is not part of it, and empty afterwards; the limits of
        the disk count from zero again. With `freeze` a sandbox in which something runs is stopped, what it wrote is
        copied, and it goes on with all it has. Raises BusyError, with names, while anything runs without `freeze`,
        and HostError where this kernel cannot do it.
        """
        return await self.branches.snapshot(self._branching(), freeze=freeze)

    def fork(self, count: int = 1) -> AbstractAsyncContextManager[list[Sandbox]]:
        """Open sandboxes for the block that begin with what is here now; this one goes on too.

        They have its policy, limits and variables, and nothing that one of them does can be seen by the others.
        Raises what `snapshot` raises, and what `Supervisor.open_sandbox` raises.
        """
        return self.branches.fork(self._branching(), count)

    async def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot: all that runs is killed, all that was written since is gone, counters begin anew.

        The policy, limits and variables stay, the network is again what the policy says. Raises ClosedError for a
        snapshot that was closed, UsageError for one of another supervisor or of another root file system.
        """
        await self.branches.restore(self._branching(), snapshot)

    def _branching(self) -> Sandbox:
        sandbox = cast("Sandbox", self)
        if sandbox.options.template is not None:
            raise UsageError("a sandbox of a template has no snapshots; open one without a template and use run")
        return sandbox
