"""Files that would give whoever executes them more than he has: setuid, setgid, with capabilities."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from minisandbox import Supervisor
from minisandbox.policy import capability_mask
from tests.probes.lab import SANDBOXED, Defence, policy_of, skip_without_capability, with_layer


@pytest.fixture
def privileged_files(layer: Path, probe_dir: Path) -> Path:
    """A layer with copies of the probe: setuid root, setgid root, and with file capabilities."""
    skip_without_capability("CAP_SETFCAP")
    for name, mode in {"setuid": 0o4755, "setgid": 0o2755, "capable": 0o755}.items():
        (layer / name).write_bytes((probe_dir / "probe").read_bytes())
        (layer / name).chmod(mode)
    # version 2, effective: CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_KILL (struct vfs_cap_data of linux/capability.h)
    capabilities = struct.pack("<5I", 0x02000001, 0b100011, 0, 0, 0)
    os.setxattr(layer / "capable", "security.capability", capabilities)
    return layer


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_privileged_file_gives_no_privilege(
    supervisor: Supervisor, privileged_files: Path, defence: Defence
) -> None:
    """Row 27: a user of the sandbox who executes it is who he was, and no capability comes with it.

    The same with a copy that root of the sandbox made privileged himself.
    """
    rootfs = with_layer(supervisor, privileged_files)
    ids = {}
    async with supervisor.open_sandbox(rootfs=rootfs, policy=policy_of(defence)) as sandbox:
        made = await sandbox.run("cp /setuid /tmp/made && chmod 6755 /tmp/made && stat -c %a /tmp/made", user="root")
        for user in (1000, 65534):
            for path in ("/setuid", "/setgid", "/capable", "/tmp/made"):
                ids[path, user] = (await sandbox.run([path, "ids"], user=user)).stdout.decode()

    assert b"6755\n" == made.stdout
    assert {(path, user): f"{user} {user} {user} {user} 0\n" for path, user in ids} == ids


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_capabilities_are_those_of_the_policy(supervisor: Supervisor, defence: Defence, user: int) -> None:
    """Row 27: root has what the policy names, others have none, and nobody can get more: the bounding set is cut.

    Defence off: a policy that names all of them gives all that this kernel knows.
    """
    policy = policy_of(defence)
    async with supervisor.open_sandbox(policy=policy) as sandbox:
        status = (await sandbox.run(["cat", "/proc/self/status"], user=user)).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    known = (1 << int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1) - 1
    named = capability_mask(policy.capabilities) & known
    held = named if user == 0 else 0

    assert [held, held, named] == [int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")]
    assert [0, 0] == [int(fields[name], 16) for name in ("CapInh", "CapAmb")]
    assert "1" == fields["NoNewPrivs"]
    assert ("0" if defence is Defence.UNFILTERED else "2") == fields["Seccomp"]


@pytest.mark.parametrize(("name", "expected"), [("setuid", "1000 0 1000 1000"), ("setgid", "1000 1000 1000 0")])
def test_setuid_file_gives_privilege_with_the_defence_off(privileged_files: Path, name: str, expected: str) -> None:
    """Row 27, defence off: the same files outside."""
    assert expected == _run_as_user(privileged_files / name).rpartition(" ")[0]


def test_capable_file_gives_privilege_with_the_defence_off(privileged_files: Path) -> None:
    """Row 27, defence off: the same file outside."""
    assert "0" != _run_as_user(privileged_files / "capable").split()[-1]


def _run_as_user(program: Path) -> str:
    """Run a program of the host as uid 1000, by descriptor: the directories of the tests are closed to others."""
    with open(program, "rb") as file:
        if os.fstatvfs(file.fileno()).f_flag & os.ST_NOSUID:
            pytest.skip(f"{program.parent} of this host is mounted nosuid")
        words = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", f"/proc/self/fd/{file.fileno()}", "ids"]
        done = subprocess.run(words, pass_fds=[file.fileno()], capture_output=True, text=True, check=True)
    return done.stdout.strip()
