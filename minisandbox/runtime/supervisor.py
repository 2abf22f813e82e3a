"""The supervisor: owns the launcher, the pool of slots and every open sandbox of one instance.

Opened first and closed last; when it is closed, or its process dies, nothing of its sandboxes is left running. It never
forks and never reads what a workload wrote.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import trio

from minisandbox.binds import Bind
from minisandbox.errors import (
    BrokenError,
    CgroupError,
    ClosedError,
    DeadlineError,
    HostError,
    StartError,
    UsageError,
)
from minisandbox.images.rootfs import Rootfs, build_rootfs
from minisandbox.images.state import StateDir
from minisandbox.kernel.cgroup import CgroupLayout, CgroupTree, detect_layout
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.ids import claim_ids
from minisandbox.kernel.launcher import STEP_DEADLINE_S, Launcher, open_launcher
from minisandbox.kernel.protocol import SLOT_IDS, Record, stage_name
from minisandbox.kernel.reactor import Reactor
from minisandbox.launcher import binary_path
from minisandbox.policy import Policy, load_policy
from minisandbox.runtime.background import background
from minisandbox.runtime.engines import native
from minisandbox.runtime.handles import Handles
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.slots import Slot, SlotPool
from minisandbox.spec import Limits, Timing

DEFAULT_MAX_SANDBOXES = 1024


class Supervisor:
    """An open supervisor. Make it with `open_supervisor`."""

    def __init__(
        self, *, state: StateDir, reactor: Reactor, launcher: Launcher, slots: SlotPool, handles: Handles
    ) -> None:
        self.state = state
        self._reactor = reactor
        self._launcher = launcher
        self._slots = slots
        self._handles = handles
        self._sandboxes: dict[int, Sandbox] = {}
        self._rootfs: dict[str, Rootfs] = {}
        self._policies: dict[str, Policy] = {}
        self._closed = False
        launcher.on_broken = self._on_launcher_broken

    @property
    def live(self) -> int:
        """How many sandboxes are open."""
        return len(self._sandboxes)

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Slots that were taken out of use, since something of a sandbox could not be proved gone."""
        return tuple(slot.cgroup.name for slot in self._slots.quarantined)

    @contextlib.asynccontextmanager
    async def open_sandbox(
        self,
        *,
        rootfs: str | Rootfs = "host",
        policy: str | Policy = "default",
        limits: Limits | None = None,
        binds: Sequence[Bind] = (),
        hostname: str | None = None,
        env: Mapping[str, str] | None = None,
        lifetime_s: float | None = None,
        terminal: bool = False,
        trace: bool = False,
    ) -> AsyncIterator[Sandbox]:
        """Open a sandbox for the block. `limits` overrides those of the policy, `binds` and `env` add to it.

        `lifetime_s` ends it whatever becomes of its owner; `terminal` lets it have terminals; `trace` fills
        `timing.stages`. Raises StartError with the step that failed, UsageError for what cannot be, BusyError when too
        many are open. Cancelled: nothing is left.
        """
        if self._closed:
            raise ClosedError("this supervisor is closed; open another")
        chosen_rootfs = await self._find_rootfs(rootfs)
        chosen_policy = self._find_policy(policy)
        chosen_limits = chosen_policy.limits.overridden_by(limits)
        begun = time.monotonic()
        slot = await self._slots.acquire()
        slot_s = time.monotonic() - begun
        sandbox: Sandbox | None = None
        try:
            slot.cgroup.configure(chosen_limits)
            with self._handles.bind_fds((*chosen_policy.binds, *binds)) as bind_fds:
                spec = native.StartSpec(
                    slot=slot.number,
                    policy=chosen_policy,
                    limits=chosen_limits,
                    hostname=hostname or chosen_policy.hostname,
                    layer_fds=self._handles.layer_fds(chosen_rootfs),
                    binds=[*self._handles.rootfs_binds(chosen_rootfs), *bind_fds],
                    filter_fds=self._handles.filter_fds(chosen_policy),
                    lifetime_s=lifetime_s,
                    terminal=terminal,
                    trace=trace,
                )
                asked_ns = time.monotonic_ns()
                control = await native.start(self._launcher, spec)
                slot.cgroup.prepare_spare(slot.warden_uid)  # for the first command, while the sandbox starts
            sandbox = Sandbox(
                slot=slot,
                channel=Channel(control, f"the init of slot {slot.number}"),
                reactor=self._reactor,
                null_fd=self._handles.null_fd,
                policy=chosen_policy,
                limits=chosen_limits,
                env={**chosen_rootfs.env, **chosen_policy.env, **(env or {})},
            )
            self._sandboxes[slot.number] = sandbox
            await self._wait_started(sandbox, slot_s, asked_ns)
            yield sandbox
        finally:
            with trio.CancelScope(shield=True):
                await self._close_sandbox(slot, sandbox)

    async def _wait_started(self, sandbox: Sandbox, slot_s: float, asked_ns: int) -> None:
        with trio.move_on_after(STEP_DEADLINE_S) as scope:
            await sandbox.started.wait()
        if scope.cancelled_caught:
            raise DeadlineError(f"a sandbox did not become ready within {STEP_DEADLINE_S:g} s")
        failure = sandbox.start_failure
        if failure is not None:
            raise StartError("cannot start a sandbox", stage_name(failure.stage), failure.error, failure.item)
        sandbox.check_open()
        start_s = (time.monotonic_ns() - asked_ns) * 1e-9
        stages = stage_seconds(sandbox.stages, asked_ns)
        sandbox.timing = Timing(slot_s=slot_s, start_s=start_s, stages=stages)

    async def _close_sandbox(self, slot: Slot, sandbox: Sandbox | None) -> None:
        """Kill what is in a slot and give it back, or put it into quarantine when it cannot be proved empty."""
        self._sandboxes.pop(slot.number, None)
        if sandbox is not None:
            sandbox.disconnect()
        try:
            if sandbox is not None:
                await self._launcher.end(slot.number)
            self._slots.release(slot, sandbox.take_leaves() if sandbox is not None else [])
        except DeadlineError:
            self._slots.quarantine(slot)
            raise

    def _on_launcher_broken(self) -> None:
        for sandbox in list(self._sandboxes.values()):
            sandbox.break_(BrokenError("the launcher is gone, and every sandbox it started with it"))

    async def _find_rootfs(self, rootfs: str | Rootfs) -> Rootfs:
        if isinstance(rootfs, Rootfs):
            return rootfs
        if rootfs not in self._rootfs:
            self._rootfs[rootfs] = await trio.to_thread.run_sync(build_rootfs, self.state, rootfs)
        return self._rootfs[rootfs]

    def _find_policy(self, policy: str | Policy) -> Policy:
        if isinstance(policy, Policy):
            return policy
        if policy not in self._policies:
            self._policies[policy] = load_policy(policy)
        return self._policies[policy]


