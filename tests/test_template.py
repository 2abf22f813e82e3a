"""Templates: a warm Python forked into fresh sandboxes behaves as one that was started there, and shares nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import trio

from minisandbox import (
    Bind,
    BrokenError,
    ClosedError,
    ExitReason,
    Limits,
    Sandbox,
    Supervisor,
    Template,
    TemplateError,
    UsageError,
    open_supervisor,
)
from minisandbox.runtime import warm_process
from tests import observer
from tests.templates import ATTACKS, NEEDS_PYTHON, PYTHON

MIB = 1 << 20
PRELOAD = "import json, random\nsecret = 'of the template'\ndef answer():\n    print('called')\n    return 7\n"

REWRITE = """
try:
    os.open('/proc/self/exe', os.O_RDWR)
    print('exe')
except OSError:
    pass
"""

pytestmark = NEEDS_PYTHON


@pytest.fixture
async def template(supervisor: Supervisor) -> AsyncIterator[Template]:
    """A template of the host's Python."""
    with trio.fail_after(60):
        async with supervisor.open_template(python=PYTHON, preload=PRELOAD) as opened:
            yield opened


@pytest.fixture(params=["on demand", "ahead"])
async def warm(supervisor: Supervisor, template: Template, request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """A sandbox of it, into which the first fork is made when it is asked for, or was made ahead."""
    async with supervisor.open_sandbox(template=template) as opened:
        if request.param == "on demand":
            await opened.drop_standing()
        yield opened


async def test_a_fork_runs_code_with_arguments_input_and_variables(warm: Sandbox) -> None:
    """As `python -c` does."""
    code = (
        "import os, sys; print(sys.argv, sys.stdin.read(), os.environ['X'], os.getcwd(), __name__, sys.path[0] == '')"
    )
    result = await warm.run_warm(code, argv=["a", "b c"], stdin=b"in", env={"X": "x=y"}, cwd="/tmp")

    assert (True, b"['-c', 'a', 'b c'] in x=y /tmp __main__ True\n", b"") == (result.ok, result.stdout, result.stderr)


async def test_a_fork_is_talked_to_while_it_runs(warm: Sandbox) -> None:
    """Its streams are live, as those of `start`; what it ends with is its result."""
    code = "import sys\nfor line in sys.stdin: print(line.strip() * 2, flush=True)\nsys.exit(3)"
    with trio.fail_after(60):
        async with await warm.start_warm(code) as process:
            for word in (b"a", b"b"):
                await process.stdin.send_all(word + b"\n")
                assert word * 2 + b"\n" == await process.stdout.receive_some(100)
            await process.stdin.aclose()
            result = await process.wait()

    assert (ExitReason.EXITED, 3) == (result.exit_reason, result.exit_code)


async def test_without_a_template_there_is_nothing_to_talk_to(supervisor: Supervisor) -> None:
    """As with `run_warm`, that is told before anything is started."""
    async with supervisor.open_sandbox() as sandbox:
        with pytest.raises(UsageError, match="no warm process"):
            await sandbox.start_warm("1")


async def test_a_fork_runs_a_file_of_the_sandbox(warm: Sandbox) -> None:
    """As `python FILE` does: its directory is the first place of modules."""
    await warm.write_file("/tmp/beside.py", b"value = 5\n")
    await warm.write_file("/tmp/main.py", b"import sys, beside\nprint(__file__, sys.argv, beside.value)\n")
    result = await warm.run_warm(file="/tmp/main.py", argv=["x"])

    assert b"/tmp/main.py ['/tmp/main.py', 'x'] 5\n" == result.stdout, result.stderr


async def test_a_fork_calls_a_function_of_the_preload(warm: Sandbox) -> None:
    """What it returns is the exit status."""
    result = await warm.run_warm(call="__preload__:answer")

    assert (7, b"called\n") == (result.exit_code, result.stdout)


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("import sys; sys.exit(3)", 3, b""),
        ("raise SystemExit('why')", 1, b"why\n"),
        ("import os; os._exit(9)", 9, b""),
        ("import atexit; atexit.register(print, 'bye')", 0, b""),
        ("def f():\n  1/0\nf()", 1, b"ZeroDivisionError"),
        ("1 +", 1, b"SyntaxError"),
    ],
)
async def test_a_fork_ends_as_an_interpreter_does(warm: Sandbox, code: str, status: int, stderr: bytes) -> None:
    """Exit status and what is said on stderr; no frame of ours is in a traceback."""
    result = await warm.run_warm(code)

    assert (ExitReason.EXITED, status) == (result.exit_reason, result.exit_code)
    assert stderr in result.stderr and b"/proc/self" not in result.stderr


