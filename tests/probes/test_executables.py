"""The programs that run: none can be changed from inside, the launcher's least of all, which is also every init."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minisandbox import Supervisor
from minisandbox.launcher import binary_path
from tests.probes.lab import ATTEMPT, PROBE, SANDBOXED, Defence, host_pid_of_init, parse, policy_of, probe_bind

REWRITE = (
    ATTEMPT
    + """
for pid in ("self", "1", "thread-self", str(os.getpid()), str(os.getppid())):
    link = f"/proc/{pid}/exe"
    attempt(link + ":write", lambda: os.open(link, os.O_WRONLY))
    attempt(link + ":truncate", lambda: os.truncate(link, 0))
    try:
        path_fd = os.open(link, os.O_PATH)
    except OSError as error:
        continue
    attempt(link + ":reopen", lambda: os.open(f"/proc/self/fd/{path_fd}", os.O_RDWR))
    attempt(link + ":mode", lambda: os.chmod(f"/proc/self/fd/{path_fd}", 0o777))
"""
)

DENIED = {errno.errorcode[number] for number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY)}


@pytest.fixture
def untouched_launcher() -> Iterator[None]:
    """Checks at the end that the launcher's binary on the disk is what it was."""
    before = hashlib.sha256(Path(binary_path()).read_bytes()).digest()
    yield
    assert before == hashlib.sha256(Path(binary_path()).read_bytes()).digest()


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_running_program_cannot_be_rewritten(
    untouched_launcher: None, supervisor: Supervisor, defence: Defence
) -> None:
    """Row 1: not the program itself, nor init's, neither by name, by a path descriptor, nor its mode."""
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        outcomes = parse((await sandbox.run(["python3", "-c", REWRITE])).stdout.decode())

    assert {"/proc/self/exe:write", "/proc/self/exe:reopen", "/proc/1/exe:write"} <= set(outcomes)
    assert set(outcomes.values()) <= DENIED


async def test_program_of_the_sandbox_is_its_own(supervisor: Supervisor, probe_dir: Path) -> None:
    """Row 1, defence off: what lies on the sandbox's own file system can be rewritten, so the attempt is sound."""
    async with supervisor.open_sandbox(binds=[probe_bind(probe_dir)]) as sandbox:
        await sandbox.run(f"cp {PROBE} /tmp/own; ln -s /tmp/own /tmp/link")
        result = await sandbox.run(["python3", "-c", "import os; os.truncate('/tmp/link', 0); print('ok')"])

    assert b"ok\n" == result.stdout


WATCH = """
import os
met, reached = set(), set()
print("watching", flush=True)
while not os.path.exists("/tmp/stop"):
    for name in os.listdir("/proc"):
        if not name.isdigit() or name in ("1", str(os.getpid())):
            continue
        try:
            with open(f"/proc/{name}/comm") as comm:
                if comm.read() == "init\\n":
                    met.add(name)
            reached.add(os.readlink(f"/proc/{name}/exe"))
            os.close(os.open(f"/proc/{name}/mem", os.O_RDWR))
            with open(f"/proc/{name}/comm") as comm:
                if comm.read() == "init\\n":
                    reached.add("memory of init")
        except OSError:
            pass
print("met", len(met))
for name in reached:
    print("reached", name)
"""
"""Looks at each process that begins, in the moment before it executes its program: it is a part of init then."""


@pytest.mark.parametrize("defence", [Defence.DEFAULT, Defence.UNFILTERED], ids=lambda defence: defence.value)
async def test_command_cannot_be_reached_before_it_executes(
    untouched_launcher: None, supervisor: Supervisor, probe_dir: Path, defence: Defence
) -> None:
    """Rows 1 and 18: until then it shares init's memory and program, with the ids of the sandbox already.

    Defence off does not exist, since init is never dumpable. That such processes were met shows that it was tried.
    """
    async with (
        supervisor.open_sandbox(policy=policy_of(defence), binds=[probe_bind(probe_dir)]) as sandbox,
        trio.open_nursery() as nursery,
    ):
        ready, results = trio.Event(), []

        async def watch() -> None:
            results.append(await sandbox.run(["python3", "-c", WATCH], on_stdout=lambda _: ready.set()))

        nursery.start_soon(watch)
        await ready.wait()
        for _ in range(300):
            await sandbox.run([PROBE, "ids"])
        await sandbox.write_file("/tmp/stop", b"")
    lines = results[0].stdout.decode().splitlines()

    assert 0 < next(int(line.split()[1]) for line in lines if line.startswith("met"))
    assert {"reached /probe/probe"} == {line for line in lines if line.startswith("reached")}


@pytest.mark.requires_root
async def test_not_even_root_of_the_host_can_rewrite_init(untouched_launcher: None, supervisor: Supervisor) -> None:
    """Row 1: to him /proc/PID/exe is open, and leads to a sealed memory file, so that this is a second defence."""
    async with supervisor.open_sandbox() as sandbox:
        exe = f"/proc/{host_pid_of_init(sandbox)}/exe"
        name = os.readlink(exe)
        errors = set()
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC):
            with pytest.raises(OSError) as caught:
                os.close(os.open(exe, flags))
            errors.add(caught.value.errno)

    assert name.startswith("/memfd:minisandbox-launcher")
    assert errors <= {errno.ETXTBSY, errno.EPERM}
