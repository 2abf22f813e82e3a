"""Which control groups are ours, from the text of /proc as various hosts and containers show it, and on this host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.errors import UsageError
from minisandbox.kernel.cgroup import CgroupKind, CgroupLayout, detect_layout
from minisandbox.kernel.cgroup_layout import own_directories

V1_MOUNTS = """\
25 30 0:23 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
27 25 0:26 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:13 - cgroup cgroup rw,cpu,cpuacct
28 25 0:27 {root} /sys/fs/cgroup/memory rw,relatime shared:14 - cgroup cgroup rw,memory
29 25 0:28 {root} /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
30 25 0:29 {root} /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
"""
V1_GROUPS = "9:cpu,cpuacct:/job\n8:memory:/job\n3:pids:/job\n1:name=systemd:/user.slice\n"
V2_MOUNT = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
HYBRID_MOUNT = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
CGROUP = Path("/sys/fs/cgroup")
JOB_V1 = {
    "pids": CGROUP / "pids/job",
    "memory": CGROUP / "memory/job",
    "cpu": CGROUP / "cpu,cpuacct/job",
    "cpuacct": CGROUP / "cpu,cpuacct/job",
}


@pytest.mark.parametrize(
    ("mountinfo", "membership", "unified", "v1"),
    [
        (V2_MOUNT, "0::/user.slice/a.scope\n", CGROUP / "user.slice/a.scope", {}),
        (V1_MOUNTS.format(root="/"), V1_GROUPS, None, JOB_V1),
        (V1_MOUNTS.format(root="/") + HYBRID_MOUNT, V1_GROUPS + "0::/job\n", CGROUP / "unified/job", JOB_V1),
        # A container that sees its own group as the root of the mount, with and without a cgroup namespace.
        (V2_MOUNT, "0::/\n", CGROUP, {}),
        (V2_MOUNT.replace(" / /sys", " /docker/1 /sys"), "0::/docker/1/sub\n", CGROUP / "sub", {}),
        (V1_MOUNTS.format(root="/job"), V1_GROUPS, None, {name: own.parent for name, own in JOB_V1.items()}),
        # Mounts that do not show our own group.
        (V2_MOUNT.replace(" / /sys", " /docker/1 /sys"), "0::/docker/10\n", None, {}),
        (V2_MOUNT, "0::/../elsewhere\n", None, {}),
        (V1_MOUNTS.format(root="/other"), V1_GROUPS, None, {}),
        # A mount point with a space, and a group with a colon in its name.
        (V2_MOUNT.replace("/sys/fs/cgroup", r"/a\040b"), "0::/x:y\n", Path("/a b/x:y"), {}),
        ("", "", None, {}),
    ],
)
def test_own_directories_of_various_hosts(
    mountinfo: str, membership: str, unified: Path | None, v1: dict[str, Path]
) -> None:
    """Our own directory is found in each hierarchy that shows it, and nowhere else."""
    assert (unified, v1) == own_directories(mountinfo, membership)


@given(st.text(), st.text())
def test_junk_is_no_control_group(mountinfo: str, membership: str) -> None:
    """Text that describes no mount is read without an error."""
    assert (None, {}) == own_directories(mountinfo.replace(" - ", ""), membership)


def test_controller_that_can_stop_forks_comes_first() -> None:
    """Trees are killed in this order on a host without cgroup.kill."""
    _, v1 = own_directories(V1_MOUNTS.format(root="/"), V1_GROUPS)

    assert "pids" == next(iter(v1))


def test_kind_and_place_of_a_controller() -> None:
    """A controller is used where it is given: in the unified tree, or else in its v1 hierarchy."""
    hybrid = CgroupLayout(unified=Path("/u"), unified_controllers=frozenset({"pids"}), v1={"memory": Path("/m")})

    assert (Path("/u"), Path("/m"), None) == tuple(hybrid.where(name) for name in ("pids", "memory", "cpu"))
    assert CgroupKind.HYBRID == hybrid.kind
    assert CgroupKind.V2 == CgroupLayout(unified=Path("/u")).kind
    assert CgroupKind.V1 == CgroupLayout(v1={"memory": Path("/m")}).kind


def test_this_process_is_listed_in_each_own_directory() -> None:
    """On this host, the directories found are really ours."""
    layout = detect_layout()
    own = [path for path in (layout.unified, *layout.v1.values()) if path]

    assert own
    assert [] == [path for path in own if str(os.getpid()) not in (path / "cgroup.procs").read_text().split()]


def test_parent_takes_the_place_of_our_own_group(tmp_path: Path) -> None:
    """A given parent must be a group of the unified tree."""
    with pytest.raises(UsageError, match="not a cgroup v2 directory"):
        detect_layout(tmp_path)
    unified = detect_layout().unified
    if unified is not None:
        assert unified == detect_layout(unified).unified
