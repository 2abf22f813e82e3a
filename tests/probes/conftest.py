"""What the probes share: their program, built once, and what came of all its attempts with each defence."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

import minisandbox
from minisandbox import Degradation
from tests.probes.lab import PROBE, SANDBOXED, Defence, parse, policy_of, probe_bind, run_outside
from tests.rootless import missing_for, needed_degradations

HOST_CLOCK = frozenset({"settimeofday", "clock_settime"})
"""Never tried outside a sandbox: there is one clock, and it would be set."""

Survey = Mapping[Defence, Mapping[str, str]]


class _Found(dict[Defence, dict[str, str]]):
    """Outcomes by defence. Who has a single id has no policy strict, since that one's user is not root."""

    def __missing__(self, defence: Defence) -> dict[str, str]:
        pytest.skip(f"policy {defence.value}: {missing_for((Degradation.SINGLE_ID,))}")


@pytest.fixture(scope="session")
def probe_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the probe program, built statically."""
    directory = tmp_path_factory.mktemp("probe")
    sources = sorted(Path(__file__).parent.glob("*.c"))
    strict = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static"]
    subprocess.run(["cc", *strict, "-o", directory / "probe", *sources], check=True)
    directory.chmod(0o755)
    return directory


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """An empty layer, to be put on top of a rootfs."""
    directory = tmp_path / "layer"
    directory.mkdir()
    directory.chmod(0o755)
    return directory


@pytest.fixture(scope="session")
def survey(probe_dir: Path, state_dir: Path, engine: str, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """The outcome of every system call that is tried, by defence and name: one sandbox a policy tries them all."""
    return _survey(probe_dir, state_dir, engine, tmp_path_factory.mktemp("outside"), "calls", "kernel")


@pytest.fixture(scope="session")
def entry_survey(probe_dir: Path, state_dir: Path, engine: str, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """The same of calls by the other ways into the kernel."""
    return _survey(probe_dir, state_dir, engine, tmp_path_factory.mktemp("outside"), "entries")


@pytest.fixture(scope="session")
def process_survey(probe_dir: Path, state_dir: Path, engine: str, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """What can be done to the init of a sandbox from inside, and outside to a process like any other."""
    found = trio.run(_survey_sandboxes, probe_dir, state_dir, engine, ("process 1",))
    outside = run_outside([probe_dir / "probe", "process", "0"], tmp_path_factory.mktemp("outside"))
    found[Defence.OFF] = parse(outside)
    return found


def _survey(probe_dir: Path, state_dir: Path, engine: str, empty: Path, *groups: str) -> Survey:
    found = trio.run(_survey_sandboxes, probe_dir, state_dir, engine, groups)
    wanted = [name for name in found[Defence.DEFAULT] if name not in HOST_CLOCK]
    output = [run_outside([probe_dir / "probe", group, *wanted], empty) for group in groups]
    found[Defence.OFF] = parse("".join(output))
    return found


async def _survey_sandboxes(probe_dir: Path, state_dir: Path, engine: str, groups: tuple[str, ...]) -> _Found:
    found = _Found()
    async with minisandbox.open_supervisor(
        state_dir=state_dir, engine=engine, degrade=needed_degradations()
    ) as supervisor:
        for defence in SANDBOXED:
            if defence is Defence.STRICT and Degradation.SINGLE_ID in needed_degradations():
                continue
            async with supervisor.open_sandbox(policy=policy_of(defence), binds=[probe_bind(probe_dir)]) as sandbox:
                output = ""
                for group in groups:
                    result = await sandbox.run([PROBE, *group.split()], cwd="/tmp")
                    assert result.ok, f"{defence.value}, {group}: {result.exit_reason} {result.stderr!r}"
                    output += result.stdout.decode()
            found[defence] = parse(output)
    return found