def stage_seconds(records: Sequence[Record], asked_ns: int) -> dict[str, float]:
    """Return how long each traced stage took, by name, in order."""
    seconds = {}
    for record in records:
        seconds[stage_name(record.stage)] = (record.time_ns - asked_ns) * 1e-9
        asked_ns = record.time_ns
    return seconds


@contextlib.asynccontextmanager
async def open_supervisor(
    *,
    state_dir: Path | None = None,
    max_sandboxes: int = DEFAULT_MAX_SANDBOXES,
    cgroup_layout: CgroupLayout | None = None,
) -> AsyncIterator[Supervisor]:
    """Open a supervisor for the block: at its end every sandbox is closed and nothing is left.

    `state_dir` holds layers and locks (default /var/lib/minisandbox). What a dead supervisor of this state directory
    left is removed first. Raises HostError when this host cannot run sandboxes, and says why.
    """
    if os.geteuid() != 0:
        raise HostError("minisandbox needs root on this host: run it with sudo (a rootless mode is not there yet)")
    if max_sandboxes < 1:
        raise UsageError(f"max_sandboxes is {max_sandboxes}, it must be at least 1")
    async with contextlib.AsyncExitStack() as stack:
        state = StateDir.open(state_dir)
        layout = cgroup_layout or detect_layout()
        CgroupTree.sweep(layout, state.is_alive)
        lock = stack.enter_context(state.open_instance())
        ids = stack.enter_context(contextlib.closing(claim_ids(max_sandboxes)))
        warden_gid = ids.base + SLOT_IDS - 1
        cgroups = CgroupTree.create(layout, lock.id, warden_gid)
        stack.callback(_close_cgroups, cgroups)
        reactor = stack.enter_context(contextlib.closing(Reactor()))
        handles = stack.enter_context(contextlib.closing(Handles()))
        await stack.enter_async_context(background(reactor.run))
        launcher = await open_launcher(
            binary_path(),
            reactor,
            slots=max_sandboxes,
            lock_fd=lock.fd,
            inits_cgroup_fd=cgroups.inits_fd,
            inits_tasks_fds=cgroups.inits_tasks_fds,
            warden_gid=warden_gid,
        )
        stack.push_async_callback(launcher.aclose)
        slots = SlotPool(launcher, cgroups, ids.base, max_sandboxes)
        await stack.enter_async_context(background(slots.serve))
        supervisor = Supervisor(state=state, reactor=reactor, launcher=launcher, slots=slots, handles=handles)
        try:
            yield supervisor
        finally:
            supervisor._closed = True


def _close_cgroups(cgroups: CgroupTree) -> None:
    left = cgroups.close()
    if left:
        raise CgroupError(f"control groups that could not be removed: {', '.join(left)}; the next start tries again")


