"""Forks that stand by in parked sandboxes of a template: nobody can tell them from those that are made on demand."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest
import trio

from minisandbox import ExitReason, Limits, Supervisor, Template, UsageError
from minisandbox.runtime.standing import ORDER_MAX_BYTES, Standing, stand_by
from tests import observer
from tests.templates import NEEDS_PYTHON, PYTHON

MIB = 1 << 20
PROCESSES = "import os; print([int(name) for name in sorted(os.listdir('/proc')) if name.isdigit()])"

pytestmark = NEEDS_PYTHON


@pytest.fixture
async def template(supervisor: Supervisor) -> AsyncIterator[Template]:
    """A template of the host's Python."""
    with trio.fail_after(60):
        async with supervisor.open_template(python=PYTHON, preload="import random") as opened:
            yield opened


@pytest.fixture
async def standing(supervisor: Supervisor, template: Template) -> AsyncIterator[Standing]:
    """A fork that stands by in an open sandbox."""
    async with supervisor.open_sandbox(template=template) as sandbox:
        await stand_by(sandbox)
        assert sandbox.standing is not None
        yield sandbox.standing


async def host_pid(standing: Standing) -> int:
    """Return its number on the host, once it is there."""
    await observer.wait_until(lambda: bool(standing.command.leaf.members()), trio.lowlevel.checkpoint)
    (pid,) = standing.command.leaf.members()
    return pid


async def test_a_fork_stands_by_in_a_parked_sandbox(supervisor: Supervisor, template: Template) -> None:
    """It runs the first program, with the number that it has; the next one is another process."""
    for _ in range(6):
        async with supervisor.open_sandbox(template=template):
            pass
    with trio.fail_after(30):
        await supervisor.parking.filled()
    async with supervisor.open_sandbox(template=template) as sandbox:
        assert sandbox.timing.parked and sandbox.standing is not None
        pid = await host_pid(sandbox.standing)
        first = await sandbox.run_warm("import os; print(os.getpid(), os.getppid())")
        second = await sandbox.run_warm("import os; print(os.getpid(), os.getppid())")

    assert (b"3 1\n", b"5 1\n") == (first.stdout, second.stdout)
    with pytest.raises(ProcessLookupError):
        look(pid)


def look(pid: int) -> None:
    """Raise unless this process is there."""
    os.kill(pid, 0)


async def test_nothing_of_a_workload_runs_beside_it(standing: Standing) -> None:
    """It is gone before a command begins, and was not counted as one."""
    sandbox = standing._sandbox
    result = await sandbox.run([PYTHON, "-c", PROCESSES])
    after = await sandbox.run_warm("print(1)")

    assert (ExitReason.EXITED, 3, b"1\n") == (result.exit_reason, len(result.stdout.split()) + 1, after.stdout), result


async def test_files_can_be_put_and_read_while_it_stands_by(standing: Standing) -> None:
    """Nothing of a workload runs for that, so it stays, and sees them."""
    sandbox, pid = standing._sandbox, await host_pid(standing)
    await sandbox.write_file("/tmp/module_of_mine.py", b"value = 6\n")
    await sandbox.write_file("/tmp/main.py", b"import os, module_of_mine as m\nprint(m.value, os.getpid())\n")
    kept = sandbox.standing is standing and await sandbox.read_file("/tmp/main.py")
    look(pid)
    result = await sandbox.run_warm(file="/tmp/main.py")

    assert (b"6 3\n", True) == (result.stdout, bool(kept)), result


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_one_that_is_gone_is_replaced(standing: Standing, number: signal.Signals) -> None:
    """Whether that was noted or not: its end is never taken for that of a program that never began."""
    sandbox = standing._sandbox
    os.kill(await host_pid(standing), number)
    first = await sandbox.run_warm("print(1)")
    await stand_by(sandbox)
    assert sandbox.standing is not None
    os.kill(await host_pid(sandbox.standing), number)
    await sandbox.standing.command.ended.wait()
    second = await sandbox.run_warm("print(2)")

    assert (b"1\n", b"2\n", ExitReason.EXITED) == (first.stdout, second.stdout, second.exit_reason)


async def test_what_cannot_be_changed_any_more_takes_another_fork(standing: Standing) -> None:
    """User, working directory, limits that the kernel has of it, and an order that is too long."""
    sandbox = standing._sandbox
    text = "x" * ORDER_MAX_BYTES
    seen = []
    for code, options in (
        ("import os; print(os.getuid())", {"user": 1000}),
        ("import os; print(os.getcwd())", {"cwd": "/usr"}),
        ("import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE))", {"limits": Limits(open_files=50)}),
        (f"print(len('{text}'))", {}),
    ):
        await stand_by(sandbox)
        seen.append((await sandbox.run_warm(code, **options)).stdout)
        assert sandbox.standing is None

    assert [b"1000\n", b"/usr\n", b"(50, 50)\n", b"%d\n" % len(text)] == seen


