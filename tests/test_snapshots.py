"""Snapshots: sealed in place, opened, forked, restored, charged to themselves, and gone without a trace."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

import minisandbox
from minisandbox.errors import BusyError, ClosedError, DeadlineError, HostError, UsageError
from tests import observer
from tests.kernel import HAS_MAPPED_MEMORY

pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.skipif(not HAS_MAPPED_MEMORY, reason=f"snapshots need Linux 6.3, this is {os.uname().release}"),
]

MIB = 1 << 20
LAG_BYTES = 2 * MIB
"""Counters of memory are late by so much."""


async def text(sandbox: minisandbox.Sandbox, command: str) -> str:
    """Run a command that must succeed, and return what it said."""
    result = await sandbox.run(command)
    assert result.ok, result
    return result.stdout.decode()


async def test_a_snapshot_has_what_was_written_and_not_what_came_later(
    supervisor: minisandbox.Supervisor, sandbox: minisandbox.Sandbox
) -> None:
    """Contents, owners, modes, links and removals are all there, in any other sandbox."""
    await text(
        sandbox,
        "mkdir /d; echo one >/d/a; chown 7:8 /d/a; chmod 640 /d/a; ln /d/a /d/hard; ln -s a /d/soft; rm /etc/passwd",
    )
    async with await sandbox.snapshot() as snapshot:
        await text(sandbox, "echo two >/d/a; rm /d/soft; echo new >/etc/passwd")
        async with supervisor.open_sandbox(snapshot=snapshot) as other:
            said = await text(other, "cat /d/soft; stat -c '%u %g %a %h' /d/hard; ls -d /etc/passwd || true")

    assert said == "one\n7 8 640 2\n"


@pytest.mark.qemu
async def test_the_original_goes_on_after_a_snapshot(sandbox: minisandbox.Sandbox) -> None:
    """It has its files, can change them, and keeps its number of layers of history apart from its disk usage."""
    await text(sandbox, "head -c 1000000 /dev/zero >/big; echo one >/a")
    async with await sandbox.snapshot():
        result = await sandbox.run("cat /a; echo two >>/a; cat /a; stat -c %s /big")

    assert (result.stdout, result.usage.disk_bytes < MIB // 2) == (b"one\none\ntwo\n1000000\n", True)


@pytest.mark.qemu
async def test_siblings_cannot_see_or_change_each_other(sandbox: minisandbox.Sandbox) -> None:
    """What one of them writes or removes is there for none of the others, nor for the original."""
    await text(sandbox, "mkdir /d; echo all >/d/all")
    async with sandbox.fork(3) as siblings:
        for number, sibling in enumerate(siblings):
            await text(sibling, f"echo {number} >/d/all; echo >/d/{number}; rm -r /srv")
        seen = [await text(sibling, "cat /d/*; ls /d") for sibling in siblings]
        original = await text(sandbox, "cat /d/all; ls /d; ls -d /srv")

    assert seen == [f"\n{number}\n{number}\nall\n" for number in range(3)]
    assert original == "all\nall\n/srv\n"


async def test_siblings_cannot_lock_each_other_out(sandbox: minisandbox.Sandbox) -> None:
    """A lock on a file that they share is on an inode of each one's own."""
    await text(sandbox, "echo >/shared")
    async with sandbox.fork(2) as (first, second):
        await text(first, "flock -x /shared sleep 1000 >&- 2>&- & until ! flock -n /shared true; do sleep 0.01; done")
        result = await second.run("flock -n /shared true")

    assert result.ok, result


async def test_nothing_can_be_sealed_while_it_is_open_for_writing(sandbox: minisandbox.Sandbox) -> None:
    """Whoever holds a descriptor, and wherever: the kernel refuses. Once sealed, it cannot be opened for writing."""
    await text(sandbox, "echo one >/a")
    disk_fd = await sandbox.open_disk()
    try:
        file_fd = os.open("u/a", os.O_WRONLY, dir_fd=disk_fd)
        with pytest.raises(BusyError, match="open for writing"):
            await sandbox.snapshot()
        os.close(file_fd)
        async with await sandbox.snapshot():
            with pytest.raises(OSError, match="Read-only file system"):
                os.open("u/a", os.O_WRONLY, dir_fd=disk_fd)
            assert await text(sandbox, "cat /a") == "one\n"
    finally:
        os.close(disk_fd)


