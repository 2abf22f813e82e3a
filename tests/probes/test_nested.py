"""The product inside a sandbox, its own or another one: a clear refusal, or it works; never half of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import minisandbox
from minisandbox import Bind, Supervisor
from minisandbox.errors import HostError, SandboxError
from minisandbox.images import with_prefix

pytestmark = pytest.mark.requires_root

CHECKOUT = Path(minisandbox.__file__).parents[1]
PACKAGES = Path(trio.__file__).resolve().parents[1]

NEST = """
import sys, trio
from pathlib import Path
import minisandbox
async def main():
    async with minisandbox.open_supervisor(state_dir=Path(sys.argv[1])) as supervisor:
        async with supervisor.open_sandbox() as sandbox:
            print((await sandbox.run("echo works")).stdout.decode())
try:
    trio.run(main)
except minisandbox.SandboxError as error:
    print(type(error).__name__, error)
"""


def check_refusal(output: str) -> None:
    """Check that it says what the host lacks, in one line that names a thing and what to do about it."""
    name, _, message = output.strip().partition(" ")

    assert HostError.__name__ == name, output
    assert len(message) > 40
    assert "\n" not in message


@pytest.mark.slow
async def test_product_refuses_to_run_in_its_own_sandbox(supervisor: Supervisor) -> None:
    """Row 62: as root of a sandbox, which has neither control groups nor rights to give away.

    Defence off: outside, the same program works; see the last test.
    """
    state = supervisor.state
    rootfs = with_prefix(state, minisandbox.build_rootfs(state, "host"), Path(sys.base_prefix))
    binds = [Bind(source=CHECKOUT, target="/product"), Bind(source=PACKAGES, target="/packages")]
    async with supervisor.open_sandbox(rootfs=rootfs, binds=binds) as sandbox:
        with trio.fail_after(20):
            python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
            environment = {"PYTHONPATH": "/product:/packages"}
            result = await sandbox.run([python, "-c", NEST, "/tmp/state"], env=environment)
        left = await sandbox.run("ls -A /sys; echo /proc/[0-9]*")

    assert result.ok, result.stderr
    check_refusal(result.stdout.decode())
    assert 2 == len(left.stdout.split())


BOXES = {
    "bubblewrap": ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/sys", "--unshare-pid"],
    "bubblewrap, all": [
        *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--unshare-all"),
        *("--ro-bind", str(CHECKOUT), str(CHECKOUT), "--ro-bind", str(PACKAGES), str(PACKAGES)),
    ],
    "user namespace": ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"],
}


def run_in(box: list[str], state: str) -> str:
    """Run the product on the host in a box of another kind, and return what it printed."""
    environment = {"PYTHONPATH": f"{CHECKOUT}:{PACKAGES}", "PATH": os.defpath}
    words = [*box, sys.executable, "-c", NEST, state]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("box", BOXES)
def test_product_refuses_to_run_in_a_box_that_lacks_something(box: str, tmp_path: Path) -> None:
    """Row 62: in others' boxes, it says which part of a host is missing there."""
    if shutil.which(BOXES[box][0]) is None:
        pytest.skip(f"this host has no {BOXES[box][0]}")

    check_refusal(run_in(BOXES[box], "/tmp/state" if "all" in box else str(tmp_path / "state")))


@pytest.mark.slow
async def test_product_works_in_a_box_that_lacks_nothing(supervisor: Supervisor) -> None:
    """Row 62, defence off: outside, and in namespaces of its own with all rights, the same program works.

    The open supervisor has given the controllers of our group away, which unshare(1), still in it, forbids on v2.
    """
    box = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--uts"]

    assert "works" == run_in([], str(supervisor.state.path)).strip()
    assert "works" == run_in(box, str(supervisor.state.path)).strip()


def test_refusals_are_errors_of_ours() -> None:
    """Row 62: who catches our errors catches them."""
    assert issubclass(HostError, SandboxError)
