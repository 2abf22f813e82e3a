"""Two sandboxes that were opened with `deterministic=True` from one snapshot see the same, byte for byte."""

from __future__ import annotations

import os

import msgspec
import pytest

import minisandbox
from minisandbox.policy import Addresses
from tests.facts import HAS_TIME_NAMESPACES, NO_TIME_NAMESPACES
from tests.kernel import HAS_MAPPED_MEMORY

pytestmark = [
    pytest.mark.requires_root,
    pytest.mark.skipif(not HAS_TIME_NAMESPACES, reason=NO_TIME_NAMESPACES),
]

SEES = r"""
import ctypes, os, platform, stat, sys, time

def show(*values):
    print(*values, sep="\t")

for name in sorted(os.environ):
    show("env", name, os.environ[name])
show("ids", os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0), os.getresuid(), os.getresgid(), os.getgroups())
show("host", platform.uname(), time.tzname, os.getcwd(), os.umask(0))
show("hash", hash("a"), hash(b"a"), id(object()) > 0)
show("address", ctypes.addressof(ctypes.CDLL(None).printf), id(sys))
show("uptime", int(time.monotonic()) // 100, int(float(open("/proc/uptime").read().split()[0])) // 100)
show("boottime", int(time.clock_gettime(time.CLOCK_BOOTTIME)) // 100)
for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/proc/self/maps", "/proc/self/cmdline",
             "/proc/self/environ", "/proc/self/limits", "/proc/self/cgroup", "/proc/self/comm", "/proc/self/auxv"):
    data = open(path, "rb").read()
    if path.endswith("maps"):  # device and inode numbers are the kernel's
        data = b"\n".join(b" ".join(line.split()[:3]) for line in data.splitlines())
    show(path, data.hex() if path.endswith("auxv") else data)
for process in sorted((name for name in os.listdir("/proc") if name.isdigit()), key=int):
    show("process", process, open(f"/proc/{process}/comm").read())
for top, directories, files in os.walk("/", followlinks=False):
    if top == "/":
        directories.remove("proc")
        directories[:] = [name for name in directories if name != "usr" or os.environ.get("ALL")]
    for name in [".", *directories, *files]:
        path = os.path.join(top, name)
        st = os.lstat(path)
        pts = path.startswith("/dev/pts")
        link = os.readlink(path) if stat.S_ISLNK(st.st_mode) else ""
        changed = 0 if pts else st.st_mtime_ns
        show(path, oct(st.st_mode), st.st_uid, st.st_gid, st.st_nlink, st.st_size, st.st_rdev, changed, link)
"""


async def seen(supervisor: minisandbox.Supervisor, snapshot: minisandbox.Snapshot, *, deterministic: bool) -> bytes:
    """Return what a program sees in a sandbox of its own."""
    async with supervisor.open_sandbox(snapshot=snapshot, deterministic=deterministic, terminal=True) as sandbox:
        await sandbox.write_file("/sees.py", SEES.encode())
        await sandbox.run("touch -d 2020-01-01 /sees.py /")
        result = await sandbox.run(["python3", "-s", "/sees.py"])
    assert result.ok, result
    return result.stdout


@pytest.mark.skipif(not HAS_MAPPED_MEMORY, reason=f"snapshots need Linux 6.3, this is {os.uname().release}")
async def test_two_openings_of_a_snapshot_see_the_same(
    supervisor: minisandbox.Supervisor, sandbox: minisandbox.Sandbox
) -> None:
    """Every byte is equal; without `deterministic` some are not."""
    await sandbox.run("mkdir -p /d/e; echo one >/d/e/one; rm -r /srv")
    async with await sandbox.snapshot() as snapshot:
        first, second = [await seen(supervisor, snapshot, deterministic=True) for _ in range(2)]
        other, another = [await seen(supervisor, snapshot, deterministic=False) for _ in range(2)]

    assert [a for a, b in zip(first.splitlines(), second.splitlines(), strict=True) if a != b] == []
    assert other != another


async def test_clocks_since_boot_begin_at_one_value(supervisor: minisandbox.Supervisor) -> None:
    """They count on from there, for commands and for what these start."""
    read = "cut -d. -f1 /proc/uptime; sh -c 'cut -d. -f1 /proc/uptime'"
    async with supervisor.open_sandbox(deterministic=True) as sandbox:
        values = [int(value) for value in (await sandbox.run(read)).stdout.split()]

    assert all(1000 <= value < 1100 for value in values), values


async def test_variables_given_beat_pinned_ones(supervisor: minisandbox.Supervisor) -> None:
    """What the caller asks for stands."""
    async with supervisor.open_sandbox(deterministic=True, env={"TZ": "Europe/Berlin"}) as sandbox:
        result = await sandbox.run("echo $TZ $PYTHONHASHSEED")

    assert result.stdout == b"Europe/Berlin 0\n"


@pytest.mark.parametrize("addresses", Addresses)
async def test_a_policy_may_fix_addresses(supervisor: minisandbox.Supervisor, addresses: Addresses) -> None:
    """With "fixed" programs find themselves at the same places each time, with "random" they do not."""
    policy = msgspec.structs.replace(minisandbox.load_policy("default"), addresses=addresses)
    seen = set()
    for _ in range(4):
        async with supervisor.open_sandbox(policy=policy) as sandbox:
            seen.add((await sandbox.run("cut -d' ' -f1 /proc/self/maps")).stdout)

    assert (1 if addresses is Addresses.FIXED else 4) == len(seen)
