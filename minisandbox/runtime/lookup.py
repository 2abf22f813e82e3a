"""What a sandbox is to be made of, by name: root file systems, stored snapshots and policies, each looked up once."""

from __future__ import annotations

import trio

from minisandbox.errors import UsageError
from minisandbox.images.rootfs import Rootfs, build_rootfs
from minisandbox.images.snapshot_manifest import StoredSnapshot
from minisandbox.images.state import StateDir
from minisandbox.policy import Policy, load_policy
from minisandbox.runtime.branching import Branches
from minisandbox.runtime.snapshot import Layers, Library, Snapshot
from minisandbox.runtime.template import Template


class Lookup:
    """What was found by one supervisor."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self.library = Library(state)
        self._rootfs: dict[str, Rootfs] = {}
        self._policies: dict[str, Policy] = {}

    async def find_start(
        self,
        rootfs: str | Rootfs | Template | None,
        snapshot: Snapshot | StoredSnapshot | str | None,
        branches: Branches,
    ) -> tuple[Rootfs, StoredSnapshot | None, Layers]:
        """Return the rootfs, what stored snapshot it was made of, and the layers upon it.

        Raises UsageError for a name that there is not, or when both are given.
        """
        if isinstance(rootfs, Template) and snapshot is None:
            return rootfs.spec.rootfs, None, ()
        if isinstance(rootfs, Template):
            raise UsageError("give a template or a snapshot, not both: a template has its own root file system")
        if snapshot is None:
            return await self.find_rootfs(rootfs or "host"), None, ()
        if rootfs is not None:
            raise UsageError("give a rootfs or a snapshot, not both: a snapshot is of a root file system already")
        if isinstance(snapshot, Snapshot):
            return snapshot.rootfs, snapshot.stored, branches.layers_of(snapshot)
        if isinstance(snapshot, str):
            snapshot = await trio.to_thread.run_sync(self.library.store.load, snapshot)
        return snapshot.as_rootfs(), snapshot, ()

    def find_policy(self, policy: str | Policy) -> Policy:
        """Return a policy. Raises PolicyError."""
        if isinstance(policy, Policy):
            return policy
        if policy not in self._policies:
            self._policies[policy] = load_policy(policy)
        return self._policies[policy]

    async def find_rootfs(self, rootfs: str | Rootfs) -> Rootfs:
        """Return a root file system, which is built if need be. Raises RecipeError and what its recipe raises."""
        if isinstance(rootfs, Rootfs):
            return rootfs
        if rootfs not in self._rootfs:
            self._rootfs[rootfs] = await trio.to_thread.run_sync(build_rootfs, self._state, rootfs)
        return self._rootfs[rootfs]
