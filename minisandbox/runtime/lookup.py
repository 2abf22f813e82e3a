"""What a sandbox is to be made of, by name: root file systems, stored snapshots and policies, each looked up once."""

from __future__ import annotations

from typing import TypedDict

import trio

from minisandbox.errors import UsageError
from minisandbox.images.rootfs import Rootfs, build_rootfs
from minisandbox.images.snapshot_manifest import StoredSnapshot
from minisandbox.images.state import StateDir
from minisandbox.policy import Policy, load_policy
from minisandbox.runtime.branching import Branches
from minisandbox.runtime.snapshot import Layers, Library, Snapshot
from minisandbox.runtime.template import Template


class Origin(TypedDict):
    """What a sandbox begins with."""

    rootfs: Rootfs
    stored: StoredSnapshot | None
    """What the root file system was made of, if it was a snapshot."""
    layers: Layers
    """What lies upon the root file system."""


class Lookup:
    """What was found by one supervisor."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self.library = Library(state)
        self._rootfs: dict[str, Rootfs] = {}
        self._policies: dict[str, Policy] = {}
        self._building = trio.Lock()

    async def find_start(
        self,
        rootfs: str | Rootfs | Template | None,
        snapshot: Snapshot | StoredSnapshot | str | None,
        branches: Branches,
    ) -> Origin:
        """Return what a sandbox begins with.

        Raises UsageError for a name that there is not, or when both are given.
        """
        if isinstance(rootfs, Template) and snapshot is None:
            return Origin(rootfs=rootfs.spec.rootfs, stored=None, layers=())
        if isinstance(rootfs, Template):
            raise UsageError("give a template or a snapshot, not both: a template has its own root file system")
        if snapshot is None:
            return Origin(rootfs=await self.find_rootfs(rootfs or "host"), stored=None, layers=())
        if rootfs is not None:
            raise UsageError("give a rootfs or a snapshot, not both: a snapshot is of a root file system already")
        if isinstance(snapshot, Snapshot):
            return Origin(rootfs=snapshot.rootfs, stored=snapshot.stored, layers=branches.layers_of(snapshot))
        if isinstance(snapshot, str):
            snapshot = await trio.to_thread.run_sync(self.library.store.load, snapshot)
        return Origin(rootfs=snapshot.as_rootfs(), stored=snapshot, layers=())

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
            async with self._building:  # a burst asks a thousand times, and one of them builds
                if rootfs not in self._rootfs:
                    self._rootfs[rootfs] = await trio.to_thread.run_sync(build_rootfs, self._state, rootfs)
        return self._rootfs[rootfs]