async def test_what_is_given_with_the_program_holds(standing: Standing) -> None:
    """Input, variables, limits and who watches, though it was there before."""
    sandbox, seen = standing._sandbox, bytearray()
    program = "import os, sys; print(os.environ['X'], sys.stdin.read(), sys.argv); print('e' * 100, file=sys.stderr)"
    result = await sandbox.run_warm(
        program, argv=["a"], stdin=b"in", env={"X": "1"}, limits=Limits(output_kept_bytes=40), on_stdout=seen.extend
    )
    await stand_by(sandbox)
    nothing = await sandbox.run_warm("import os, sys; print(sys.stdin.read(), os.readlink('/proc/self/fd/0'))")
    await stand_by(sandbox)
    refused = await sandbox.run_warm("import os\nwhile os.fork() >= 0: pass", limits=Limits(processes=8))

    assert (b"1 in ['-c', 'a']\n", b" /dev/null\n") == (bytes(seen), nothing.stdout)
    assert result.stderr_truncated and b"bytes omitted" in result.stderr
    assert ExitReason.PROCESSES == refused.exit_reason


async def test_it_is_accounted_as_any_fork(standing: Standing) -> None:
    """Memory that it holds while it waits is that of its program, and its limit is one of the sandbox."""
    sandbox = standing._sandbox
    ahead = await sandbox.run_warm("x = bytearray(20 << 20)")
    on_demand = await sandbox.run_warm("x = bytearray(20 << 20)")

    assert ahead.usage.memory_peak_bytes and on_demand.usage.memory_peak_bytes
    assert 20 * MIB < ahead.usage.memory_peak_bytes < on_demand.usage.memory_peak_bytes + 4 * MIB


async def test_one_of_other_limits_is_not_handed_out(supervisor: Supervisor, template: Template) -> None:
    """It was made under others; the sandbox goes on without it."""
    for _ in range(6):
        async with supervisor.open_sandbox(template=template):
            pass
    with trio.fail_after(30):
        await supervisor.parking.filled()
    async with supervisor.open_sandbox(template=template, limits=Limits(memory_bytes=100 * MIB)) as sandbox:
        assert sandbox.timing.parked
        without = sandbox.standing is None
        result = await sandbox.run_warm("x = bytearray(300 << 20)")

    assert (True, ExitReason.MEMORY) == (without, result.exit_reason)


async def test_a_closed_sandbox_takes_it_along(supervisor: Supervisor, template: Template) -> None:
    """Used or not; and a mistake of the caller does not cost it."""
    async with supervisor.open_sandbox(template=template) as sandbox:
        await stand_by(sandbox)
        with pytest.raises(UsageError):
            await sandbox.run_warm("print(1)", cwd="relative")
        assert sandbox.standing is not None
        standing, pid = sandbox.standing, await host_pid(sandbox.standing)
        await sandbox.kill_all()
        await standing.command.ended.wait()
        result = await sandbox.run_warm("print(1)")
        await stand_by(sandbox)
    with pytest.raises(ProcessLookupError):
        look(pid)

    assert b"1\n" == result.stdout
    assert [] == observer.inits()


async def test_random_numbers_of_forks_that_stand_by_differ(supervisor: Supervisor, template: Template) -> None:
    """Two that wait at the same time, too; and a seed pins them as ever."""
    free: set[bytes] = set()
    pinned: set[bytes] = set()
    async with supervisor.open_sandbox(template=template) as one, supervisor.open_sandbox(template=template) as other:
        for seed, seen in ((None, free), (5, pinned)):
            for sandbox in (one, other):
                await stand_by(sandbox)
            for sandbox in (one, other):
                seen.add((await sandbox.run_warm("import random; print(random.random())", seed=seed)).stdout)

    assert (2, 1) == (len(free), len(pinned))


async def test_a_start_that_is_cancelled_leaves_nothing(supervisor: Supervisor, template: Template) -> None:
    """Wherever it is then, also while the fork is asked for; and the template goes on."""
    for turn in range(24):
        with trio.fail_after(30), trio.move_on_after(turn * 0.0003):
            async with supervisor.open_sandbox(template=template) as sandbox:
                await sandbox.run_warm("print(1)")
    async with supervisor.open_sandbox(template=template) as sandbox:
        result = await sandbox.run_warm("print(1)")

    assert (b"1\n", 0, 0) == (result.stdout, template.replaced, supervisor.live)
    assert [] == observer.inits() and not supervisor.quarantined
