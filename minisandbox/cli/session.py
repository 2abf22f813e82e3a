"""Opens the one sandbox that a command line asks for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

import trio

from minisandbox.cli.options import SandboxOptions
from minisandbox.cli.template import open_saved
from minisandbox.images import SnapshotStore, build_rootfs, with_prefix
from minisandbox.images.rootfs import Rootfs
from minisandbox.images.state import StateDir
from minisandbox.runtime.opening import open_supervisor
from minisandbox.runtime.sandbox import Sandbox


@contextlib.asynccontextmanager
async def open_session(chosen: SandboxOptions) -> AsyncIterator[Sandbox]:
    """Open a supervisor for one sandbox, and that sandbox. Cancelled: nothing is left of either."""
    many = 1 if chosen.template is None else 2  # a template takes the place of one
    async with contextlib.AsyncExitStack() as stack:
        supervisor = await stack.enter_async_context(
            open_supervisor(
                state_dir=chosen.state_dir,
                max_sandboxes=many,
                engine=chosen.engine,
                degrade=chosen.degrade,
                reserve_cpus=chosen.reserve_cpus,
                reserve_memory_bytes=chosen.reserve_memory_bytes,
            )
        )
        if chosen.template is not None:
            template = await stack.enter_async_context(open_saved(supervisor, chosen.template))
            opened = supervisor.open_sandbox(
                template=template, policy=chosen.policy, env=chosen.env, trace=chosen.trace, engine=chosen.engine
            )
            yield await stack.enter_async_context(opened)
            return
        rootfs = await trio.to_thread.run_sync(partial(_find_rootfs, supervisor.state, chosen))
        opened = supervisor.open_sandbox(
            rootfs=rootfs,
            policy=chosen.policy,
            binds=chosen.binds,
            env=_environment(chosen, rootfs),
            terminal=chosen.terminal,
            trace=chosen.trace,
            deterministic=chosen.deterministic,
            disk=chosen.disk,
        )
        yield await stack.enter_async_context(opened)


def _find_rootfs(state: StateDir, chosen: SandboxOptions) -> Rootfs:
    if chosen.snapshot is None:
        rootfs = build_rootfs(state, chosen.rootfs)
    else:
        rootfs = SnapshotStore(state).load(chosen.snapshot).as_rootfs()
    return rootfs if chosen.python_prefix is None else with_prefix(state, rootfs, chosen.python_prefix)


def _environment(chosen: SandboxOptions, rootfs: Rootfs) -> dict[str, str]:
    """Return the variables to add: those given, and a PATH with the Python of --python-prefix first."""
    if chosen.python_prefix is None:
        return chosen.env
    path = chosen.policy.env.get("PATH", rootfs.env["PATH"])
    return {"PATH": f"{chosen.python_prefix}/bin:{path}", **chosen.env}