async def test_a_signal_ends_a_fork(warm: Sandbox) -> None:
    """It is reported as of any command."""
    result = await warm.run_warm("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")

    assert (ExitReason.SIGNALED, signal.SIGTERM) == (result.exit_reason, result.signal)


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("while True: pass", Limits(wall_time_s=0.3), ExitReason.WALL_TIME),
        ("while True: pass", Limits(cpu_time_s=0.2, wall_time_s=20.0), ExitReason.CPU_TIME),
        ("import os\nwhile os.fork() >= 0: pass", Limits(processes=20, wall_time_s=20.0), ExitReason.PROCESSES),
        ("while True: print('x' * 9999)", Limits(stdout_bytes=MIB, wall_time_s=20.0), ExitReason.OUTPUT),
    ],
)
async def test_limits_hold_for_forks(warm: Sandbox, code: str, limits: Limits, reason: ExitReason) -> None:
    """And the sandbox can be used on afterwards."""
    with trio.fail_after(40):
        result = await warm.run_warm(code, limits=limits)
        after = await warm.run_warm("print(1)")

    assert (reason, b"1\n") == (result.exit_reason, after.stdout)


async def test_memory_and_disk_limits_hold_for_forks(supervisor: Supervisor, template: Template) -> None:
    """Those of the whole sandbox; the template has none and is not charged."""
    limits = Limits(memory_bytes=64 * MIB, disk_bytes=8 * MIB, wall_time_s=30.0)
    async with supervisor.open_sandbox(template=template, limits=limits) as sandbox:
        memory = await sandbox.run_warm("x = bytearray(200 << 20)")
        disk = await sandbox.run_warm("open('/tmp/x', 'wb').write(bytes(20 << 20))")
        after = await sandbox.run_warm("print(2)")

    assert (ExitReason.MEMORY, ExitReason.DISK, b"2\n") == (memory.exit_reason, disk.exit_reason, after.stdout)


async def test_a_fork_is_a_process_of_its_sandbox(warm: Sandbox) -> None:
    """Child of init, in namespaces and rights equal to those of a command, with its streams alone."""
    look = "\n".join(
        (
            "import os, re",
            "status = open('/proc/self/status').read()",
            "fds = sorted(int(x) for x in os.listdir('/proc/self/fd'))",
            "print(os.getppid(), fds[:3], len(fds))",
            "print(re.findall(r'(?:Uid|Gid|Cap\\w+|NoNewPrivs):\\s+(.*)', status), os.getsid(0) == os.getpid())",
            "print(*(os.readlink(f'/proc/self/ns/{n}') for n in 'mnt pid net ipc uts user'.split()))",
            "print(open('/proc/self/cgroup').read(), open('/proc/self/uid_map').read(), os.umask(0))",
        )
    )
    forked = await warm.run_warm(look)
    command = await warm.run([PYTHON, "-c", look])

    assert forked.ok and command.stdout == forked.stdout, (forked, command)


async def test_users_and_files_work_as_in_any_sandbox(warm: Sandbox) -> None:
    """What a fork writes is there for commands, and the reverse."""
    result = await warm.run_warm(
        "import os; open('/tmp/f', 'w').write('x'); print(os.getuid(), os.getgroups())", user=1000
    )

    assert (b"1000 []\n", b"x") == (result.stdout, await warm.read_file("/tmp/f"))


async def test_siblings_share_no_files_and_no_state(supervisor: Supervisor, template: Template) -> None:
    """Neither what one wrote to disk nor what it did to modules and builtins is there for a later fork."""
    spoil = (
        "import builtins, json, sys, random\nbuiltins.print = None\njson.loads = None\nsys.modules.clear()\n"
        "import os\nopen('/tmp/mark', 'w').close(); open('/dev/shm/mark', 'w').close()"
    )
    look = "import json, os; print(json.loads('1'), os.listdir('/tmp'), os.listdir('/dev/shm'))"
    async with supervisor.open_sandbox(template=template) as first:
        await first.run_warm(spoil)
        again = await first.run_warm("import json; print(json.loads('1'))")
        async with supervisor.open_sandbox(template=template) as second:
            result = await second.run_warm(look)

    assert (b"1\n", b"1 [] []\n") == (again.stdout, result.stdout), result


async def test_a_fork_cannot_reach_the_template(supervisor: Supervisor, template: Template) -> None:
    """Writing to every descriptor, killing and tracing every process, walking /proc: later forks are as before."""
    async with supervisor.open_sandbox(template=template) as sandbox:
        result = await sandbox.run_warm("".join((*ATTACKS.values(), REWRITE)))
        after = await sandbox.run_warm("print(1)")
    async with supervisor.open_sandbox(template=template) as sandbox:
        other = await sandbox.run_warm("print(2)")

    assert (b"", b"1\n", b"2\n", 0) == (result.stdout, after.stdout, other.stdout, template.replaced), result


