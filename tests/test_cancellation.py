"""Cancelling and closing, whatever is going on: prompt, and nothing is left but what should be."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest
import trio

from minisandbox import ClosedError, ExitReason, Sandbox, Supervisor, open_supervisor
from tests import observer

PROMPT_S = 10.0
TREE = "sleep 300 & setsid sh -c 'sleep 300 & sleep 300' & (trap '' TERM; sleep 300 & echo on; wait)"


# ---- cancelling


@pytest.mark.enforces("control-groups")
async def test_cancelling_a_run_kills_its_tree_and_nothing_else(sandbox: Sandbox) -> None:
    """Whatever it started, in whatever session, is gone; the other command goes on."""
    async with trio.open_nursery() as nursery:
        other = await observer.start(nursery, sandbox, "echo on; exec sleep 300")
        (survivor,) = observer.workload()
        victim = await observer.start(nursery, sandbox, TREE)
        doomed = [process for process in observer.workload() if process != survivor]
        with observer.watched(doomed) as pidfds:
            victim.scope.cancel()
            await victim.wait(PROMPT_S)
            await observer.wait_ended(pidfds)
        again = await sandbox.run(["echo", "alive"])
        alone = observer.workload()
        other.scope.cancel()

    assert len(doomed) >= 5
    assert (None, None) == (victim.result, victim.error)
    assert [survivor] == alone
    assert again.stdout == b"alive\n"


async def test_a_timeout_of_the_caller_is_one(sandbox: Sandbox) -> None:
    """trio's own deadline ends a command that is deaf to signals, and says so in trio's own way."""
    with trio.move_on_after(0.2) as scope:
        await sandbox.run("trap '' TERM INT; while :; do :; done")

    assert scope.cancelled_caught
    await observer.wait_no_workload(sandbox)


async def test_a_cancelled_run_gives_everything_back(sandbox: Sandbox) -> None:
    """Twenty of them, cancelled at different moments, leave no descriptor, no zombie and a clean account."""
    await sandbox.run(["true"], stdin=b"x")
    before = observer.descriptors()
    for milliseconds in range(20):
        with trio.move_on_after(milliseconds / 1000):
            await sandbox.run("head -c 20M /dev/zero | cat >&2; exec sleep 300", stdin=b"x" * 1_000_000)
    await sandbox.run(["true"], stdin=b"x")
    usage = (await sandbox.run(["true"])).usage

    assert before == observer.descriptors()
    assert usage.memory_peak_bytes is None or usage.memory_peak_bytes < 8 << 20
    await observer.wait_no_workload(sandbox)
    assert [] == observer.zombies()


@pytest.mark.parametrize("max_parked", [0, 8])
async def test_a_start_that_is_cancelled_leaves_nothing(state_dir: Path, max_parked: int) -> None:
    """At whatever moment: no init, no slot in use, and the next start works."""
    async with open_supervisor(state_dir=state_dir, max_parked=max_parked) as supervisor:
        async with supervisor.open_sandbox():
            pass
        for step in range(30):
            with trio.move_on_after(step / 5000):
                async with supervisor.open_sandbox():
                    await trio.sleep_forever()
        async with supervisor.open_sandbox() as sandbox:
            result = await sandbox.run(["echo", "alive"])
            inits = len(observer.inits())

    assert (b"alive\n", ()) == (result.stdout, supervisor.quarantined)
    assert 1 <= inits <= 1 + max_parked
    assert supervisor.live == 0


@pytest.mark.parametrize("direction", ["read", "write"])
async def test_a_transfer_that_is_cancelled_leaves_the_sandbox_usable(sandbox: Sandbox, direction: str) -> None:
    """And no descriptor of it stays open."""
    data = bytes(32 << 20)
    await sandbox.write_file("/tmp/file", data)

    async def transfer() -> None:
        if direction == "read":
            await sandbox.read_file("/tmp/file")
        else:
            await sandbox.write_file("/tmp/other", data)

    await transfer()
    before = observer.descriptors()
    for step in range(12):
        with trio.move_on_after(step / 1000):
            await transfer()
    result = await sandbox.run(["echo", "alive"])

    assert result.stdout == b"alive\n"
    assert before == observer.descriptors()


# ---- closing


async def test_closing_kills_what_runs_and_is_prompt(supervisor: Supervisor) -> None:
    """Reports 17, 36, tool report 37: commands, background processes and locked directories do not hold it up."""
    async with trio.open_nursery() as nursery:
        with contextlib.ExitStack() as stack:
            async with supervisor.open_sandbox() as sandbox:
                await sandbox.run("mkdir -p /tmp/a/b && chmod 000 /tmp/a; (sleep 300 &); exit 1")
                running = await observer.start(nursery, sandbox, TREE)
                pidfds = stack.enter_context(observer.watched([*observer.inits(), *observer.workload()]))
                begun = trio.current_time()
            took = trio.current_time() - begun
            ended = observer.ended(pidfds)
        await running.wait()

    assert len(ended) >= 7
    assert all(ended)
    assert isinstance(running.error, ClosedError)
    assert took < PROMPT_S


async def test_closing_is_shielded(state_dir: Path) -> None:
    """Cancelled in the middle of everything, the block is left when all its processes are dead and its slot is free."""
    with contextlib.ExitStack() as stack:
        async with open_supervisor(state_dir=state_dir, max_sandboxes=1, max_parked=0) as supervisor:
            with trio.CancelScope() as scope:
                async with supervisor.open_sandbox() as sandbox, trio.open_nursery() as nursery:
                    await observer.start(nursery, sandbox, TREE)
                    pidfds = stack.enter_context(observer.watched([*observer.inits(), *observer.workload()]))
                    scope.cancel()
            ended = observer.ended(pidfds)
            async with supervisor.open_sandbox() as sandbox:
                again = await sandbox.run(["echo", "alive"])

    assert all(ended)
    assert again.stdout == b"alive\n"


async def test_an_exception_in_the_block_leaves_nothing(supervisor: Supervisor) -> None:
    """Report 15: it comes out as it is, and mounts, processes and sandboxes are as many as before."""
    mounts = Path("/proc/self/mounts").read_text()
    with pytest.raises(ZeroDivisionError):
        async with supervisor.open_sandbox() as sandbox:
            await sandbox.run("(sleep 300 &)")
            raise ZeroDivisionError

    assert ([], 0, mounts) == (observer.inits(), supervisor.live, Path("/proc/self/mounts").read_text())


@pytest.mark.enforces("control-groups")
async def test_a_frozen_command_is_killed(sandbox: Sandbox) -> None:
    """Tool report 35: a tree that somebody froze ends as promptly as any other."""
    async with trio.open_nursery() as nursery:
        running = await observer.start(nursery, sandbox, "echo on; exec sleep 300")
        (process,) = observer.workload()
        leaf = observer.leaf_of(process)
        if leaf is None:
            pytest.skip("no unified hierarchy: the tree cannot be frozen")
        (leaf / "cgroup.freeze").write_text("1")
        running.scope.cancel()
        await running.wait(PROMPT_S)
        result = await sandbox.run(["echo", "alive"])

    assert result.stdout == b"alive\n"


async def test_kill_all_kills_background_processes_too(sandbox: Sandbox) -> None:
    """Commands that run end as killed, and the next one runs."""
    await sandbox.run("sleep 300 & setsid sleep 300 &")
    async with trio.open_nursery() as nursery:
        running = await observer.start(nursery, sandbox, TREE)
        with observer.watched(observer.workload()) as pidfds:
            await sandbox.kill_all()
            await observer.wait_ended(pidfds)
        await running.wait()
    again = await sandbox.run(["echo", "alive"])

    assert running.result is not None
    assert (ExitReason.SIGNALED, signal.SIGKILL) == (running.result.exit_reason, running.result.signal)
    assert again.stdout == b"alive\n"


async def test_a_supervisor_closes_the_sandboxes_that_are_open(state_dir: Path) -> None:
    """Their owners find them closed: commands end with ClosedError, and leaving the block is no error."""
    errors: list[BaseException | None] = []

    async def own(supervisor: Supervisor, started: trio.Event) -> None:
        async with supervisor.open_sandbox() as sandbox, trio.open_nursery() as nursery:
            running = await observer.start(nursery, sandbox, TREE)
            pidfds.extend(stack.enter_context(observer.watched(observer.workload())))
            started.set()
            errors.append((await running.wait()).error)
            with pytest.raises(ClosedError):
                await sandbox.run(["true"])

    with contextlib.ExitStack() as stack:
        pidfds: list[int] = []
        async with trio.open_nursery() as nursery:
            async with open_supervisor(state_dir=state_dir) as supervisor:
                started = trio.Event()
                nursery.start_soon(own, supervisor, started)
                with trio.fail_after(PROMPT_S):
                    await started.wait()
            ended = observer.ended(pidfds)

    assert all(ended)
    assert [ClosedError] == [type(error) for error in errors]