async def test_siblings_of_what_cannot_be_sealed_are_gone(
    supervisor: minisandbox.Supervisor, sandbox: minisandbox.Sandbox
) -> None:
    """They are asked for before it is known, from the second seal on; nobody gets them, and the sandbox goes on."""
    async with sandbox.fork() as (first,):
        assert (await first.run(["true"])).ok
    await text(sandbox, "echo one >/a")
    disk_fd = await sandbox.open_disk()
    file_fd = os.open("u/a", os.O_WRONLY, dir_fd=disk_fd)
    os.close(disk_fd)
    try:
        with pytest.raises(BusyError, match="open for writing"):
            async with sandbox.fork(3):
                pass
    finally:
        os.close(file_fd)

    assert (1, ()) == (supervisor.live, supervisor.quarantined)
    async with sandbox.fork() as (other,):
        assert await text(other, "cat /a") == "one\n"


async def test_removed_files_that_an_overlay_remembers_are_not_open_files(sandbox: minisandbox.Sandbox) -> None:
    """It does as long as it knows another name of one; then the kernel would not let the disk become read-only."""
    await text(sandbox, "mkdir /d; echo one >/d/a; ln /d/a /b; cat /d/a /b; rm -r /d")

    async with await sandbox.snapshot():
        assert await text(sandbox, "cat /b; ls -d /d || true") == "one\n"


async def test_a_cancelled_snapshot_or_fork_leaves_a_sandbox_that_can_be_used(sandbox: minisandbox.Sandbox) -> None:
    """Cancelled at once, and somewhere on the way."""
    await text(sandbox, "echo one >/a")
    for seconds in (0, 0.001, 0.003):
        with trio.move_on_after(seconds):
            async with await sandbox.snapshot():
                pass
        with trio.move_on_after(seconds):
            async with sandbox.fork(2):
                pass

    assert await text(sandbox, "cat /a") == "one\n"


async def test_restoring_kills_what_runs_and_takes_back_what_was_written(sandbox: minisandbox.Sandbox) -> None:
    """The sandbox is as it was at the snapshot, also when a command runs; that one ends with an error."""
    await text(sandbox, "echo one >/a")
    async with await sandbox.snapshot() as snapshot, trio.open_nursery() as nursery:
        ended = trio.Event()

        async def interrupted() -> None:
            with pytest.raises(ClosedError, match="restored"):
                await sandbox.run("echo two >/a; touch /started; exec sleep 1000")
            ended.set()

        nursery.start_soon(interrupted)
        with trio.fail_after(20):
            await text(sandbox, "until [ -e /started ]; do sleep 0.01; done; echo three >/b; (sleep 1000 &) >&- 2>&-")
            await sandbox.restore(snapshot)
            await ended.wait()
        said = await text(sandbox, "cat /a; ls /started /b 2>/dev/null || true; ls /proc | grep -c '^[0-9]'")

    assert said.split() == ["one", "4"]  # init, the shell, ls and grep


async def test_counters_begin_anew_after_restoring(sandbox: minisandbox.Sandbox) -> None:
    """Disk and memory that were used since the snapshot are free again."""
    async with await sandbox.snapshot() as snapshot:
        await text(sandbox, "head -c 20000000 /dev/zero >/big")
        await sandbox.restore(snapshot)
        usage = (await sandbox.run("true")).usage

    assert usage.memory_held_bytes is not None
    assert (usage.memory_held_bytes < 10 * MIB, usage.disk_bytes < MIB) == (True, True)


async def test_the_memory_of_a_snapshot_is_its_own(
    supervisor: minisandbox.Supervisor, sandbox: minisandbox.Sandbox
) -> None:
    """It is shown, charged to nobody who opens or reads it, and free once the last who needs it is gone."""
    await text(sandbox, "head -c 50000000 /dev/urandom >/big")
    snapshot = await sandbox.snapshot()
    held = snapshot.memory_bytes
    async with supervisor.open_sandbox(snapshot=snapshot) as other:
        read = (await other.run("cat /big >/dev/null; exec cat /big >/dev/null")).usage
        original = (await sandbox.run("cat /big >/dev/null")).usage
        await snapshot.close()
        assert await text(other, "stat -c %s /big") == "50000000\n"

    assert abs(held - 50_000_000) < LAG_BYTES
    assert (read.memory_peak_bytes or 0) + (read.memory_held_bytes or 0) < 20 * MIB
    assert (original.memory_peak_bytes or 0) + (original.memory_held_bytes or 0) < 20 * MIB


