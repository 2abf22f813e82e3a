"""The doctor: right about this host, about hosts that lack something, and able to tell a sandbox from none."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from minisandbox.errors import StartError
from minisandbox.kernel.cgroup_layout import CgroupKind
from minisandbox.kernel.host import HostFacts, IdRange, read_host_facts
from minisandbox.kernel.protocol import Stage
from minisandbox.policy import load_policy
from minisandbox.runtime.advice import ADVICE, advice_for
from minisandbox.runtime.doctor import TRIALS
from minisandbox.runtime.host_checks import LAUNCHER_CAPABILITIES, check_host
from minisandbox.runtime.probes import PROBES, Probe
from minisandbox.runtime.supervisor import Supervisor
from tests.cli import environment, json_of, minisandbox

needs_setpriv = pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="this host has no setpriv to drop rights with"
)

LAST_RESORT = "CAP_KILL"
"""Needed only for what does not end by itself."""

BECOME_NOBODY = """
import os, sys
import minisandbox.cli.main, minisandbox.runtime.doctor, rich.console, rich.text, encodings.idna
if os.geteuid() == 0:  # after the imports: root's own Python need not be readable for others
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
raise SystemExit(minisandbox.cli.main.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    """The facts about this host, made to be without fault."""
    return msgspec.structs.replace(
        read_host_facts(),
        is_root=True,
        user_namespaces_max=65536,
        unprivileged_userns_clone=None,
        apparmor_restrict_unprivileged_userns=None,
        subuids=(IdRange(first=100000, count=65536),),
        subgids=(IdRange(first=100000, count=65536),),
        id_mappers=True,
        capabilities_effective=(1 << 41) - 1,
        architecture="x86_64",
        cgroup_kind=CgroupKind.V2,
        cgroup_controllers={"memory": "/a", "pids": "/a", "cpu": "/a"},
        cgroup_writable=True,
        overlay=True,
        seccomp_actions=("kill_process", "errno", "allow"),
        open_files_hard=1 << 20,
    )


def test_good_host_lacks_nothing(facts: HostFacts) -> None:
    """Where all is there, no finding says no."""
    assert [] == [finding.name for finding in check_host(facts) if finding.ok is False]


@pytest.mark.parametrize(
    ("name", "ok", "change"),
    [
        ("capabilities", False, {"capabilities_effective": 0}),
        ("kernel", False, {"architecture": "mips"}),
        ("user namespaces", False, {"user_namespaces_max": 0}),
        ("overlayfs", None, {"overlay": False}),
        ("seccomp", False, {"seccomp_actions": ()}),
        ("control groups", False, {"cgroup_kind": None}),
        ("control groups", False, {"cgroup_writable": False}),
        ("controllers", False, {"cgroup_controllers": {"cpu": "/a"}}),
        ("controllers", None, {"cgroup_controllers": {"memory": "/a", "pids": "/a"}}),
        ("descriptors", None, {"open_files_hard": 256}),
        ("proc", None, {"proc_covered": ("/proc/keys",)}),
        ("nesting", None, {"container_hints": ("docker",)}),
        ("rootless", False, {"is_root": False, "user_namespaces_max": 0}),
        ("rootless", False, {"is_root": False, "unprivileged_userns_clone": False}),
        ("subordinate ids", False, {"is_root": False, "subuids": ()}),
        ("subordinate ids", False, {"is_root": False, "id_mappers": False}),
        ("control groups", False, {"is_root": False, "cgroup_writable": False}),
        ("controllers", False, {"is_root": False, "cgroup_controllers": {"cpu": "/a"}}),
    ],
)
def test_missing_feature_is_named_with_what_to_do(
    name: str, ok: bool | None, change: dict[str, object], facts: HostFacts
) -> None:
    """One finding changes, only what the default policy needs counts as missing, and there is advice."""
    host = msgspec.structs.replace(facts, **change)
    (finding,) = [finding for finding in check_host(host) if finding.name == name]

    assert ok is finding.ok
    assert finding.advice


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_has_advice(stage: Stage) -> None:
    """Whatever step fails, and however, there are words for it."""
    error = StartError("cannot", stage.name.lower(), 1)

    assert stage in ADVICE
    assert all(advice_for(error.stage, number) for number in (1, 12, 22, 28, 38))


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
async def test_probe_passes_inside(probe: Probe, supervisor: Supervisor) -> None:
    """What a probe prints in a sandbox passes."""
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run(["/bin/sh", "-c", probe.script, "sh", str(supervisor.state.path)])

    assert (True, result.ok) == (probe.judge(result.stdout.decode(), sandbox.policy)[0], True)


@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe.name != "command"], ids=lambda probe: probe.name)
def test_probe_fails_without_a_sandbox(probe: Probe, tmp_path: Path) -> None:
    """With every defence off, on the bare host as it was started, the same look does not pass."""
    if probe.name == "network" and [name for _, name in socket.if_nameindex()] == ["lo"]:
        pytest.skip("this host itself has no network but lo")
    run = subprocess.run(["/bin/sh", "-c", probe.script, "sh", tmp_path], capture_output=True, text=True, check=True)
    policy = msgspec.structs.replace(load_policy("default"), capabilities=frozenset())

    assert not probe.judge(run.stdout, policy)[0]


