"""Filling the disk of a sandbox, in every way that takes space: its limits hold, for all of its places together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minisandbox import ExitReason, Limits, Result, Supervisor
from tests.probes.lab import SANDBOXED, Defence, policy_of

DISK_BYTES = 8 << 20
INODES = 600

FILL = """
import errno, itertools, os, sys
way, most = sys.argv[1], int(sys.argv[2])
MIB = bytes(1 << 20)
PLACES = ("/tmp", "/dev/shm", "/var/tmp", "/run", "/root", "/etc", "/srv", "/")

def grow(path):
    with open(path, "ab", buffering=0) as file:
        while True:
            yield file.write(MIB)

def spread():
    for number in itertools.count():
        with open(f"{PLACES[number % len(PLACES)]}/fill-{number}", "wb", buffering=0) as file:
            yield file.write(MIB)

def unlinked():
    for number in itertools.count():
        file = open(f"/tmp/{number}", "wb", buffering=0)
        os.unlink(file.name)
        held.append(file)
        yield file.write(MIB)

def sparse():
    with open("/tmp/sparse", "wb", buffering=0) as file:
        os.truncate(file.fileno(), 1 << 40)
        for number in itertools.count():
            os.lseek(file.fileno(), number << 30, os.SEEK_SET)
            yield file.write(MIB)

def reserved():
    with open("/tmp/reserved", "wb") as file:
        for number in itertools.count():
            os.posix_fallocate(file.fileno(), number << 20, 1 << 20)
            yield

def empty_files():
    for number in itertools.count():
        os.close(os.open(f"{PLACES[number % len(PLACES)]}/{number}", os.O_CREAT, 0o600))
        yield

def long_names():
    for number in itertools.count():
        os.close(os.open(f"/tmp/{number:0255}", os.O_CREAT, 0o600))
        yield

def deep():
    os.chdir("/tmp")
    while True:
        os.mkdir("d")
        os.chdir("d")
        yield

def links():
    for number in itertools.count():
        os.symlink("x" * 4000, f"/tmp/{number}")
        yield

def hard_links():
    open("/tmp/one", "w").close()
    for number in itertools.count():
        os.link("/tmp/one", f"/tmp/{number}")
        yield

def fifos():
    for number in itertools.count():
        os.mkfifo(f"/tmp/{number}")
        yield

def attributes():
    open("/tmp/one", "w").close()
    for number in itertools.count():
        os.setxattr("/tmp/one", f"user.{number:0200}", bytes(1000))
        yield

held = []
FILES = {"root": "/fill", "tmp": "/tmp/fill", "shm": "/dev/shm/fill"}
count, reason = 0, "none"
try:
    for _ in itertools.islice(grow(FILES[way]) if way in FILES else globals()[way](), most):
        count += 1
except OSError as error:
    reason = errno.errorcode[error.errno]
print(count, reason)
sys.exit(reason != "none")
"""
"""Takes space in one way until the system says no, or so many times, and prints how many times and what it said."""

BYTES = ("root", "tmp", "shm", "spread", "unlinked", "sparse", "reserved")
FILES = ("empty_files", "long_names", "deep", "links", "hard_links", "fifos", "attributes")


async def fill(supervisor: Supervisor, way: str, limits: Limits) -> tuple[int, str, Result]:
    """Fill a sandbox up: return how many times, why no more, and the result. The host's disk must not get fuller."""
    most = DISK_BYTES // (1 << 20) + 4 if way in BYTES else INODES + 100
    async with supervisor.open_sandbox(limits=limits) as sandbox:
        before = blocks_in(supervisor.state.path)
        result = await sandbox.run(["python3", "-c", FILL, way, str(most)])
        written_on_host = blocks_in(supervisor.state.path) - before
        after = await sandbox.run(["echo", "serves"])
    assert result.stdout, result.stderr
    assert b"serves\n" == after.stdout
    assert 0 == written_on_host
    count, reason = result.stdout.decode().split()
    if reason in ("EOPNOTSUPP", "ENOTSUP"):
        pytest.skip("the tmpfs of this kernel has no user attributes")
    return int(count), reason, result


def blocks_in(directory: Path) -> int:
    """Return how many blocks all files below a directory take."""
    files = [os.path.join(path, name) for path, _, names in os.walk(directory) for name in names]
    return sum(os.lstat(file).st_blocks for file in files)


@pytest.mark.parametrize("way", [*BYTES, *FILES])
async def test_disk_is_full_at_its_limit(supervisor: Supervisor, way: str) -> None:
    """Rows 45 and 46: ENOSPC, wherever and however it is taken; nothing on the host's disk; the sandbox serves on.

    What is taken by files without a name, or by attributes, is free again or not counted when the command has ended.
    """
    count, reason, result = await fill(supervisor, way, Limits(disk_bytes=DISK_BYTES, disk_inodes=INODES))

    assert reason in ("ENOSPC", "EDQUOT")
    assert count <= (DISK_BYTES >> 20 if way in BYTES else INODES)
    assert way in ("unlinked", "attributes") or ExitReason.DISK is result.exit_reason
    assert result.usage.disk_bytes <= DISK_BYTES
    assert result.usage.disk_inodes <= INODES


@pytest.mark.parametrize("way", [*BYTES, *FILES])
async def test_disk_is_not_full_with_the_defence_off(supervisor: Supervisor, way: str) -> None:
    """Rows 45 and 46, defence off: with twice the limits the same program comes to its end."""
    count, reason, result = await fill(supervisor, way, Limits(disk_bytes=2 * DISK_BYTES, disk_inodes=2 * INODES))

    assert "none" == reason
    assert result.ok
    assert count > (DISK_BYTES >> 20 if way in BYTES else INODES)


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_name_longer_than_255_bytes_is_refused(supervisor: Supervisor, defence: Defence) -> None:
    """Row 45: the longest name works, a longer one is an error of the call. It is the kernel's, and never off."""
    code = "open('/tmp/' + 'x' * 255, 'w')\ntry: open('/tmp/' + 'x' * 256, 'w')\nexcept OSError as e: print(e.errno)"
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        result = await sandbox.run(["python3", "-c", code])

    assert b"36\n" == result.stdout


ATTRIBUTES = """
import errno, os
open("/tmp/x", "w").close()
for name in ("trusted.probe", "trusted.overlay.opaque", "security.probe", "trusted.overlay.redirect"):
    try:
        os.setxattr("/tmp/x", name, b"y")
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_attributes_that_the_overlay_believes_cannot_be_set(supervisor: Supervisor, defence: Defence) -> None:
    """Row 45: `trusted` and `security` attributes are for root of the host; a lower layer of a fork would obey them."""
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        result = await sandbox.run(["python3", "-c", ATTRIBUTES], user="root")
    outcomes = {line.split()[1] for line in result.stdout.decode().splitlines()}

    assert outcomes <= {"EPERM", "EOPNOTSUPP"}
    assert 4 == len(result.stdout.splitlines())