async def test_random_numbers_of_forks_differ(warm: Sandbox) -> None:
    """Though the generator was made before the fork; with a seed they are pinned."""
    code = "import random, secrets, uuid; print(random.random(), secrets.token_hex(), uuid.uuid4())"
    free = {(await warm.run_warm(code)).stdout for _ in range(3)}
    pinned = {(await warm.run_warm("import random; print(random.random())", seed=5)).stdout for _ in range(3)}

    assert (3, 1) == (len(free), len(pinned))


async def test_the_hash_seed_can_be_pinned(supervisor: Supervisor) -> None:
    """All forks of a template have the same, and two templates with the same number too."""
    seen = set()
    for _ in range(2):
        async with supervisor.open_template(python=PYTHON, hash_seed=1) as template:
            async with supervisor.open_sandbox(template=template) as sandbox:
                seen.add((await sandbox.run_warm("print(hash('text'))")).stdout)

    assert len(seen) == 1


@pytest.mark.parametrize(
    ("preload", "says"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        (["no_such_module"], "No module named 'no_such_module'"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "threads running",
        ),
        ("keep = open('/etc/passwd')", "descriptor"),
        ("import mmap; keep = mmap.mmap(-1, 4096)", "memory that forks would share"),
        ("import os; os._exit(3)", "ended before it was ready"),
    ],
)
async def test_a_preload_that_cannot_be_forked_is_refused(supervisor: Supervisor, preload: str, says: str) -> None:
    """With its traceback, or with what to do."""
    with trio.fail_after(60), pytest.raises(TemplateError) as caught:
        async with supervisor.open_template(python=PYTHON, preload=preload):
            pass

    assert says in str(caught.value) and (says in caught.value.traceback or not caught.value.traceback)
    assert [] == observer.inits()


async def test_a_template_needs_a_python(supervisor: Supervisor) -> None:
    """One that the rootfs does not have is an error that names it."""
    with pytest.raises(TemplateError, match="/no/python"):
        async with supervisor.open_template(python="/no/python"):
            pass


async def test_a_template_that_dies_is_replaced(supervisor: Supervisor, template: Template) -> None:
    """The next fork comes from a new one; sandboxes that are open go on."""
    async with supervisor.open_sandbox(template=template) as sandbox:
        first = await sandbox.run_warm("print(1)")
        assert template._warm is not None
        template._warm.slot.cgroup.kill()
        second = await sandbox.run_warm("print(2)")

    assert (b"1\n", b"2\n", 1) == (first.stdout, second.stdout, template.replaced)


@pytest.mark.parametrize("noted", [False, True])
async def test_a_template_that_is_gone_when_a_sandbox_starts_is_replaced(
    supervisor: Supervisor, template: Template, noted: bool
) -> None:
    """Noted or not: the sandbox gets its fork from a new one, once."""
    assert template._warm is not None
    template._warm.slot.cgroup.kill()
    if noted:
        warm = template._warm
        await observer.wait_until(lambda: warm.lost is not None, trio.lowlevel.checkpoint)
    async with supervisor.open_sandbox(template=template) as sandbox:
        result = await sandbox.run_warm("print(1)")

    assert (b"1\n", 1) == (result.stdout, template.replaced)


async def test_a_pod_that_is_killed_takes_all_with_it(supervisor: Supervisor, template: Template) -> None:
    """Sandboxes break and no process of them lives on, which it does without a new PR_SET_PDEATHSIG in warm.c."""
    (pod,) = (child for child in psutil.Process().children() if observer.name_of(child) == "minisandbox-p")
    async with supervisor.open_sandbox(template=template) as sandbox:
        async with await sandbox.start_warm("import time; print(1, flush=True); time.sleep(1000)") as process:
            await process.stdout.receive_some(1)
            with observer.watched(inside := observer.descendants(pod)) as pidfds:
                template.kill()
                await observer.wait_ended(pidfds)
            with pytest.raises(BrokenError):
                await process.wait()
        async with supervisor.open_sandbox(template=template) as other:
            result = await other.run_warm("print(2)")
            with pytest.raises(BrokenError):  # and not ClosedError: nobody closed it but to clean up
                await sandbox.run_warm("print(1)")

    assert len(inside) >= 4
    assert (b"2\n", 1) == (result.stdout, template.replaced)


