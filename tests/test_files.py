"""Files in and out of a sandbox: exact, bounded, only regular ones, and only those of the sandbox itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

from minisandbox import Bind, FileTransferError, Limits, Sandbox, Supervisor, UsageError
from tests import observer

MIB = 1 << 20
PROMPT_S = 20.0

SPECIAL_FILES = """
mkfifo /tmp/fifo
mkdir /tmp/directory
ln -s /etc/passwd /tmp/link
ln -s /nowhere /tmp/dangling
ln -s loop /tmp/loop
ln -s / /tmp/root
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/tmp/socket")'
"""


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 65_536, 65_537, 1_000_003])
async def test_a_file_makes_the_round_trip(sandbox: Sandbox, size: int) -> None:
    """What was written is read, byte by byte."""
    data = os.urandom(size)
    await sandbox.write_file("/tmp/file", data)

    assert data == await sandbox.read_file("/tmp/file")


async def test_64_mebibytes_make_the_round_trip(sandbox: Sandbox) -> None:
    """Report 32: as large as the default bound, and seen inside as it is outside."""
    data = os.urandom(64 * MIB)
    await sandbox.write_file("/tmp/file", data)
    size = await sandbox.run(["stat", "-c", "%s", "/tmp/file"])

    assert size.stdout == b"%d\n" % len(data)
    assert data == await sandbox.read_file("/tmp/file")


async def test_a_shorter_file_replaces_a_longer_one(sandbox: Sandbox) -> None:
    """Nothing of the old content is left."""
    await sandbox.write_file("/tmp/file", b"a long content")
    await sandbox.write_file("/tmp/file", b"short")

    assert await sandbox.read_file("/tmp/file") == b"short"


async def test_files_appear_as_asked(sandbox: Sandbox) -> None:
    """Mode, owner and place are those given, whatever the umask of this process."""
    await sandbox.write_file("/tmp/mine", b"1", mode=0o646, user=1000)
    await sandbox.write_file("/opt/tool", b"#!/bin/sh\necho works\n", mode=0o755)
    listed = await sandbox.run("stat -c '%a %u %g' /tmp/mine /opt/tool; /opt/tool")

    assert listed.stdout == b"646 1000 1000\n755 0 0\nworks\n"


async def test_a_private_file_of_any_user_can_be_read(supervisor: Supervisor) -> None:
    """Results are fetched for the owner of the sandbox, whoever inside made them and whatever their mode."""
    async with supervisor.open_sandbox(policy="strict") as sandbox:
        result = await sandbox.run("umask 077; mkdir /tmp/d; echo x > /tmp/d/mine; chmod 0 /tmp/d/mine")
        content = await sandbox.read_file("/tmp/d/mine")

    assert (0, b"x\n") == (result.exit_code, content)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/tmp/fifo", errno.EINVAL),
        ("/tmp/directory", errno.EISDIR),
        ("/tmp", errno.EISDIR),
        ("/tmp/link", errno.ELOOP),
        ("/tmp/dangling", errno.ELOOP),
        ("/tmp/loop", errno.ELOOP),
        ("/tmp/loop/x", errno.ELOOP),
        ("/tmp/root", errno.ELOOP),
        ("/tmp/socket", errno.ENXIO),
        ("/dev/null", errno.EINVAL),
        ("/dev/zero", errno.EINVAL),
        ("/dev/tty", errno.ENXIO),
        ("/dev/stdin", errno.ELOOP),
        ("/proc/meminfo", errno.EINVAL),
        ("/proc/self/status", errno.EINVAL),
        ("/proc/self/exe", errno.ELOOP),
        ("/proc/self/fd/0", errno.ELOOP),
        ("/proc/1/root/etc/passwd", None),
        ("/nowhere", errno.ENOENT),
        ("/etc/passwd/x", errno.ENOTDIR),
        ("/" + "n" * 300, errno.ENAMETOOLONG),
    ],
)
async def test_only_a_regular_file_is_read(sandbox: Sandbox, path: str, error: int | None) -> None:
    """Tool reports 25, 56: anything else is an error at once: no FIFO is waited for, no link followed."""
    await sandbox.run(SPECIAL_FILES)
    with trio.fail_after(PROMPT_S), pytest.raises(FileTransferError, match="cannot read") as caught:
        await sandbox.read_file(path)

    assert caught.value.path == path
    assert error in (None, caught.value.errno)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/tmp/fifo", errno.ENXIO),
        ("/tmp/directory", errno.EISDIR),
        ("/tmp/link", errno.ELOOP),
        ("/tmp/dangling", errno.ELOOP),
        ("/tmp/socket", errno.ENXIO),
        ("/dev/null", errno.EINVAL),
        ("/proc/self/comm", None),
        ("/proc/sys/kernel/core_pattern", None),
        ("/nowhere/x", errno.ENOENT),
        ("/usr/bin/env", None),  # EROFS, or EACCES where the file system of the host cannot be idmapped
        ("/usr/new", errno.EROFS),
    ],
)
async def test_only_a_regular_file_is_written(sandbox: Sandbox, path: str, error: int | None) -> None:
    """Report 33, tool reports 28, 56: a read-only place, a link or a FIFO raises; nothing is written elsewhere."""
    await sandbox.run(SPECIAL_FILES)
    before = await sandbox.read_file("/etc/passwd")
    with trio.fail_after(PROMPT_S), pytest.raises(FileTransferError, match="cannot write") as caught:
        await sandbox.write_file(path, b"x")

    assert caught.value.path == path
    refused = {
        errno.EACCES: errno.EROFS
    }  # what is nobody's, to an ordinary user, before it is looked whether it is writable
    assert error in (None, caught.value.errno, refused.get(caught.value.errno))
    assert before == await sandbox.read_file("/etc/passwd")


async def test_a_user_cannot_write_where_it_may_not(sandbox: Sandbox) -> None:
    """Report 33: a directory or file of root's is an error when written as somebody else."""
    for path in ("/root/x", "/etc/passwd", "/x"):
        with pytest.raises(FileTransferError, match="Permission denied"):
            await sandbox.write_file(path, b"x", user="nobody")


