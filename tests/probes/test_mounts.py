"""What is shown of the host's file systems: what was named, as it was asked for, and none of its control groups."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox import Bind, StartError, Supervisor, UsageError, build_rootfs
from tests.census import own_cgroups
from tests.probes.lab import ATTEMPT, SANDBOXED, Defence, parse, policy_of, run_outside

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""An ordinary user can make none, so those of the host are bound."""

READ_ONLY = (
    "touch /bound/new; echo changed > /bound/file; rm -f /bound/file; mkdir /bound/sub/new; chmod 777 /bound/file"
)


@contextlib.contextmanager
def submount(directory: Path) -> Iterator[Path]:
    """A file system of the host mounted below a directory, with a canary in it; writable, not nosuid, not nodev."""
    place = directory / "sub"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "probe", place], check=True)
    try:
        (place / "canary").write_text("secret")
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.requires_root
@pytest.mark.parametrize("writable", [False, True], ids=["read-only", "writable"])
async def test_mount_below_a_bound_directory_is_not_shown(
    supervisor: Supervisor, tmp_path: Path, writable: bool
) -> None:
    """Row 28: what the host has mounted there has other rights than those asked for, so it stays away."""
    (tmp_path / "shown").mkdir(mode=0o777)
    with submount(tmp_path / "shown") as mounted:
        bind = Bind(source=tmp_path / "shown", target="/bound", writable=writable)
        async with supervisor.open_sandbox(binds=[bind]) as sandbox:
            seen = await sandbox.run("ls -A /bound/sub; cat /bound/sub/canary; touch /bound/sub/new")
            mounts = await sandbox.run("grep /bound /proc/self/mountinfo | cut -d' ' -f5")
        left = sorted(path.name for path in mounted.iterdir())

    assert b"" == seen.stdout
    assert b"/bound\n" == mounts.stdout
    assert ["canary"] == left


@pytest.mark.requires_root
def test_mount_below_a_bound_directory_is_writable_with_the_defence_off(tmp_path: Path) -> None:
    """Row 28, defence off: `mount --rbind` with `ro` leaves what is mounted below as it was."""
    (tmp_path / "shown").mkdir()
    (tmp_path / "target").mkdir()
    script = "mount --rbind shown target && mount -o remount,bind,ro target && touch target/sub/new && ls -A target/sub"
    with submount(tmp_path / "shown"):
        seen = run_outside(["sh", "-c", script], tmp_path)

    assert "canary\nnew\n" == seen


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_read_only_bind_cannot_be_written(supervisor: Supervisor, tmp_path: Path, defence: Defence) -> None:
    """Row 28: not by root inside, whatever the modes of the host's files. Defence off: bound writable, they change."""
    shown = tmp_path / "shown"
    (shown / "sub").mkdir(parents=True)
    (shown / "file").write_text("untouched")
    for path in (shown, shown / "sub", shown / "file"):
        path.chmod(0o777)
    async with supervisor.open_sandbox(
        policy=policy_of(defence), binds=[Bind(source=shown, target="/bound")]
    ) as sandbox:
        await sandbox.run(READ_ONLY)
        before = {str(path.relative_to(shown)) for path in shown.rglob("*")}, (shown / "file").read_text()
    bind = Bind(source=shown, target="/bound", writable=True)
    async with supervisor.open_sandbox(policy=policy_of(defence), binds=[bind]) as sandbox:
        await sandbox.run(READ_ONLY)

    assert ({"file", "sub"}, "untouched") == before
    assert {"new", "sub", "sub/new"} == {str(path.relative_to(shown)) for path in shown.rglob("*")}


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_mounts_of_a_sandbox_are_few_and_bare(supervisor: Supervisor, defence: Defence) -> None:
    """Rows 25, 26, 27: no sysfs, no control groups, no debugging file system; all nosuid, and nodev but for /dev."""
    shown = {bind.target for bind in build_rootfs(supervisor.state, "host").binds}
    devices = {f"/dev/{name}" for name in DEVICES} if os.geteuid() != 0 else set()
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        mountinfo = (await sandbox.run(["cat", "/proc/self/mountinfo"])).stdout.decode()
    mounts = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        place, options = before.split()[4:6]
        mounts[place] = (after.split()[0], set(options.split(",")))

    assert {"/", "/proc", "/dev", "/dev/shm"} | shown | devices == set(mounts)
    assert ("overlay", "proc", "tmpfs", "tmpfs") == tuple(
        mounts[place][0] for place in ("/", "/proc", "/dev", "/dev/shm")
    )
    assert all("nosuid" in options for _, options in mounts.values())
    assert {"/dev"} | devices == {place for place, (_, options) in mounts.items() if "nodev" not in options}
    assert {"/", "/proc", "/dev/shm"} == {
        place for place, (_, options) in mounts.items() if "rw" in options and place not in devices
    }


