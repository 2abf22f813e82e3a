"""Devices that an image or a bound directory ships. Making a new one is in test_system_calls.py."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from minisandbox import Bind, Supervisor
from tests.probes.lab import SANDBOXED, Defence, parse, policy_of, run_outside, skip_without_capability, with_layer

NODES = {
    "zero": (stat.S_IFCHR, 1, 5),
    "mem": (stat.S_IFCHR, 1, 1),
    "tun": (stat.S_IFCHR, 10, 200),
    "fuse": (stat.S_IFCHR, 10, 229),
    "console": (stat.S_IFCHR, 5, 1),
    "terminal": (stat.S_IFCHR, 4, 0),
    "disk": (stat.S_IFBLK, 8, 0),
    "loop": (stat.S_IFBLK, 7, 0),
}

PLACES = ("/nodes", "/bound", "/writable")

OPEN_ALL = """
import errno, os, sys
for name in os.listdir(sys.argv[1]):
    try:
        os.close(os.open(os.path.join(sys.argv[1], name), os.O_RDONLY | os.O_NONBLOCK))
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """A directory with devices, which everybody may open as far as their mode goes."""
    skip_without_capability("CAP_MKNOD")
    directory = tmp_path / "layer" / "nodes"
    directory.mkdir(parents=True)
    (tmp_path / "layer").chmod(0o755)
    for name, (kind, major, minor) in NODES.items():
        os.mknod(directory / name, kind | 0o666, os.makedev(major, minor))
        (directory / name).chmod(0o666)
    return directory


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_shipped_device_cannot_be_opened(supervisor: Supervisor, nodes: Path, defence: Defence) -> None:
    """Row 26: a node that an image or a bound directory ships is no way to the device, whatever its mode."""
    rootfs = with_layer(supervisor, nodes.parent)
    binds = [Bind(source=nodes, target=f"/{name}", writable=name == "writable") for name in ("bound", "writable")]
    async with supervisor.open_sandbox(rootfs=rootfs, policy=policy_of(defence), binds=binds) as sandbox:
        outcomes = [await sandbox.run(["python3", "-c", OPEN_ALL, place]) for place in PLACES]

    assert [dict.fromkeys(NODES, "EACCES")] * 3 == [parse(outcome.stdout.decode()) for outcome in outcomes]


@pytest.mark.usefixtures("state_dir")
def test_device_can_be_opened_with_the_defence_off(nodes: Path, tmp_path: Path) -> None:
    """Row 26, defence off: outside, on a file system that is not mounted nodev, the harmless one of them opens."""
    outcomes = parse(run_outside(["python3", "-c", OPEN_ALL, nodes], tmp_path))
    if outcomes["zero"] == "EACCES":
        pytest.skip(f"{tmp_path} of this host is mounted nodev")

    assert "ok" == outcomes["zero"]
