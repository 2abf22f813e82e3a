"""Sealing, forking and restoring sandboxes: one moves out of what it wrote, and on with a new disk upon it.

    sandbox       body: init, slot, control socket, disk, memory group
      |  seal     the disk becomes a layer, the memory group its account; the old init ends
      |  move     a new init starts in another slot, its disk empty, the layer below it
      v
    sandbox       the same object, another body

Nothing of a quiet sandbox but its files and its network settings outlives a command, so that nobody inside can tell.
The new body is started in the background: whoever uses the sandbox next waits for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from minisandbox.errors import (
    BrokenError,
    BusyError,
    CgroupError,
    ClosedError,
    HostError,
    SandboxError,
    UsageError,
)
from minisandbox.kernel.launcher import Launcher
from minisandbox.kernel.protocol import LAYERS_MAX
from minisandbox.runtime.change import Change, Changes
from minisandbox.runtime.copying import Copies, worth_flattening
from minisandbox.runtime.options import Options
from minisandbox.runtime.sealing import Sealer, Sealing
from minisandbox.runtime.slots import SlotPool
from minisandbox.runtime.snapshot import Layers, Library, Snapshot, shortened

if TYPE_CHECKING:
    from minisandbox.runtime.queue import Lease
    from minisandbox.runtime.sandbox import Sandbox


class Branches:
    """What the sandboxes of one supervisor have branched into. The calls are the supervisor's."""

    def __init__(
        self,
        launcher: Launcher,
        slots: SlotPool,
        sandboxes: dict[int, Sandbox],
        admit: Callable[[Options, int], Awaitable[list[Lease]]],
        open_: Callable[[Options, Lease], Awaitable[Sandbox]],
        start: Callable[[Options], Awaitable[Sandbox]],
        close: Callable[[Sandbox], Awaitable[None]],
        library: Library,
    ) -> None:
        self._launcher, self._slots, self._sandboxes = launcher, slots, sandboxes
        self._admit, self._open, self._start, self._close = admit, open_, start, close
        self.library = library
        self._copies = Copies(launcher, slots)
        self._sealer = Sealer(launcher, slots.cleanup)
        self._snapshots: list[Snapshot] = []
        self.changes = Changes()
        self._tasks = 0
        self._idle = trio.Event()

    async def snapshot(self, sandbox: Sandbox, *, freeze: bool) -> Snapshot:
        """Seal what a quiet sandbox wrote. It goes on upon it, with the network that it has."""
        return self._keep(sandbox, await self._copy(sandbox) if freeze else await self._seal(sandbox))

    def _keep(self, sandbox: Sandbox, layers: Layers) -> Snapshot:
        snapshot = Snapshot(sandbox.options.rootfs, layers, self, self.library, sandbox.options.stored)
        self._snapshots = [other for other in self._snapshots if other.is_open]
        self._snapshots.append(snapshot)
        return snapshot

    @contextlib.asynccontextmanager
    async def fork(self, sandbox: Sandbox, count: int) -> AsyncIterator[list[Sandbox]]:
        """Open `count` sandboxes for the block that begin as this one is now."""
        if count < 1:
            raise UsageError(f"cannot fork a sandbox into {count!r}; give at least 1")
        await sandbox.settled()
        opened = trio.Event()
        try:
            siblings = await self._open_all(sandbox, count, opened)
        finally:
            opened.set()
        try:
            yield siblings
        finally:
            await self._close_all(siblings)

    async def restore(self, sandbox: Sandbox, snapshot: Snapshot) -> None:
        """Put a sandbox back to a snapshot: all that runs is killed, all that was written since is gone.

        Cancelled: it is restored all the same.
        """
        await sandbox.settled()
        layers = self.layers_of(snapshot)
        ours, theirs = sandbox.options.rootfs, snapshot.rootfs
        if (ours.layers, ours.binds) != (theirs.layers, theirs.binds):
            raise UsageError("this snapshot is of a sandbox with another root file system; open one from it instead")
        sandbox.begin_move()
        change = self._move(sandbox, layers, ClosedError("the sandbox was restored while this ran"), is_sealed=False)
        await sandbox.settled()
        if not change.was_quiet:
            await change.closed.wait()

    def layers_of(self, snapshot: Snapshot) -> Layers:
        """Return the layers of a snapshot of this supervisor. Raises ClosedError or UsageError."""
        if snapshot.owner is not self:
            raise UsageError("this snapshot belongs to another supervisor; save it there, and open what was saved")
        return snapshot.layers

    async def aclose(self) -> None:
        """Wait until every sandbox has moved, and close all snapshots. Shielded."""
        with trio.CancelScope(shield=True):
            while self._tasks:
                await self._idle.wait()
            for snapshot in self._snapshots:
                await snapshot.close()

    # ---- sealing

    async def _copy(self, sandbox: Sandbox) -> Layers:
        """The same of a sandbox in which something runs, by a copy. It does not notice."""
        await sandbox.settled()
        if sandbox.is_quiet():
            return await self._seal(sandbox)
        below = tuple(layer.hold() for layer in shortened(sandbox.layers))
        try:
            return (await self._copies.of_running(sandbox), *below)
        except BaseException:
            await _release(below)
            raise

    async def _seal(
        self, sandbox: Sandbox, after: trio.Event | None = None, early: Callable[[Layers], None] = lambda layers: None
    ) -> Layers:
        """Return the layers of a sandbox with what it wrote on top, each held once.

        It goes on at once, or not before `after` is set. `early` sees them when all that is still to come is that they
        are sealed: what is sent to the launcher then comes after that, and is to be undone when this fails.
        """
        await sandbox.settled()
        sandbox.begin_move()
        try:
            if len(shortened(sandbox.layers)) + len(sandbox.options.rootfs.layers) >= LAYERS_MAX - 1:
                await sandbox.wait_quiet()
                await self._flatten_all(sandbox)
            below = shortened(sandbox.layers)
            layer = await self._sealer.seal(sandbox, lambda first: early((first, *below)))
        except BaseException:
            sandbox.end_move()
            raise
        if (memory := sandbox.slot.give_memory()) is not None:
            layer.charge_to(memory)
        layers = (layer, *(each.hold() for each in below))
        self._spawn(partial(self._move_on, sandbox, tuple(each.hold() for each in layers)), after)
        if upper := worth_flattening(layers):
            self._spawn(partial(self._flatten, tuple(each.hold() for each in upper)))
        return layers

    async def _flatten_all(self, sandbox: Sandbox) -> None:
        if not all(layer.in_memory for layer in sandbox.layers):
            raise UsageError("too many snapshots on disk lie upon each other; save the last one, and open that")
        await self._copies.flatten(sandbox.layers)

    async def _flatten(self, layers: Layers) -> None:
        with contextlib.suppress(SandboxError):  # who needs it gets the error himself
            await self._copies.flatten(layers)
        await _release(layers)

    # ---- moving

    async def _move_on(self, sandbox: Sandbox, layers: Layers) -> None:
        self._move(sandbox, layers, ClosedError("the sandbox was sealed"), is_sealed=True)
        await _release(layers)

    def _move(self, sandbox: Sandbox, layers: Layers, error: ClosedError, *, is_sealed: bool) -> Change:
        """Begin to give a sandbox a new body upon these layers."""
        old = sandbox.leave_body(error)
        self._sandboxes[old.number] = old
        options = replace(sandbox.options, layers=tuple(layer.hold() for layer in layers))
        if options.lifetime_s is not None:
            options = replace(options, lifetime_s=max(0.001, sandbox.ends_at - time.monotonic()))
        change = self.changes.begin(old, is_sealed)
        self._spawn(partial(self._enter, sandbox, options, change))
        self._spawn(partial(self._close_old, change))
        return change

    def _spawn(self, task: Callable[[], Awaitable[None]], after: trio.Event | None = None) -> None:
        async def run() -> None:
            try:
                if after is not None:
                    await after.wait()
                await task()
            finally:
                self._tasks -= 1
                if self._tasks == 0:
                    self._idle.set()
                    self._idle = trio.Event()

        self._tasks += 1
        trio.lowlevel.spawn_system_task(run)

    async def _close_old(self, change: Change) -> None:
        """Close the old body once the new one is there: both at once would be in each other's way."""
        if not change.is_sealed:
            with contextlib.suppress(CgroupError, HostError):  # then it is waited for
                change.was_quiet = change.old.is_quiet()
        await change.started.wait()
        await trio.lowlevel.checkpoint()  # whoever waits for the new body goes first
        if change.is_sealed:
            with contextlib.suppress(SandboxError):  # what stays is removed with the slot
                change.old.remove_leftover()
            with contextlib.suppress(SandboxError):  # its slot is in quarantine then, or will be, and counted there
                self._slots.renew(change.old.slot)
        with contextlib.suppress(SandboxError):
            await self._close(change.old)
        change.closed.set()

    async def _enter(self, sandbox: Sandbox, options: Options, change: Change) -> None:
        """Start a new body and let the sandbox have it; one that cannot be had breaks the sandbox."""
        try:
            fresh = await self._start_patiently(options, change)
            sandbox.enter_body(fresh)
            self._sandboxes[sandbox.number] = sandbox
            if change.is_sealed:
                sandbox.network.go_on(change.old.network)
            allow = change.old.network.allow if change.is_sealed else options.policy.allow
            if allow:
                await sandbox.network.set_allow(allow)
        except SandboxError as error:
            broken = error if isinstance(error, BrokenError | ClosedError) else BrokenError(f"cannot go on: {error}")
            sandbox.break_(broken)
        finally:
            change.started.set()
            await _release(options.layers)
            sandbox.end_move()

    async def _start_patiently(self, options: Options, change: Change) -> Sandbox:
        """Start in another slot, or where there is none, in the old one as soon as that is free."""
        try:
            return await self._start(options)
        except BusyError:
            change.started.set()
            await change.closed.wait()
            return await self._start(options)

    async def _open_all(self, sandbox: Sandbox, count: int, opened: trio.Event) -> list[Sandbox]:
        """Open siblings upon what a sandbox wrote, which is sealed while they begin; it goes on when they are there."""
        siblings: list[Sandbox] = []
        failures: list[SandboxError] = []
        sealing = Sealing()
        options = replace(sandbox.options, layers=(), upon=sealing.layers)

        async def open_one(lease: Lease) -> None:
            try:
                siblings.append(await self._open(options, lease))
            except SandboxError as error:
                failures.append(error)

        leases = await self._admit(options, count)
        try:
            async with sealing, trio.open_nursery() as nursery:
                for lease in leases:
                    nursery.start_soon(open_one, lease)
                try:
                    sealing.done(self._keep(sandbox, await self._seal(sandbox, opened, sealing.found)))
                except SandboxError as error:
                    failures.insert(0, error)
                    nursery.cancel_scope.cancel()
            if failures:
                raise failures[0]
        except BaseException:
            await self._close_all(siblings)
            raise
        return siblings

    async def _close_all(self, sandboxes: list[Sandbox]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for sandbox in sandboxes:
                stack.push_async_callback(self._close, sandbox)


async def _release(layers: Layers) -> None:
    for layer in layers:
        await layer.release()