async def test_pages_that_readers_add_to_a_layer_do_not_cost_them_their_slot(state_dir: Path) -> None:
    """Mapping a hole makes pages in the layer: the slot that is charged for them is given back clean all the same."""
    async with (
        minisandbox.open_supervisor(state_dir=state_dir, self_test=False, max_sandboxes=2, max_parked=0) as supervisor,
        supervisor.open_sandbox() as sandbox,
    ):
        await text(sandbox, "truncate -s 30000000 /hole")
        async with await sandbox.snapshot() as snapshot:
            before = snapshot.memory_bytes
            read = "import mmap; f = open('/hole'); m = mmap.mmap(f.fileno(), 0, prot=1); print(sum(m[::4096]))"
            async with supervisor.open_sandbox(snapshot=snapshot) as reader:
                assert (await reader.run(["python3", "-c", read])).stdout == b"0\n"
            with trio.fail_after(30):
                async with supervisor.open_sandbox(snapshot=snapshot) as other:
                    held = (await other.run("true")).usage.memory_held_bytes
            grown = snapshot.memory_bytes - before

        assert supervisor.quarantined == ()
        assert held is not None
        assert held < 10 * MIB
        assert grown > 25_000_000


async def test_a_snapshot_needs_a_quiet_sandbox(sandbox: minisandbox.Sandbox) -> None:
    """What still runs is named, and the sandbox goes on undisturbed."""
    await text(sandbox, "(sleep 1000 &) >&- 2>&-")

    with pytest.raises(BusyError, match="sleep still run"):
        await sandbox.snapshot()
    await sandbox.kill_all()
    async with await sandbox.snapshot():
        assert await text(sandbox, "echo on") == "on\n"


@pytest.mark.usefixtures("freezer")
async def test_a_frozen_sandbox_is_copied_at_one_moment_and_goes_on(
    supervisor: minisandbox.Supervisor, sandbox: minisandbox.Sandbox
) -> None:
    """Two files that are always written one after the other differ by one step at most; the writer lives on."""
    writer = "i=0; while :; do i=$((i+1)); echo $i >/a.new; mv /a.new /a; echo $i >/b.new; mv /b.new /b; done"
    await text(sandbox, f"ln -s x /soft; echo 1 >/one; ln /one /two; chmod 4755 /one; ({writer}) >&- 2>&- <&- &")
    with trio.fail_after(60):
        await text(sandbox, "until [ -e /b ]; do sleep 0.01; done")
        for _ in range(3):
            async with (
                await sandbox.snapshot(freeze=True) as snapshot,
                supervisor.open_sandbox(snapshot=snapshot) as other,
            ):
                a, b, *rest = (await text(other, "cat /a /b; stat -c '%a %h' /two; readlink /soft")).split()
            assert 0 <= int(a) - int(b) <= 1
            assert rest == ["4755", "2", "x"]
        now = int(await text(sandbox, "cat /b"))
        await text(sandbox, f"until [ $(cat /b) -gt {now} ]; do sleep 0.01; done")


async def test_long_chains_are_flattened(supervisor: minisandbox.Supervisor, sandbox: minisandbox.Sandbox) -> None:
    """Forty snapshots of one sandbox: more than an overlay of ours can have layers, and every change is there."""
    await text(sandbox, "mkdir -p /d/keep /d/gone; echo >/d/gone/x; echo >/d/once")
    for number in range(40):
        await text(sandbox, f"echo {number} >/d/last; echo >/d/{number}; rm -rf /d/gone /d/{number - 1}; rm -f /d/once")
        async with await sandbox.snapshot() as snapshot:
            depth = len(sandbox.layers)
            if number % 13 == 12:
                async with supervisor.open_sandbox(snapshot=snapshot) as other:
                    assert await text(other, "ls /d; cat /d/last") == f"{number}\nkeep\nlast\n{number}\n"
        assert depth < 28


