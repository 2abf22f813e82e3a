"""What a command holds when it begins: three descriptors, its own, and nothing that leads out of its sandbox."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minisandbox import Sandbox, Supervisor
from minisandbox.kernel.protocol import RecordKind, Request, Stage
from minisandbox.spec import Limits
from tests.probes.lab import PROBE, SANDBOXED, Defence, policy_of, probe_bind

HIGH_FD = 2048


@pytest.fixture
def leaked_fds() -> Iterator[list[int]]:
    """Descriptors of the host's root directory that a careless host program left open over exec, low and high."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2 * HIGH_FD), hard), hard))
    root_fd = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(root_fd, True)
    fds = [root_fd, *(os.dup2(root_fd, fd, inheritable=True) for fd in (50, HIGH_FD))]
    yield fds
    for fd in fds:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def numbers(output: str) -> list[int]:
    """Return the descriptors that the probe reports."""
    return [int(line.split(" ", 1)[0]) for line in output.splitlines()]


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_only_three_descriptors_are_open(
    leaked_fds: list[int], supervisor: Supervisor, probe_dir: Path, defence: Defence
) -> None:
    """Rows 2 and 4: whatever the host's program has open and inheritable, and none leads to a directory above."""
    async with supervisor.open_sandbox(policy=policy_of(defence), binds=[probe_bind(probe_dir)]) as sandbox:
        plain = await sandbox.run([PROBE, "descriptors"])
        fed = await sandbox.run([PROBE, "descriptors"], stdin=b"x")

    assert leaked_fds
    assert [0, 1, 2] == numbers(plain.stdout.decode()) == numbers(fed.stdout.decode())
    assert b"leads-to" not in plain.stdout + fed.stdout


def test_descriptors_are_seen_with_the_defence_off(leaked_fds: list[int], probe_dir: Path) -> None:
    """Rows 2 and 4, defence off: a program that is just executed holds them, and they lead to the host's root."""
    done = subprocess.run(
        [probe_dir / "probe", "descriptors"], close_fds=False, capture_output=True, text=True, check=True
    )
    lines = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]

    assert set(leaked_fds) <= set(numbers(done.stdout))
    assert len(leaked_fds) <= lines.count("leads-to /")


async def test_only_three_descriptors_are_open_beside_others(supervisor: Supervisor, probe_dir: Path) -> None:
    """Row 2: commands and transfers that init serves at the same time do not see each other's descriptors."""
    outputs: list[bytes] = []

    async def look(sandbox: Sandbox) -> None:
        outputs.append((await sandbox.run([PROBE, "descriptors"], stdin=b"x")).stdout)

    async with supervisor.open_sandbox(binds=[probe_bind(probe_dir)]) as sandbox, trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(look, sandbox)
            nursery.start_soon(sandbox.write_file, f"/tmp/{number}", bytes(100_000))

    assert [[0, 1, 2]] * 8 == [numbers(output.decode()) for output in outputs]


LEAVE_A_NOTE = "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK); fcntl.fcntl(0, 10, 33)"
READ_IT = "import fcntl; print(fcntl.fcntl(0, fcntl.F_GETFL) & 0o6000, fcntl.fcntl(0, 11))"


async def test_stdin_is_shared_with_nobody(supervisor: Supervisor) -> None:
    """Row 2: what a command sets on its stdin (fcntl(2): flags, signal) is not there for another one to read."""
    async with supervisor.open_sandbox() as sandbox:
        left = await sandbox.run(["python3", "-c", LEAVE_A_NOTE])
        second = await sandbox.run(["python3", "-c", READ_IT])
    async with supervisor.open_sandbox() as sandbox:
        third = await sandbox.run(["python3", "-c", READ_IT])

    assert left.ok, left.stderr
    assert b"0 0\n" == second.stdout == third.stdout


def test_stdin_is_shared_with_the_defence_off() -> None:
    """Row 2, defence off: two programs that are given one descriptor do share it."""
    with open(os.devnull, "rb") as null:
        subprocess.run(["python3", "-c", LEAVE_A_NOTE], stdin=null, check=True)
        done = subprocess.run(["python3", "-c", READ_IT], stdin=null, capture_output=True, text=True, check=True)

    assert f"{os.O_APPEND | os.O_NONBLOCK} 33\n" == done.stdout


async def test_stdin_is_not_the_hosts_device(sandbox: Sandbox) -> None:
    """Row 2: where nothing is fed, stdin is the sandbox's own /dev/null, whose inode tells nothing about the host."""
    result = await sandbox.run(
        ["python3", "-c", "import os; print(os.path.samestat(os.stat(0), os.stat('/dev/null')))"]
    )

    assert b"True\n" == result.stdout


@pytest.mark.parametrize("given", [0, 1, 2, 4])
async def test_a_request_with_another_number_of_descriptors_is_refused(sandbox: Sandbox, given: int) -> None:
    """Row 5: three are announced, another number comes with it: an error, the command never runs, and init serves on.

    Defence off does not exist: with three the same request runs, which shows that nothing else is wrong with it.
    """
    outcomes = [await _request_with(sandbox, count) for count in (given, 3)]
    after = await sandbox.run(["cat"], stdin=b"still here")

    assert [(RecordKind.FAILED, Stage.REQUEST), (RecordKind.EXIT, Stage.NONE)] == outcomes
    assert b"still here" == after.stdout


async def _request_with(sandbox: Sandbox, count: int) -> tuple[RecordKind, Stage]:
    """Ask init for `true` with three descriptors announced and `count` of them sent; return how it ended."""
    command = sandbox.new_command(Limits())
    request = Request("run").option("id", command.number).option("cwd", "/").option("uid", 0).option("gid", 0)
    with open(os.devnull, "rb+", buffering=0) as null:
        for _ in range(3):
            request.flag("stdio")
        request.fds.extend([null.fileno()] * count)
        request.option("capabilities", 0).command(["/bin/true"])
        await sandbox.start_command(command, request)
        await command.ended.wait()
    failure = command.outcome.failure
    sandbox.finish(command)
    return (RecordKind.EXIT, Stage.NONE) if failure is None else (RecordKind(failure.kind), Stage(failure.stage))