async def test_a_warm_process_that_cannot_be_made_again_takes_no_sandbox_with_it(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """Whoever asks for a fork is told; commands of the sandboxes that are open go on."""
    tmp_path.chmod(0o777)
    once = Bind(source=tmp_path, target="/once", writable=True)
    async with supervisor.open_template(preload="import os\nos.mkdir('/once/more')", binds=[once]) as template:
        async with supervisor.open_sandbox(template=template) as sandbox:
            first = await sandbox.run_warm("print(1)")
            assert template._warm is not None
            template._warm.slot.cgroup.kill()
            with pytest.raises(TemplateError, match="FileExistsError"):
                await sandbox.run_warm("print(2)")
            second = await sandbox.run(["/bin/echo", "3"])

    assert (b"1\n", b"3\n") == (first.stdout, second.stdout)


@pytest.mark.slow
async def test_a_template_that_does_not_answer_is_replaced(supervisor: Supervisor, template: Template) -> None:
    """A stopped one is given up after a while, and the run goes to a new one."""
    assert template._warm is not None
    (pid,) = template._warm.leaf.members()
    os.kill(pid, signal.SIGSTOP)
    with trio.fail_after(60):
        async with supervisor.open_sandbox(template=template) as sandbox:
            result = await sandbox.run_warm("print(1)")

    assert (b"1\n", 1) == (result.stdout, template.replaced)


async def test_a_template_that_grows_is_replaced(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its parent keeps of each fork is not kept for ever."""
    monkeypatch.setattr(warm_process, "LOOK_EACH", 2)
    leak = "import os\nkept = []\nos.register_at_fork(after_in_parent=lambda: kept.append(bytearray(150 << 20)))"
    with trio.fail_after(60):
        async with supervisor.open_template(python=PYTHON, preload=leak) as template:
            for _ in range(3):
                async with supervisor.open_sandbox(template=template) as sandbox:
                    assert (await sandbox.run_warm("print(1)")).ok

            assert template.replaced > 0


@pytest.mark.slow
@pytest.mark.parametrize("max_parked", [0, 8])
async def test_many_sandboxes_of_one_template_at_once(state_dir: Path, max_parked: int) -> None:
    """64 of them, whether some are parked or none: each gets its own result, and its own memory."""
    seen: list[bytes] = []

    async def one(number: int) -> None:
        async with supervisor.open_sandbox(template=template) as sandbox:
            await sandbox.run_warm(f"open('/tmp/{number}', 'w').close()")
            result = await sandbox.run_warm(f"import os; print({number}, os.listdir('/tmp'))")
            seen.append(result.stdout)

    with trio.fail_after(240):
        async with (
            open_supervisor(state_dir=state_dir, self_test=False, max_parked=max_parked) as supervisor,
            supervisor.open_template(python=PYTHON, max_sandboxes=64 + max_parked) as template,
            trio.open_nursery() as nursery,
        ):
            for number in range(64):
                nursery.start_soon(one, number)

    assert template.replaced == 0
    assert sorted(f"{number} ['{number}']\n".encode() for number in range(64)) == sorted(seen)


LEFT = """
import os, time
def left():
    return sum(name.isdigit() and int(name) > 1 for name in os.listdir("/proc"))
end = time.monotonic() + 10
while left() > 1 and time.monotonic() < end:
    time.sleep(0.01)  # init reaps what was killed
print(left())
"""


async def test_a_cancelled_fork_leaves_nothing(warm: Sandbox) -> None:
    """It is killed, with what it started, and the sandbox can be used on."""
    with trio.move_on_after(0.5) as scope:
        await warm.run_warm("import os, time\nos.fork()\ntime.sleep(60)")
    left = await warm.run_warm(LEFT)

    assert (True, b"1\n") == (scope.cancelled_caught, left.stdout)


async def test_what_cannot_be_is_refused(
    supervisor: Supervisor, template: Template, warm: Sandbox, sandbox: Sandbox
) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError, match="open_sandbox"):
        await sandbox.run_warm("1")
    for wrong in ({}, {"code": "1", "file": "/x"}, {"call": "no"}, {"code": "a\0b"}):
        with pytest.raises(UsageError):
            await warm.run_warm(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="template"):
        async with supervisor.open_sandbox(template=template, binds=[Bind(source=Path("/usr"), target="/x")]):
            pass


async def test_a_closed_template_takes_its_sandboxes_with_it(supervisor: Supervisor) -> None:
    """Whoever still has one finds it closed."""
    async with supervisor.open_template(python=PYTHON) as template:
        opened = supervisor.open_sandbox(template=template)
        sandbox = await opened.__aenter__()
    with pytest.raises(ClosedError):
        await sandbox.run(["true"])
    with pytest.raises(ClosedError):
        async with supervisor.open_sandbox(template=template):
            pass
    await opened.__aexit__(None, None, None)

    assert [] == observer.inits()
