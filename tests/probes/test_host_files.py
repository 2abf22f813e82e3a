"""Files of the host: those that nobody has named are not there, before, during and after a command."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from minisandbox import Bind, Supervisor
from tests.probes.lab import PROBE, SANDBOXED, Defence, open_successor, policy_of, probe_bind, run_outside

SEARCH = """
import os, sys
wanted, hidden = sys.argv[1:]
for path, directories, files in os.walk("/"):
    if path in ("/proc", "/usr"):
        directories[:] = []
    for name in (*directories, *files):
        if wanted in name:
            print(os.path.join(path, name))
for way in ("/proc/self/root", "/proc/self/cwd", "/proc/1/root", "/proc/1/cwd", "/proc/self/cwd/../../..", "/../.."):
    if os.path.lexists(way + hidden):
        print(way + hidden)
"""
"""Walks all but programs and processes for a part of a name, and goes to a path of the host in roundabout ways."""

PRIVATE = (
    *(
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/ssh",
        "/etc/machine-id.host",
        "/root/.ssh",
        "/root/.bash_history",
        "/home/*",
    ),
    *(
        "/var/lib/minisandbox",
        "/var/lib/docker",
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/systemd",
        "/var/log/*",
    ),
    *("/boot", "/media", "/sys/kernel", "/sys/class", "/dev/mem", "/dev/kmsg", "/dev/sd*", "/dev/vd*", "/dev/kvm"),
)
PLACES = ("/tmp", "/root", "/var/tmp", "/run", "/dev/shm", "/etc", "")
ALLOWED = frozenset({"/home/user"})


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of the host with a name that nothing else has."""
    file = tmp_path / f"canary-{secrets.token_hex(8)}"
    file.write_text("secret")
    return file


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_files_of_the_host_are_absent(supervisor: Supervisor, canary: Path, defence: Defence) -> None:
    """Row 61: neither by its path nor by a walk through all that can be reached. Defence off: bound, it is found."""
    policy = policy_of(defence)
    async with supervisor.open_sandbox(policy=policy) as sandbox:
        walked = await sandbox.run(["python3", "-c", SEARCH, canary.name, str(canary)])
        listed = await sandbox.run(["sh", "-c", f"ls -d {canary} {' '.join(PRIVATE)} 2>/dev/null"])
    async with supervisor.open_sandbox(
        policy=policy, binds=[Bind(source=canary, target=f"/srv/{canary.name}")]
    ) as sandbox:
        found = await sandbox.run(["python3", "-c", SEARCH, canary.name, str(canary)])

    assert b"" == walked.stdout, walked.stdout
    assert set(listed.stdout.decode().split()) <= ALLOWED
    assert f"/srv/{canary.name}" in found.stdout.decode().split()


async def test_state_of_the_supervisor_is_absent(supervisor: Supervisor) -> None:
    """Row 61: not its layers, locks and instances, though the sandbox is made of them."""
    state = supervisor.state
    names = [path.name for place in (state.layers, state.path / "instances") for path in place.iterdir()]
    async with supervisor.open_sandbox() as sandbox:
        searched = [await sandbox.run(["python3", "-c", SEARCH, name[:16], str(state.path)]) for name in names[:2]]
        mounts = (await sandbox.run(["cat", "/proc/self/mountinfo"])).stdout.decode()

    assert names
    assert {b""} == {result.stdout for result in searched}
    assert str(state.path) not in mounts
    assert not [name for name in names if name in mounts]


async def test_what_is_written_to_one_is_absent_from_others(supervisor: Supervisor) -> None:
    """Row 61: neither in a sandbox beside it nor in the next one in its slot, nor on the host."""
    name = f"left-{secrets.token_hex(8)}"
    search = ["python3", "-c", SEARCH, name, f"/{name}"]
    async with supervisor.open_sandbox() as sandbox, supervisor.open_sandbox() as beside:
        await sandbox.run("; ".join(f"echo x > {place}/{name}" for place in PLACES))
        own = (await sandbox.run(search)).stdout.decode().split()
        others = [(await beside.run(search)).stdout]
        slot = sandbox.slot.number
    async with open_successor(supervisor, slot, policy_of(Defence.DEFAULT)) as later:
        others.append((await later.run(search)).stdout)

    assert {f"{place}/{name}" for place in PLACES} <= set(own)
    assert [b""] * 2 == others
    assert not [place for place in PLACES if os.path.exists(f"{place}/{name}")]


async def test_environment_of_the_supervisor_is_absent(
    supervisor: Supervisor, probe_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 61: nor are its variables, arguments and working directory. Defence off: a program just executed has them."""
    monkeypatch.setenv("PROBE_SECRET", "secret-variable")
    async with supervisor.open_sandbox(binds=[probe_bind(probe_dir)]) as sandbox:
        result = await sandbox.run(
            "env; cat /proc/*/environ /proc/*/cmdline /proc/*/cwd/x 2>/dev/null | tr '\\0' '\\n'; pwd"
        )
        ids = await sandbox.run([PROBE, "ids"])
    outside = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout

    assert b"secret-variable" not in result.stdout
    assert os.getcwd().encode() not in result.stdout
    assert {"PATH", "HOME", "LANG", "PWD", "SHLVL", "_", "OLDPWD"} >= {
        line.split("=", 1)[0] for line in result.stdout.decode().splitlines() if "=" in line and " " not in line
    }
    assert "PROBE_SECRET=secret-variable" in outside
    assert ids.ok


@pytest.mark.usefixtures("state_dir")
def test_walk_finds_a_file_outside(canary: Path, tmp_path: Path) -> None:
    """Row 61, defence off: outside, the file is found by the same search, of its directory, and in roundabout ways."""
    code = SEARCH.replace('os.walk("/")', f'os.walk("{canary.parent}")')
    found = run_outside(["python3", "-c", code, canary.name, str(canary)], tmp_path).splitlines()

    assert str(canary) == found[0]
    assert {f"/proc/self/root{canary}", f"/proc/1/root{canary}"} <= set(found)