async def test_links_on_the_way_stay_inside(sandbox: Sandbox, tmp_path: Path) -> None:
    """Tool report 25: a path that climbs or leads through links of the sandbox ends in the sandbox's own tree."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the host")
    await sandbox.run("ln -s / /tmp/root; ln -s ../../../../.. /tmp/up; mkdir -p /tmp/etc")
    for path in (f"/tmp/root{secret}", f"/tmp/up{secret}", f"/../../..{secret}", f"/proc/self/root{secret}"):
        with pytest.raises(FileTransferError):
            await sandbox.read_file(path)
        with pytest.raises(FileTransferError):
            await sandbox.write_file(path, b"forged")

    assert secret.read_bytes() == b"of the host"
    assert await sandbox.read_file("/tmp/root/etc/passwd") == await sandbox.read_file("/etc/passwd")


async def test_a_file_larger_than_wanted_is_an_error(sandbox: Sandbox) -> None:
    """The bound is exact, and a sparse terabyte is refused as promptly as a file of one byte more."""
    await sandbox.write_file("/tmp/file", b"x" * 1000)
    await sandbox.run(["truncate", "-s", "1T", "/tmp/sparse"])

    assert len(await sandbox.read_file("/tmp/file", max_bytes=1000)) == 1000
    for path, max_bytes in (("/tmp/file", 999), ("/tmp/file", 0), ("/tmp/sparse", 1 << 20)):
        with trio.fail_after(PROMPT_S), pytest.raises(FileTransferError, match="max_bytes") as caught:
            await sandbox.read_file(path, max_bytes=max_bytes)
        assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize(
    ("limit", "fill"),
    [
        (Limits(disk_bytes=MIB), "head -c 1M /dev/zero > /tmp/x"),
        (Limits(disk_inodes=20), "i=0; while : > /tmp/$i; do i=$((i+1)); done"),
        (Limits(disk_bytes=4 * MIB), "true"),
    ],
    ids=["bytes", "inodes", "half"],
)
async def test_an_upload_to_a_full_disk_raises(supervisor: Supervisor, limit: Limits, fill: str) -> None:
    """Report 33: success is never reported for a file that is not whole, and a part of it is not left."""
    async with supervisor.open_sandbox(limits=limit) as sandbox:
        await sandbox.run(fill)
        with pytest.raises(FileTransferError, match="No space left") as caught:
            await sandbox.write_file("/tmp/upload", bytes(8 * MIB))
        left = await sandbox.run(["test", "-e", "/tmp/upload"])

    assert caught.value.errno == errno.ENOSPC
    assert left.exit_code == 1


async def test_a_shrinking_file_ends_where_it_ends(sandbox: Sandbox) -> None:
    """A command that rewrites the file while it is read makes neither a hang nor a crash."""
    script = "i=0; : > /tmp/file; echo on; while :; do head -c $((i % 9))M /dev/zero > /tmp/file; i=$((i+1)); done"
    async with trio.open_nursery() as nursery:
        await observer.start(nursery, sandbox, script, limits=Limits(wall_time_s=60))
        with trio.fail_after(PROMPT_S):
            sizes = [len(await sandbox.read_file("/tmp/file")) for _ in range(20)]
        nursery.cancel_scope.cancel()

    assert max(sizes) <= 8 * MIB


@pytest.mark.parametrize("path", ["relative", "", "./x", "/tmp/a\0b", "/" + "d/" * 3000])
async def test_a_path_that_cannot_be_is_refused(sandbox: Sandbox, path: str) -> None:
    """It is the caller's mistake, and nothing was tried."""
    with pytest.raises(UsageError):
        await sandbox.read_file(path)
    with pytest.raises(UsageError):
        await sandbox.write_file(path, b"x")


