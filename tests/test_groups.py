"""Control groups are lent: a sandbox that waits has none, and whatever runs or is charged is in one with its limits."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from minisandbox import ExitReason, Limits, Sandbox, Supervisor, open_supervisor
from minisandbox.kernel.host import read_host_facts
from minisandbox.runtime import groups
from tests import observer
from tests.kernel import HAS_MAPPED_MEMORY

pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.skipif(
        not {"memory", "pids"} <= read_host_facts().cgroup_controllers.keys(), reason="nothing is charged on this host"
    ),
]

MIB = 1 << 20
HOG = "head -c 100000000 /dev/zero | tail -c 90000000 | wc -c"
FORKS = "i=0; while [ $i -lt 20 ]; do sleep 20 & i=$((i+1)); done; wait"


@pytest.fixture
async def supervisor(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    """One whose groups come back as soon as another sandbox needs some."""
    monkeypatch.setattr(groups, "KEPT", 0)
    monkeypatch.setattr(groups, "SETTLED_S", 0.0)
    with trio.fail_after(60):
        async with open_supervisor(state_dir=state_dir, max_parked=0, self_test=False) as opened:
            yield opened


def keeps_groups(sandbox: Sandbox) -> bool:
    """Return whether a sandbox still has groups after others needed some."""
    sandbox.slot.groups.consider(sandbox.slot)
    sandbox.slot.groups.collect()
    return sandbox.slot.group_name != ""


async def wait_given_back(supervisor: Supervisor, *waiting: Sandbox) -> None:
    """Let others need groups until none of these has some: the kernel counts late what was given back to it."""
    async with supervisor.open_sandbox() as other:
        await observer.wait_until(lambda: not any(map(keeps_groups, waiting)), lambda: other.run(["true"]))


async def wait_quiet(sandbox: Sandbox) -> None:
    """Wait until all that ran in a sandbox is gone, so that nothing else keeps its groups."""
    await observer.wait_until(sandbox.is_quiet, trio.lowlevel.checkpoint)


def file_of(supervisor: Supervisor, sandbox: Sandbox, counter: str, name: str) -> str:
    """Return what the host sees in a file of a sandbox's groups, beside one of its counters."""
    counters = Path(supervisor.counter_files()[counter].format(group=sandbox.slot.group_name))
    return counters.with_name(name).read_text().strip()


async def test_a_sandbox_that_waits_has_no_groups_and_can_run_again(supervisor: Supervisor) -> None:
    """Whoever runs has some, and those that wait need none."""
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(supervisor.open_sandbox()) for _ in range(5)]
        for _ in range(2):
            for sandbox in crowd:
                assert (await sandbox.run("echo $((6 * 7))")).stdout == b"42\n"
                assert sandbox.slot.group_name
            await wait_given_back(supervisor, *crowd)


async def test_limits_hold_in_borrowed_groups(supervisor: Supervisor) -> None:
    """Those of whoever has them now, not of who had them before."""
    names: list[str] = []
    small, large = Limits(memory_bytes=32 * MIB, processes=8), Limits(memory_bytes=512 * MIB, processes=64)
    async with supervisor.open_sandbox(limits=small) as first, supervisor.open_sandbox(limits=large) as second:
        for _ in range(2):
            assert ExitReason.MEMORY is (await first.run(HOG)).exit_reason
            assert "8" == file_of(supervisor, first, "processes", "pids.max")
            names.append(first.slot.group_name)
            await wait_given_back(supervisor, first, second)
            assert b"90000000\n" == (await second.run(HOG)).stdout
            assert "64" == file_of(supervisor, second, "processes", "pids.max")
            names.append(second.slot.group_name)
            await wait_given_back(supervisor, first, second)
        result = await first.run(FORKS)

    assert ExitReason.PROCESSES is result.exit_reason
    assert len(set(names)) < len(names)  # some were lent to both: the limits came with the sandbox


@pytest.mark.slow
async def test_a_sandbox_that_holds_memory_keeps_its_groups(supervisor: Supervisor) -> None:
    """A file in memory stays charged where it was written, and counts for the limit as long as it is there."""
    async with supervisor.open_sandbox(limits=Limits(memory_bytes=64 * MIB)) as sandbox:
        await sandbox.run("head -c 700000 /dev/zero >/tmp/held")
        name = sandbox.slot.group_name
        with trio.move_on_after(4) as patience:
            await wait_given_back(supervisor, sandbox)
        assert patience.cancelled_caught
        await sandbox.run("head -c 43000000 /dev/zero >>/tmp/held")
        await wait_quiet(sandbox)
        assert keeps_groups(sandbox)
        assert name == sandbox.slot.group_name
        result = await sandbox.run("rm -f /tmp/held")
        await wait_given_back(supervisor, sandbox)

    held = result.usage.memory_held_bytes
    assert held is not None
    assert held > 43 * 10**6