async def test_the_network_goes_on_after_a_snapshot(sandbox: minisandbox.Sandbox) -> None:
    """The allow list is still in force, and its variables are there."""
    await sandbox.set_network(allow=["localhost:9"])
    async with await sandbox.snapshot() as snapshot:
        kept = await text(sandbox, "echo $http_proxy")
        await sandbox.restore(snapshot)
        gone = await text(sandbox, "echo $http_proxy")

    assert (kept, gone) == ("http://127.0.0.1:1021\n", "\n")


async def test_what_cannot_be_is_refused(supervisor: minisandbox.Supervisor, state_dir: Path) -> None:
    """Closed sandboxes and snapshots, those of others, and roots that do not match have typed errors."""
    async with supervisor.open_sandbox() as sandbox:
        snapshot = await sandbox.snapshot()
        async with minisandbox.open_supervisor(state_dir=state_dir, self_test=False) as stranger:
            with pytest.raises(UsageError, match="another supervisor"):
                async with stranger.open_sandbox(snapshot=snapshot):
                    pass
        async with supervisor.open_sandbox(rootfs="busybox") as other:
            with pytest.raises(UsageError, match="another root file system"):
                await other.restore(snapshot)
        with pytest.raises(UsageError, match="not both"):
            async with supervisor.open_sandbox(snapshot=snapshot, rootfs="host"):
                pass
        with pytest.raises(UsageError, match="at least 1"):
            async with sandbox.fork(0):
                pass
        await snapshot.close()
        with pytest.raises(ClosedError, match="snapshot is closed"):
            await sandbox.restore(snapshot)
        with pytest.raises(ClosedError, match="snapshot is closed"):
            async with supervisor.open_sandbox(snapshot=snapshot):
                pass
    with pytest.raises(ClosedError):
        await sandbox.snapshot()


async def test_snapshots_end_with_their_supervisor(state_dir: Path) -> None:
    """One that nobody closed holds nothing any more."""
    before = len(os.listdir("/proc/self/fd"))
    async with (
        minisandbox.open_supervisor(state_dir=state_dir, self_test=False) as supervisor,
        supervisor.open_sandbox() as sandbox,
    ):
        snapshot = await sandbox.snapshot()

    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ClosedError):
        _ = snapshot.layers


async def test_one_slot_is_enough(state_dir: Path) -> None:
    """Where there is no other slot to move into, the sandbox waits for its own."""
    async with (
        minisandbox.open_supervisor(state_dir=state_dir, self_test=False, max_sandboxes=1) as supervisor,
        supervisor.open_sandbox() as sandbox,
    ):
        await text(sandbox, "echo one >/a")
        async with await sandbox.snapshot() as snapshot:
            assert await text(sandbox, "cat /a") == "one\n"
            await sandbox.restore(snapshot)
            assert await text(sandbox, "cat /a") == "one\n"


async def test_digests_are_equal_for_equal_trees(
    supervisor: minisandbox.Supervisor, sandbox: minisandbox.Sandbox
) -> None:
    """In whatever order and in however many layers they were written; and they differ where the trees do."""
    await text(sandbox, "mkdir /d; echo one >/d/a; echo two >/d/b; touch -d 2020-01-01 /d/* /d; rm /etc/passwd")
    async with supervisor.open_sandbox() as other:
        await text(other, "mkdir /d; echo no >/d/b; echo two >/d/c")
        async with await other.snapshot():
            await text(other, "rm /d/*; echo two >/d/b; echo one >/d/a; touch -d 2020-01-01 /d/* /d; rm /etc/passwd")
            async with await other.snapshot() as second, await sandbox.snapshot() as first:
                digests = [await first.digest(), await second.digest()]
        await text(other, "echo three >/d/b; touch -d 2020-01-01 /d/* /d")
        async with await other.snapshot() as third:
            different = await third.digest()

    assert digests[0] == digests[1] != different