@pytest.mark.slow
@pytest.mark.requires_root
def test_this_host_is_fine(state_dir: Path) -> None:
    """As root all trials pass here, the steps of the start are timed, and the exit code is 0."""
    run = minisandbox(state_dir, "doctor", "--json")

    diagnosis = json_of(run)
    tried = {finding["name"]: finding["ok"] for finding in diagnosis["findings"]}
    assert dict.fromkeys(TRIALS, True) == {name: tried[name] for name in TRIALS}
    assert (0, True) == (run.returncode, diagnosis["enforceable"])
    assert {"clone", "overlay", "root"} <= diagnosis["timing"]["stages"].keys()


@pytest.mark.slow
@pytest.mark.requires_root
def test_people_get_lines(state_dir: Path) -> None:
    """Each finding is a line, and the last one says what it comes to."""
    run = minisandbox(state_dir, "doctor")

    lines = run.stdout.decode().splitlines()
    assert (0, b"") == (run.returncode, run.stderr)
    assert all(any(line.startswith(f"ok  {name} ") for line in lines) for name in TRIALS)
    assert "The default policy can be enforced on this host." == lines[-1]


@pytest.mark.slow
@needs_setpriv
@pytest.mark.requires_root
@pytest.mark.parametrize("capability", [name for name in LAUNCHER_CAPABILITIES if name != LAST_RESORT])
def test_missing_capability_is_found_by_looking_and_by_trying(capability: str, state_dir: Path) -> None:
    """Without one of the capabilities nothing can be started, so none is listed in vain, and it is named.

    What CAP_CHOWN gives away are files of control groups v2 and, before Linux 6.3, directories of a sandbox.
    """
    name = capability.removeprefix("CAP_").lower()
    under = ("setpriv", "--bounding-set", f"-{name}", "--inh-caps", f"-{name}")
    run = minisandbox(state_dir, "doctor", "--json", under=under)

    found = {finding["name"]: finding for finding in json_of(run)["findings"]}
    failed = [trial for trial in TRIALS if found[trial]["ok"] is False]
    assert (1, False) == (run.returncode, json_of(run)["enforceable"])
    assert f"missing: {capability}" == found["capabilities"]["detail"]
    assert failed or (capability == "CAP_CHOWN" and found["control groups"]["detail"].startswith("v1,"))
    assert not failed or found["end"]["ok"] is None


@pytest.mark.slow
@needs_setpriv
@pytest.mark.requires_root
def test_capabilities_that_are_listed_suffice(state_dir: Path) -> None:
    """Without all the others, everything works."""
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in LAUNCHER_CAPABILITIES)
    under = ("setpriv", "--bounding-set", f"-all,{kept}", "--inh-caps", "-all")
    run = minisandbox(state_dir, "doctor", "--json", under=under)

    assert {} == {finding["name"]: finding for finding in json_of(run)["findings"] if finding["ok"] is False}


def as_nobody(place: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line as an ordinary user without subordinate ids and control groups."""
    return subprocess.run(
        [sys.executable, "-c", BECOME_NOBODY, *words], env=environment(place), capture_output=True, check=False
    )


@pytest.mark.requires_root
def test_ordinary_user_hears_what_is_missing() -> None:
    """The doctor names each thing with what to do, and how to do without, and exits with 1."""
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, 65534, 65534)
        run = as_nobody(Path(place), "doctor", "--json")

    found = {finding["name"]: finding for finding in json_of(run)["findings"]}
    assert 1 == run.returncode
    assert found["root"]["ok"] is None
    assert found["kernel"]["ok"] is not None
    assert (False, True) == (
        found["subordinate ids"]["ok"],
        "--degrade single-id" in found["subordinate ids"]["advice"],
    )


@pytest.mark.requires_root
def test_ordinary_user_cannot_run_and_hears_why() -> None:
    """`run` says in one line what is missing, and how to do without it."""
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, 65534, 65534)
        run = as_nobody(Path(place), "run", "--", "true")

    assert (125, b"") == (run.returncode, run.stdout)
    assert b"--degrade" in run.stderr
    assert 1 == run.stderr.count(b"\n")
