"""Sandboxes that write to the file system of the state directory, and what becomes of their directories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.errors import HostError, UsageError
from tests.kernel import HAS_DETACHED_LAYERS

pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.skipif(not HAS_DETACHED_LAYERS, reason=f"disks need Linux 6.15, this is {os.uname().release}"),
]

MIB = 1 << 20
DEFAULT = minisandbox.load_policy("default")
UNLIMITED = msgspec.structs.replace(
    DEFAULT, limits=msgspec.structs.replace(DEFAULT.limits, disk_bytes=None, disk_inodes=None)
)
"""What is written to the state directory is not limited."""


async def text(sandbox: minisandbox.Sandbox, command: str) -> str:
    """Run a command that must succeed, and return what it said."""
    result = await sandbox.run(command)
    assert result.ok, result
    return result.stdout.decode()


def scratch(state_dir: Path) -> list[str]:
    """Return what lies in directories of sandboxes."""
    return sorted(str(path.relative_to(state_dir)) for path in (state_dir / "tmp").glob("*/*"))


@pytest.fixture
async def on_disk(supervisor: minisandbox.Supervisor) -> AsyncIterator[minisandbox.Sandbox]:
    """An open sandbox that writes to the state directory."""
    async with supervisor.open_sandbox(disk="state", policy=UNLIMITED) as opened:
        yield opened


async def test_what_is_written_lies_on_disk_and_is_gone_at_the_end(
    supervisor: minisandbox.Supervisor, state_dir: Path
) -> None:
    """It is in a directory that only root can search, counts for no memory, and goes with the sandbox."""
    async with supervisor.open_sandbox(disk="state", policy=UNLIMITED) as sandbox:
        await text(sandbox, "head -c 30000000 /dev/zero >/big; chmod 4755 /big; chown 7:8 /big; sync")
        (top,) = (state_dir / "tmp").glob("*/*")
        status = (top / "u/big").stat()
        usage = (await sandbox.run("true")).usage
        assert (status.st_size, status.st_uid, status.st_gid) == (30_000_000, 7, 8)
        assert top.stat().st_mode & 0o77 == 0
        assert (usage.disk_bytes, usage.disk_inodes) == (0, 0)

    assert scratch(state_dir) == []


async def test_snapshots_forks_and_restores_work_on_disk(
    supervisor: minisandbox.Supervisor, on_disk: minisandbox.Sandbox, state_dir: Path
) -> None:
    """They show what was there, are sealed by nothing but a move, and the digest is that of one in memory."""
    fill = "mkdir /d; echo one >/d/a; ln /d/a /d/b; ln -s a /d/c; touch -d 2020-01-01 /d /d/a; chown 5 /d/a; rm -r /srv"
    await text(on_disk, fill)
    async with await on_disk.snapshot() as snapshot:
        await text(on_disk, "echo two >>/d/a; rm /d/b; mkdir /srv")
        async with on_disk.fork(2) as (first, second):
            await text(first, "echo three >>/d/a")
            forked = await text(second, "cat /d/a; ls /d")
        await on_disk.restore(snapshot)
        restored = await text(on_disk, "cat /d/a; ls /d; ls -d /srv || true")
        async with supervisor.open_sandbox() as memory:
            await text(memory, fill)
            async with await memory.snapshot() as same:
                assert await same.digest() == await snapshot.digest()
        async with supervisor.open_sandbox(snapshot=await snapshot.save()) as saved:
            assert await text(saved, "cat /d/b") == "one\n"
        in_memory = [layer.in_memory for layer in snapshot.layers]
    await on_disk.kill_all()

    assert (forked, restored) == ("one\ntwo\na\nc\n", "one\na\nb\nc\n")
    assert in_memory == [False]


async def test_directories_of_snapshots_go_with_the_last_who_needs_them(
    supervisor: minisandbox.Supervisor, state_dir: Path
) -> None:
    """The snapshot outlives its sandbox, and a sandbox upon it outlives the snapshot."""
    async with supervisor.open_sandbox(disk="state", policy=UNLIMITED) as sandbox:
        await text(sandbox, "echo kept >/a")
        snapshot = await sandbox.snapshot()
    async with supervisor.open_sandbox(snapshot=snapshot, disk="state", policy=UNLIMITED) as other:
        await snapshot.close()
        assert await text(other, "cat /a") == "kept\n"
        assert len(scratch(state_dir)) == 2

    assert scratch(state_dir) == []


@pytest.mark.usefixtures("freezer")
async def test_a_running_sandbox_on_disk_is_copied(on_disk: minisandbox.Sandbox) -> None:
    """The copy lies in memory, and the sandbox goes on."""
    await text(on_disk, "echo one >/a; (sleep 1000 &) >&- 2>&-")
    async with await on_disk.snapshot(freeze=True) as snapshot:
        assert [layer.in_memory for layer in snapshot.layers] == [True]
        await on_disk.restore(snapshot)
        assert await text(on_disk, "cat /a") == "one\n"


async def test_limits_that_cannot_be_enforced_are_refused(supervisor: minisandbox.Supervisor, state_dir: Path) -> None:
    """Unless their name was given: then every result says so."""
    with pytest.raises(HostError, match="disk-limit"):
        async with supervisor.open_sandbox(disk="state"):
            pass
    async with (
        minisandbox.open_supervisor(state_dir=state_dir, self_test=False, degrade=("disk-limit",)) as degraded,
        degraded.open_sandbox(disk="state") as sandbox,
        degraded.open_sandbox() as memory,
    ):
        assert (await sandbox.run("true")).degraded == ("disk-limit",)
        assert (await memory.run("true")).degraded == ()


async def test_what_cannot_be_is_refused(supervisor: minisandbox.Supervisor) -> None:
    """Names of no disk, and engines that have none."""
    with pytest.raises(UsageError, match="memory or state"):
        async with supervisor.open_sandbox(disk="floppy"):
            pass
    with pytest.raises(UsageError, match="native engine"):
        async with supervisor.open_sandbox(disk="state", engine="nsjail", policy=UNLIMITED):
            pass


DIES = """
import sys, trio, minisandbox
from pathlib import Path
async def main():
    async with minisandbox.open_supervisor(state_dir=Path(sys.argv[1]), self_test=False, degrade=("disk-limit",)) as s:
        async with s.open_sandbox(disk="state") as sandbox:
            await sandbox.run("head -c 1000000 /dev/zero >/big")
            snapshot = await sandbox.snapshot()
            await sandbox.run("mkdir -p /d/e/f")
            print("ready", flush=True)
            await trio.sleep_forever()
trio.run(main)
"""


async def test_whoever_comes_after_a_supervisor_that_was_killed_removes_them(tmp_path: Path) -> None:
    """Directories of sandboxes and of layers, and nothing of those that are alive."""
    with subprocess.Popen([sys.executable, "-c", DIES, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        async with minisandbox.open_supervisor(state_dir=tmp_path, self_test=False):
            assert len(scratch(tmp_path)) == 2
        process.send_signal(signal.SIGKILL)
    with trio.fail_after(30):
        async with minisandbox.open_supervisor(state_dir=tmp_path, self_test=False):
            pass

    assert scratch(tmp_path) == []