@pytest.mark.requires_root
async def test_a_bind_of_a_tree_shows_no_mount_below_it(supervisor: Supervisor, tmp_path: Path) -> None:
    """Tool report 11: what is mounted below a bound directory is not carried along with its own flags."""
    below = tmp_path / "below"
    below.mkdir()
    (below / "own").touch()
    async with observer.mounted("tmpfs", below):
        (below / "of-the-mount").touch()
        async with supervisor.open_sandbox(binds=[Bind(source=tmp_path, target="/mnt/x")]) as sandbox:
            listed = await sandbox.run("ls /mnt/x/below; touch /mnt/x/below/no; findmnt -no options /mnt/x")

    assert listed.stdout.startswith(b"own\n")
    assert not (below / "no").exists()
    assert {b"ro", b"nosuid", b"nodev"} <= set(listed.stdout.split(b"\n")[1].split(b","))


async def test_a_writable_bind_is_written_through(supervisor: Supervisor, tmp_path: Path) -> None:
    """The sandbox's root writes as itself to a directory that is bound for writing, and the host sees the content."""
    async with supervisor.open_sandbox(binds=[Bind(source=tmp_path, target="/out", writable=True)]) as sandbox:
        result = await sandbox.run("echo result > /out/file && stat -c %u /out/file")

    assert (b"0\n", 0) == (result.stdout, result.exit_code)
    assert (tmp_path / "file").read_text() == "result\n"


async def test_descriptors_are_given_back(sandbox: Sandbox) -> None:
    """Neither a good transfer nor a failed one leaves one open."""
    await sandbox.write_file("/tmp/file", b"x")
    before = observer.descriptors()
    for path in ("/tmp/file", "/nowhere/x", "/dev/null", "/tmp"):
        for _ in range(3):
            try:
                await sandbox.write_file(path, b"y" * 100_000)
                await sandbox.read_file(path, max_bytes=10)
            except FileTransferError:
                continue

    assert before == observer.descriptors()
