"""What a snapshot costs is charged to no slot's next user and to no sibling, and mistakes have typed errors."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import trio

import minisandbox
from minisandbox.errors import ClosedError, SnapshotDamagedError, SnapshotNotFoundError, StoreFullError
from tests.kernel import HAS_MAPPED_MEMORY
from tests.test_snapshots import MIB, text

pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.skipif(not HAS_MAPPED_MEMORY, reason=f"snapshots need Linux 6.3, this is {os.uname().release}"),
]

ROOMY = minisandbox.Limits(disk_bytes=2 << 30, memory_bytes=2 << 30, wall_time_s=60)
LITTLE = minisandbox.Limits(memory_bytes=64 * MIB)


@pytest.mark.slow
async def test_the_next_user_of_a_slot_is_charged_nothing_of_a_large_layer(state_dir: Path) -> None:
    """With two slots in all, the one that wrote a GiB is used again at once, under a limit far below that.

    With the memory group left at the slot (`give_memory`, `renew`) it fails.
    """
    with trio.fail_after(120):
        async with (
            minisandbox.open_supervisor(
                state_dir=state_dir, self_test=False, max_sandboxes=2, max_parked=0
            ) as supervisor,
            supervisor.open_sandbox(limits=ROOMY) as sandbox,
        ):
            wrote = sandbox.slot
            await text(sandbox, "head -c 1073741824 /dev/zero >/big")
            async with await sandbox.snapshot() as snapshot:
                await sandbox.settled()
                async with supervisor.open_sandbox(limits=LITTLE) as other:
                    same_slot = other.slot is wrote
                    usage = (await other.run("head -c 20000000 /dev/zero >/small")).usage
                held = snapshot.memory_bytes

        assert supervisor.quarantined == ()
        assert same_slot
        assert held > (1 << 30) - 2 * MIB
        assert usage.memory_held_bytes is not None
        assert usage.memory_held_bytes < 10 * MIB
        assert 19 * MIB < (usage.memory_peak_bytes or 0) < 40 * MIB


async def test_siblings_are_not_charged_for_each_other(sandbox: minisandbox.Sandbox) -> None:
    """What one writes, reads of what they share, or changes of it counts for itself alone."""
    await text(sandbox, "head -c 30000000 /dev/urandom >/shared")
    async with sandbox.fork(3) as (writer, reader, idle):
        wrote = (await writer.run("echo x >>/shared; head -c 20000000 /dev/zero >/own")).usage
        read = (await reader.run("cat /shared >/dev/null")).usage
        idled = (await idle.run("true")).usage

    peaks = [usage.memory_peak_bytes or 0 for usage in (wrote, read, idled)]
    assert peaks[0] > 46 * MIB
    assert max(peaks[1:]) < 20 * MIB
    assert wrote.disk_bytes > 46 * MIB
    assert max(read.disk_bytes, idled.disk_bytes) < MIB


async def test_a_sibling_at_its_limits_stops_no_other(sandbox: minisandbox.Sandbox) -> None:
    """One that has filled its memory and its processes leaves the others free to lock and write what they share."""
    await text(sandbox, "echo all >/shared")
    async with sandbox.fork(2) as (greedy, other):
        bomb = ":() { : | : & }; : >&- 2>&-"
        with trio.fail_after(60):
            await greedy.run(bomb, limits=minisandbox.Limits(wall_time_s=2.0))
            filled = await greedy.run("head -c 100000000000 /dev/zero >/fill")
            wrote = await text(other, "flock -x /shared sh -c 'echo mine >>/shared'; cat /shared")

    assert not filled.ok
    assert wrote == "all\nmine\n"


async def test_what_is_closed_has_no_state(supervisor: minisandbox.Supervisor) -> None:
    """Neither can it be sealed, forked or put back."""
    async with supervisor.open_sandbox() as sandbox:
        snapshot = await sandbox.snapshot()

    with pytest.raises(ClosedError):
        await sandbox.snapshot()
    with pytest.raises(ClosedError):
        await sandbox.snapshot(freeze=True)
    with pytest.raises(ClosedError):
        await sandbox.restore(snapshot)
    with pytest.raises(ClosedError):
        async with sandbox.fork():
            pass


@pytest.mark.parametrize("name", ["nothing", "sha256:" + "0" * 64, "0" * 12])
async def test_an_unknown_snapshot_is_not_opened(supervisor: minisandbox.Supervisor, name: str) -> None:
    """By name, digest or the first digits of one."""
    with pytest.raises(SnapshotNotFoundError):
        async with supervisor.open_sandbox(snapshot=name):
            pass


@pytest.mark.parametrize("damage", ["manifest", "layer"])
async def test_a_damaged_snapshot_is_not_opened(tmp_path: Path, damage: str) -> None:
    """A manifest that is not as it was written, and a layer that is gone."""
    async with (
        minisandbox.open_supervisor(state_dir=tmp_path, self_test=False) as supervisor,
        supervisor.open_sandbox() as sandbox,
    ):
        await text(sandbox, "echo one >/a")
        async with await sandbox.snapshot() as snapshot:
            stored = await snapshot.save("damaged")
        if damage == "manifest":
            manifest = tmp_path / "snapshots/damaged.json"
            manifest.write_bytes(manifest.read_bytes()[:-20])
        else:
            shutil.rmtree(stored.layers[0].path)
        with pytest.raises(SnapshotDamagedError):
            async with supervisor.open_sandbox(snapshot="damaged"):
                pass
        assert await text(sandbox, "cat /a") == "one\n"


async def test_a_snapshot_that_finds_no_room_can_be_saved_later(tmp_path: Path) -> None:
    """The error is typed, the snapshot and its sandbox are as they were, and the next try is whole."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=755", "small", tmp_path], check=True)
    try:
        async with (
            minisandbox.open_supervisor(state_dir=tmp_path / "state", self_test=False) as supervisor,
            supervisor.open_sandbox() as sandbox,
        ):
            await text(sandbox, "head -c 2000000 /dev/urandom >/a; sha256sum /a >/sum")
            async with await sandbox.snapshot() as snapshot:
                (tmp_path / "ballast").write_bytes(bytes(1_500_000))
                with pytest.raises(StoreFullError):
                    await snapshot.save("later")
                (tmp_path / "ballast").unlink()
                digest = await snapshot.digest()
                assert (await snapshot.save("later")).digest == digest
            async with supervisor.open_sandbox(snapshot="later") as again:
                await text(again, "sha256sum -c /sum")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.slow
async def test_many_sandboxes_of_one_snapshot_at_once(
    supervisor: minisandbox.Supervisor, sandbox: minisandbox.Sandbox
) -> None:
    """64 of them, by fork and by opening: each has what was there, and what it wrote itself, and nothing else."""
    await text(sandbox, "mkdir /d; echo all >/d/all")
    seen = []

    async def look(sibling: minisandbox.Sandbox, number: int) -> None:
        await text(sibling, f"echo {number} >/d/own; echo {number} >/d/{number}")
        seen.append(await text(sibling, "cat /d/own /d/all; ls /d"))

    async def open_one(number: int) -> None:
        async with supervisor.open_sandbox(snapshot=snapshot) as opened:
            await look(opened, number)

    with trio.fail_after(240):
        async with sandbox.fork(64) as siblings, trio.open_nursery() as nursery:
            for number, sibling in enumerate(siblings):
                nursery.start_soon(look, sibling, number)
        async with await sandbox.snapshot() as snapshot, trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(open_one, number)

    assert sorted(f"{number}\nall\n{number}\nall\nown\n" for number in range(64) for _ in range(2)) == sorted(seen)