async def test_a_sandbox_in_which_something_runs_keeps_its_groups(supervisor: Supervisor) -> None:
    """Also where it was left in the background; when that is killed, the groups can go."""
    async with supervisor.open_sandbox() as sandbox:
        await sandbox.run("sleep 1000 >/dev/null 2>&1 & echo up")
        name = sandbox.slot.group_name
        assert keeps_groups(sandbox)
        assert name == sandbox.slot.group_name
        await sandbox.kill_all()
        await wait_given_back(supervisor, sandbox)


async def test_a_sandbox_in_which_a_command_begins_keeps_its_groups(supervisor: Supervisor) -> None:
    """From the moment at which its leaf is there: nobody runs in it yet, but soon somebody will."""
    async with supervisor.open_sandbox() as sandbox:
        await sandbox.run(["true"])
        await wait_given_back(supervisor, sandbox)
        command = sandbox.new_command(sandbox.limits)
        kept = keeps_groups(sandbox)
        sandbox.finish(command)

    assert kept


async def test_names_of_many_files_keep_the_groups(supervisor: Supervisor) -> None:
    """Empty files are memory of the kernel, which no counter of files shows."""
    async with supervisor.open_sandbox() as sandbox:
        await sandbox.run("cd /tmp; i=0; while [ $i -lt 1000 ]; do : >$i; i=$((i+1)); done")
        await wait_quiet(sandbox)

        assert keeps_groups(sandbox)


@pytest.mark.slow
async def test_little_by_little_keeps_the_groups_too(supervisor: Supervisor) -> None:
    """Who leaves a little in each group that it gives back does so a few times and no more."""
    async with supervisor.open_sandbox() as sandbox:
        for turn in range(40):
            made = await sandbox.run(f"cd /tmp; i=0; while [ $i -lt 14 ]; do : >{turn}.$i; i=$((i+1)); done")
            assert made.ok
            with trio.move_on_after(4) as patience:
                await wait_given_back(supervisor, sandbox)
            if patience.cancelled_caught:
                break

        assert 0 < turn < 39
        assert sandbox.slot.residue_bytes <= groups.RESIDUES_BYTES


@pytest.mark.usefixtures("freezer")
async def test_frozen_groups_and_those_that_were_given_away_are_not_lent(supervisor: Supervisor) -> None:
    """Nobody else would run in them."""
    async with supervisor.open_sandbox() as sandbox:
        await sandbox.run(["true"])
        group = sandbox.slot.cgroup
        group.freeze(1)
        await wait_quiet(sandbox)
        assert keeps_groups(sandbox)
        group.freeze(0)
        await wait_given_back(supervisor, sandbox)
        await sandbox.run(["true"])
        memory = sandbox.slot.give_memory()
        assert keeps_groups(sandbox)

    assert memory is not None


async def test_a_sandbox_without_groups_can_be_closed_and_its_slot_used(supervisor: Supervisor) -> None:
    """Nothing of it is left to prove."""
    for _ in range(3):
        async with supervisor.open_sandbox() as sandbox:
            assert (await sandbox.run(["true"])).ok
            await wait_given_back(supervisor, sandbox)

    assert () == supervisor.quarantined


@pytest.mark.skipif(not HAS_MAPPED_MEMORY, reason=f"snapshots need Linux 6.3, this is {os.uname().release}")
async def test_a_snapshot_of_a_sandbox_without_groups_has_its_files(supervisor: Supervisor) -> None:
    """What it wrote earlier is there, and what its forks write is theirs."""
    async with supervisor.open_sandbox() as sandbox:
        await sandbox.run("mkdir /tmp/d")
        await wait_given_back(supervisor, sandbox)
        async with sandbox.fork(2) as forks:
            seen = [(await fork.run("ls /tmp; echo x >/tmp/d/x; cat /tmp/d/x")).stdout for fork in forks]

        assert [b"d\nx\n"] * 2 == seen
        assert (await sandbox.run("ls /tmp /tmp/d")).stdout == b"/tmp:\nd\n\n/tmp/d:\n"