CGROUPS = (
    ATTEMPT
    + """
place = sys.argv[1]
attempt("mkdir", lambda: (os.mkdir(place + "/probe"), os.rmdir(place + "/probe")))
for name in sorted(os.listdir(place)):
    mode = os.stat(place + "/" + name).st_mode
    if not os.path.isdir(place + "/" + name) and mode & 0o222:
        attempt(name, lambda: os.close(os.open(place + "/" + name, os.O_WRONLY)))
"""
)
"""Opens every file of a control group for writing, and makes a group below it."""


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_control_groups_are_absent(supervisor: Supervisor, defence: Defence) -> None:
    """Row 25: nothing is at /sys/fs/cgroup, and a process does not learn which group of the host it is in."""
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        result = await sandbox.run(
            "ls -A /sys; find / -xdev -name 'cgroup.*' -o -xdev -name release_agent; cat /proc/self/cgroup"
        )

    assert {"/"} == {line.split(":", 2)[2] for line in result.stdout.decode().splitlines()}


@pytest.mark.requires_root
async def test_bound_control_groups_cannot_be_written(supervisor: Supervisor, tmp_path: Path) -> None:
    """Row 25: even where somebody shows them: neither a group nor a file of one. Defence off: outside all can be."""
    groups = own_cgroups()
    binds = [Bind(source=group, target=f"/groups/{number}") for number, group in enumerate(groups)]
    async with supervisor.open_sandbox(policy=policy_of(Defence.UNFILTERED), binds=binds) as sandbox:
        inside = [parse((await sandbox.run(["python3", "-c", CGROUPS, bind.target])).stdout.decode()) for bind in binds]
    outside = [parse(run_outside(["python3", "-c", CGROUPS, group], tmp_path)) for group in groups]

    assert groups
    for names in inside:
        assert {"mkdir", "cgroup.procs"} <= set(names)
        assert set(names.values()) <= {"EROFS", "EACCES", "EPERM"}
    assert all("ok" == names["cgroup.procs"] for names in outside)
    assert any("ok" == names["mkdir"] for names in outside)


async def test_control_groups_cannot_be_bound_writable(supervisor: Supervisor) -> None:
    """Row 25: the start is refused rather than the host's groups shown. Defence off: see the test before."""
    bind = Bind(source=own_cgroups()[0], target="/group", writable=True)
    with pytest.raises((StartError, UsageError)):
        async with supervisor.open_sandbox(binds=[bind]):
            pass


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory of the host that every user of the host can reach, as none of pytest's own is."""
    with tempfile.TemporaryDirectory(prefix="probe-public-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        if any(not parent.stat().st_mode & stat.S_IXOTH for parent in directory.parents):
            pytest.skip(f"{directory.parent} of this host is closed to its ordinary users")
        yield directory


MAKE_PRIVILEGED = "cp /bin/true /bound/made && chmod 6755 /bound/made"


@pytest.mark.requires_root
async def test_directory_that_users_reach_cannot_be_bound_writable(
    supervisor: Supervisor, public_directory: Path
) -> None:
    """Rows 13 and 27: what root inside writes there is root's on the host, too; so no setuid file lies where users are.

    Defence off: with the directory closed to them it works, and this is what they would have got at.
    """
    bind = Bind(source=public_directory, target="/bound", writable=True)
    with pytest.raises(UsageError):
        async with supervisor.open_sandbox(binds=[bind]):
            pass
    before = list(public_directory.iterdir())
    public_directory.chmod(0o700)
    async with supervisor.open_sandbox(binds=[bind]) as sandbox:
        made = await sandbox.run(MAKE_PRIVILEGED)
    status = (public_directory / "made").stat()
    user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]  # which keeps capabilities until it executes
    reached = subprocess.run([*user, "env", public_directory / "made"], capture_output=True, check=False)

    assert [] == before
    assert made.ok
    assert (0, 0o6755) == (status.st_uid, stat.S_IMODE(status.st_mode))
    assert reached.returncode != 0