async def test_a_saved_snapshot_is_opened_by_name_and_goes_on(
    supervisor: minisandbox.Supervisor, state_dir: Path
) -> None:
    """It is the same after its supervisor; what is sealed upon it is a snapshot over the same rootfs."""
    async with minisandbox.open_supervisor(state_dir=state_dir, self_test=False) as first:
        async with first.open_sandbox() as sandbox:
            await text(sandbox, "mkdir /d; echo one >/d/a; ln /d/a /d/b; chown 7:8 /d/a; rm /etc/passwd")
            async with await sandbox.snapshot() as snapshot:
                digest = await snapshot.digest()
                stored = await snapshot.save("kept-for-later")
    async with supervisor.open_sandbox(snapshot="kept-for-later") as sandbox:
        said = await text(sandbox, "stat -c '%u %g %h' /d/b; cat /d/a; ls /etc/passwd || true")
        async with await sandbox.snapshot() as unchanged:
            again = await unchanged.digest()
            async with supervisor.open_sandbox(snapshot=unchanged) as other:
                await text(other, "echo two >/d/c")
                async with await other.snapshot() as changed:
                    further = await changed.save()
    async with supervisor.open_sandbox(snapshot=further) as sandbox:
        both = await text(sandbox, "cat /d/a /d/c")

    assert stored.digest == digest == again
    assert (said, both) == ("7 8 2\none\n", "one\ntwo\n")


async def test_a_closed_snapshot_is_not_read(sandbox: minisandbox.Sandbox) -> None:
    """Neither its digest nor its content can be had any more; one that is being saved is saved whole."""
    snapshot = await sandbox.snapshot()
    await snapshot.close()

    with pytest.raises(ClosedError, match="snapshot is closed"):
        await snapshot.digest()
    with pytest.raises(ClosedError, match="snapshot is closed"):
        await snapshot.save("never")


def shared_bytes() -> int:
    """Return what files in memory take on this host."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["Shmem"].split()[0]) * 1024


@pytest.mark.slow
async def test_removing_a_large_snapshot_frees_its_memory(supervisor: minisandbox.Supervisor) -> None:
    """A GiB is charged to the snapshot, and is the host's again when that is closed and no sandbox is on it."""
    limits = minisandbox.Limits(disk_bytes=2 << 30, memory_bytes=2 << 30, wall_time_s=60)
    with trio.fail_after(120):
        async with supervisor.open_sandbox(limits=limits) as sandbox:
            await text(sandbox, "head -c 1073741824 /dev/zero >/big")
            snapshot = await sandbox.snapshot()
            held = snapshot.memory_bytes
            assert (await sandbox.run("true")).usage.memory_held_bytes or 0 < 10 * MIB
        before = shared_bytes()
        await snapshot.close()
        while before - shared_bytes() < 700 * MIB:  # noqa: ASYNC110 - the kernel frees it later, and tells nobody
            await trio.sleep(0.05)

    assert held > (1 << 30) - LAG_BYTES


async def test_a_layer_that_cannot_be_opened_keeps_no_descriptor(
    sandbox: minisandbox.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there are no descriptors left: typed, and the sandbox goes on."""
    await text(sandbox, "echo one >/a")
    before, really_open = observer.descriptors(), os.open

    def refuse(path: str, *words: int, dir_fd: int | None = None) -> int:
        if path == "u":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return really_open(path, *words, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr("minisandbox.runtime.snapshot.os.open", refuse)
        with pytest.raises(HostError, match="cannot open what a sandbox wrote"):
            await sandbox.snapshot()
    after = observer.descriptors()

    assert before == after
    assert await text(sandbox, "cat /a") == "one\n"


async def test_an_init_that_does_not_answer_holds_no_snapshot_up(
    sandbox: minisandbox.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that is cancelled; and it is as it was, once it goes on."""
    monkeypatch.setattr("minisandbox.runtime.body.DISK_DEADLINE_S", 0.2)
    (init,) = observer.inits()
    init.suspend()
    try:
        with trio.fail_after(5), pytest.raises(DeadlineError, match="hand out its disk"):
            await sandbox.snapshot()
        with trio.fail_after(5), pytest.raises(DeadlineError, match="hand out its disk"), trio.move_on_after(0.05):
            await sandbox.snapshot()
    finally:
        init.resume()

    assert await text(sandbox, "echo on") == "on\n"
