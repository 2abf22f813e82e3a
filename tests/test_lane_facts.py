"""What the doctor says is what opening a supervisor shows, on every kind of host; and lanes are what they claim."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minisandbox import HostError, SandboxError, open_supervisor
from minisandbox.kernel.cgroup import CgroupKind
from minisandbox.kernel.host import read_host_facts
from minisandbox.runtime.features import FEATURES
from minisandbox.runtime.host_checks import check_host, kernel_refusal
from tests.cli import json_of, minisandbox
from tests.rootless import needed_degradations

pytestmark = pytest.mark.qemu

LANE = os.environ.get("MINISANDBOX_LANE", "")

ROOT_LANES = ("host", "v1", "v2", "uml61", "qemu", "qemu61")
LACKS: dict[str, set[str]] = {
    **{name: set[str]() for name in ROOT_LANES},
    "box": {"capabilities", "control groups"},
    "box-docker": {"capabilities", "control groups"},
    "host-user": {"control groups", "controllers", "subordinate ids"},
    "v2-user": set(),
}
"""What sandboxes need and a lane lacks, by the names of findings."""

DEGRADED: dict[str, set[str]] = {
    "host-user": {"control-groups", "memory-limit", "processes-limit", "cpus-limit", "single-id"},
    "v2-user": set(),
}
"""What sandboxes of an ordinary user are without in a lane."""

KINDS = {"v1": CgroupKind.V1, **dict.fromkeys(("v2", "v2-user", "uml61", "qemu", "qemu61"), CgroupKind.V2)}

KERNELS = {"uml61": r"6\.1\.", "qemu61": r"6\.1\.", "qemu": r"6\.12\."}


def test_lane_lacks_what_it_is_made_to_lack() -> None:
    """Where more is missing, tests would be skipped for no good reason; where less is, the lane tests nothing."""
    if LANE not in LACKS:
        pytest.skip("this is no lane")
    facts = read_host_facts()

    assert LACKS[LANE] == {finding.name for finding in check_host(facts) if finding.ok is False}
    assert KINDS.get(LANE, facts.cgroup_kind) == facts.cgroup_kind
    assert (not facts.proc_covered) or not LANE.startswith("v")
    assert bool(facts.proc_covered) or not LANE.startswith("box")
    assert re.match(KERNELS.get(LANE, ""), facts.kernel_release)


async def test_an_ordinary_user_of_a_lane_has_sandboxes_with_what_he_agrees_to_do_without(tmp_path: Path) -> None:
    """The doctor says so too, with the same degradations, and each result names those that the host needs."""
    if not LANE.endswith("-user"):
        pytest.skip("this is no lane of an ordinary user")
    needed = needed_degradations()
    run = minisandbox(
        tmp_path / "doctor", "doctor", "--json", *(word for name in needed for word in ("--degrade", name))
    )
    async with open_supervisor(state_dir=tmp_path / "state", degrade=needed) as supervisor:
        async with supervisor.open_sandbox() as sandbox:
            result = await sandbox.run(["echo", "works"])

    assert (0, True, b"works\n") == (run.returncode, json_of(run)["enforceable"], result.stdout)
    assert DEGRADED[LANE] == set(result.degraded) == set(json_of(run)["degraded"])


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Any]]:
    """Exit code and JSON of the doctor."""
    run = minisandbox(tmp_path_factory.mktemp("doctor"), "doctor", "--json")
    yield run.returncode, json_of(run)


async def test_doctor_agrees_with_what_opening_shows(diagnosis: tuple[int, Any], tmp_path: Path) -> None:
    """The exit code is 0 where a supervisor with its self-test opens and a command runs, and only there."""
    code, found = diagnosis
    try:
        async with open_supervisor(state_dir=tmp_path / "state") as supervisor, supervisor.open_sandbox() as sandbox:
            works = (await sandbox.run(["echo", "works"])).stdout == b"works\n"
    except SandboxError:
        works = False

    assert (0 if works else 1, works) == (code, found["enforceable"])


def test_what_is_missing_comes_with_one_line_of_advice(diagnosis: tuple[int, Any]) -> None:
    """Each thing, be it needed or not, says what to do about it; what was not tried for lack of it does not."""
    findings = [msgspec.convert(each, dict[str, Any]) for each in diagnosis[1]["findings"]]
    missing = [each for each in findings if each["ok"] is not True and each["detail"] != "not tried"]

    assert all(each["detail"] and "\n" not in each["detail"] for each in findings)
    assert [] == [each["name"] for each in missing if not (each["advice"] or "; " in each["detail"])]
    assert [] == [each["name"] for each in missing if "\n" in each["advice"]]


def test_older_ways_are_told_with_what_they_cost(diagnosis: tuple[int, Any]) -> None:
    """Where a sandbox could be opened, each feature of newer kernels is there or is told; none of them is needed."""
    _, found = diagnosis
    features = {each["name"]: each["ok"] for each in found["findings"] if each["name"] in {f.name for f in FEATURES}}

    assert ({f.name for f in FEATURES} if found["enforceable"] else set()) == set(features)
    assert False not in features.values()


@pytest.mark.parametrize("release", ["5.15.0-91-generic", "6.0.19", "4.18.0-553.el8", "3.10"])
async def test_kernel_below_the_oldest_is_refused(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a reason, before anything is made; and the doctor counts it as missing."""
    monkeypatch.setattr(platform, "release", lambda: release)
    finding = next(each for each in check_host(read_host_facts()) if each.name == "kernel")
    with pytest.raises(HostError, match=rf"not run on Linux {re.escape(release)} .* needs Linux 6\.1 or newer"):
        async with open_supervisor(state_dir=tmp_path / "state"):
            pass

    assert (False, True) == (finding.ok, "6.1" in finding.advice)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("release", ["6.1", "6.1.0-18-amd64", "6.12.57+deb13", "7.2.7", "10.0", "unknown"])
def test_kernel_from_the_oldest_on_is_taken(release: str) -> None:
    """Newer ones too, and those that do not say."""
    assert "" == kernel_refusal(release, "x86_64")
