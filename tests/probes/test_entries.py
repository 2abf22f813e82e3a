"""Ways into the kernel beside the one that a filter is made for, and calls that are newer than the filter."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import minisandbox
from minisandbox.data import data_dir
from tests.probes.conftest import Survey
from tests.probes.lab import FILTERED, PROBE, Defence, is_reached, parse, policy_of, probe_bind, run_outside

ENTRIES = (
    "int80-getpid",
    "int80-mount",
    "int80-mkdir",
    "int80-socketcall",
    "far-call-getpid",
    "x32-getpid",
    "x32-ptrace",
    "x32-execve",
)

UNKNOWN_NUMBERS = ("0x400", "0x43f")
"""A range that no kernel uses yet: system calls end below 500, and grow by a few a year."""


def skip_where_missing(survey: Survey, name: str) -> None:
    """Skip where the kernel has no such entry, and so nothing to defend: its getpid then is none."""
    entry = name.rpartition("-")[0]
    if name not in survey[Defence.OFF]:
        pytest.skip("this architecture has one way into its kernel")
    if survey[Defence.OFF][f"{entry}-getpid"] in ("ENOSYS", "SIGSEGV"):
        pytest.skip(f"this kernel has no entry {entry}")


def test_every_entry_is_listed(entry_survey: Survey) -> None:
    """Row 51: nothing of what the probe program tries is left out here."""
    assert set(entry_survey[Defence.DEFAULT]) <= set(ENTRIES)


@pytest.mark.qemu
@pytest.mark.parametrize("defence", FILTERED, ids=lambda defence: defence.value)
@pytest.mark.parametrize("name", ENTRIES)
def test_foreign_entry_is_the_end_of_the_process(entry_survey: Survey, defence: Defence, name: str) -> None:
    """Row 51: whatever the call is, since its number means another one there."""
    if name not in entry_survey[defence]:
        pytest.skip("this architecture has one way into its kernel")

    if entry_survey[defence][name] != "SIGSYS":
        skip_where_missing(entry_survey, name)
    # SIGKILL: some kernels cannot deliver a signal to a process that is in the middle of a far call
    assert entry_survey[defence][name] in ("SIGSYS", "SIGKILL")


@pytest.mark.parametrize("defence", [Defence.UNFILTERED, Defence.OFF], ids=lambda defence: defence.value)
@pytest.mark.parametrize("name", ENTRIES)
def test_foreign_entry_works_with_the_defence_off(entry_survey: Survey, defence: Defence, name: str) -> None:
    """Row 51, defence off: without filters, inside or outside, the kernel takes the call."""
    skip_where_missing(entry_survey, name)

    assert is_reached(entry_survey[defence][name])


async def _run_numbers(
    supervisor: minisandbox.Supervisor, policy: minisandbox.Policy, probe_dir: Path
) -> dict[str, str]:
    async with supervisor.open_sandbox(policy=policy, binds=[probe_bind(probe_dir)]) as sandbox:
        result = await sandbox.run([PROBE, "numbers", *UNKNOWN_NUMBERS])
    assert result.ok, result.stderr
    return parse(result.stdout.decode())


async def test_new_call_works_or_is_unknown(
    supervisor: minisandbox.Supervisor, probe_dir: Path, tmp_path: Path
) -> None:
    """Row 59: each does what it does outside, or answers ENOSYS, on which libraries fall back; none is killed."""
    inside = await _run_numbers(supervisor, policy_of(Defence.DEFAULT), probe_dir)
    outside = parse(run_outside([probe_dir / "probe", "numbers", *UNKNOWN_NUMBERS], tmp_path))
    differing = {name: outcome for name, outcome in inside.items() if outcome not in (outside[name], "ENOSYS")}

    assert {} == differing
    assert {"ENOSYS"} == {outcome for name, outcome in inside.items() if name.startswith("0x")}
    assert {"ok"} == {inside[name] for name in ("statx", "openat2", "faccessat2", "close_range", "getrandom")}


async def test_new_call_is_killed_by_a_careless_filter(
    supervisor: minisandbox.Supervisor, probe_dir: Path, tmp_path: Path
) -> None:
    """Row 59, defence off: a profile that kills what it does not know would be noticed."""
    profile = json.loads((data_dir() / "policies" / "default.json").read_bytes())
    profile["defaultAction"] = "SCMP_ACT_KILL_PROCESS"
    del profile["defaultErrnoRet"]
    careless = tmp_path / "careless.json"
    careless.write_text(json.dumps(profile))
    policy = msgspec.structs.replace(policy_of(Defence.DEFAULT), seccomp=(careless,))
    inside = await _run_numbers(supervisor, policy, probe_dir)
    unknown = Counter(outcome for name, outcome in inside.items() if name.startswith("0x"))

    assert {"SIGSYS": 64} == unknown
