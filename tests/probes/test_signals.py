"""Signals: what a command begins with, what it can do with them to its sandbox, and that none keeps it from its end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minisandbox import ExitReason, Limits, Sandbox, Supervisor
from tests.probes.lab import IGNORE_SIGNALS, PROBE, SANDBOXED, Defence, host_pid_of_init, policy_of, probe_bind

SIGNALS = sorted(set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, 32, 33})
"""All that may be ignored, but for SIGCHLD, which trio needs, and those that the C library keeps to itself."""

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
"""Chooses the next pid, on kernels that can restore processes (CONFIG_CHECKPOINT_RESTORE)."""

DISPOSITIONS = ["cat", "/proc/self/status"]


def dispositions(status: str) -> list[int]:
    """Return the masks of blocked and of ignored signals."""
    return [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn"))]


@pytest.fixture
def careless_signals() -> Iterator[None]:
    """A host program that ignores and blocks every signal that it can."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(SIGNALS))
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_are_inherited_with_the_defence_off(careless_signals: None) -> None:
    """Row 41, defence off: a program that is just executed goes on ignoring and blocking what its parent did."""
    done = subprocess.run(DISPOSITIONS, restore_signals=False, capture_output=True, text=True, check=True)
    wanted = sum(1 << (number - 1) for number in SIGNALS)

    assert [wanted, wanted] == [mask & wanted for mask in dispositions(done.stdout)]


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_no_signal_is_ignored_or_blocked(
    careless_signals: None, supervisor: Supervisor, defence: Defence
) -> None:
    """Row 41: whatever the supervisor's process ignores or blocks, a command begins with the defaults."""
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        result = await sandbox.run(DISPOSITIONS)

    assert [0, 0] == dispositions(result.stdout.decode())


IGNORE_ALL = f"""{IGNORE_SIGNALS}
ENDS = {{"spin": lambda: [None for _ in iter(int, 1)], "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP)}}
if os.fork() == 0:
    os.setsid()
ENDS[sys.argv[1]]()
"""


@pytest.mark.enforces("control-groups")
@pytest.mark.parametrize("way", ["spin", "stop"])
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(wall_time_s=0.3), ExitReason.WALL_TIME),
        (Limits(wall_time_s=20, cpu_time_s=0.3), ExitReason.CPU_TIME),
    ],
    ids=["wall", "cpu"],
)
async def test_ignoring_signals_puts_no_end_off(sandbox: Sandbox, way: str, limits: Limits, reason: ExitReason) -> None:
    """Row 39: a tree that ignores and blocks everything, or has stopped, is killed at its limit all the same.

    Defence off: it is not over by itself; see the next test. A stopped tree uses no CPU time.
    """
    if way == "stop" and reason is ExitReason.CPU_TIME:
        limits, reason = Limits(wall_time_s=0.3, cpu_time_s=10), ExitReason.WALL_TIME
    with trio.fail_after(10):
        result = await sandbox.run(["python3", "-c", IGNORE_ALL, way], limits=limits)
        while (
            len((await sandbox.run("echo /proc/[0-9]*")).stdout.split()) > 2
        ):  # init, the shell, what is not reaped yet
            pass

    assert (reason, signal.SIGKILL) == (result.exit_reason, result.signal)


@pytest.mark.parametrize("way", ["spin", "stop"])
def test_ignoring_signals_puts_sigterm_off(way: str) -> None:
    """Row 39, defence off: one who sends the usual signals to such a process waits in vain."""
    with subprocess.Popen(["python3", "-c", IGNORE_ALL, way], process_group=0) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            _wait_until_ignored(process.pid, signal.SIGTERM)
            for number in (signal.SIGTERM, signal.SIGXCPU, signal.SIGINT, signal.SIGHUP):
                process.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
        finally:
            for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def _wait_until_ignored(pid: int, number: int) -> None:
    """Wait until a process is as deaf as it wants to be: stopped, or with a child that spins."""
    while True:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if int(status["SigIgn"], 16) >> (number - 1) & 1 and children:
            return


@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_signals_to_everybody_spare_init(supervisor: Supervisor, defence: Defence) -> None:
    """Row 39: `kill(-1, 9)`, signals to every pid and group; init and the sandbox serve on.

    Defence off: what init is protected by cannot be taken from it; its own commands do die of it.
    """
    code = "import os\nfor pid in (1, -1):\n try: os.kill(pid, 9)\n except OSError as e: print(e.errno)\n"
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox, trio.open_nursery() as nursery:
        ready = trio.Event()
        results = []

        async def sleep() -> None:
            results.append(await sandbox.run("echo; exec sleep 60", on_stdout=lambda _: ready.set()))

        nursery.start_soon(sleep)
        await ready.wait()
        await sandbox.run(["python3", "-c", code])
        with trio.fail_after(10):
            while not results:
                await trio.lowlevel.checkpoint()
        after = await sandbox.run(["echo", "alive"])

    assert [signal.SIGKILL] == [result.signal for result in results]
    assert b"alive\n" == after.stdout


STOP_NEWCOMERS = """
import os, signal
print("stopping", flush=True)
own = os.getpid()
while True:
    for pid in range(own + 1, own + 400):
        try:
            os.kill(pid, signal.SIGSTOP)
        except OSError:
            pass
"""


@pytest.mark.enforces("control-groups")
async def test_stopping_a_command_as_it_starts_only_costs_its_time(supervisor: Supervisor, probe_dir: Path) -> None:
    """Row 39: init waits for a command until it executes, but not beyond the command's limit.

    A process inside stops whatever starts beside it. Each start ends as what it is, and the sandbox can be closed.
    """
    reasons: list[ExitReason] = []
    async with supervisor.open_sandbox(binds=[probe_bind(probe_dir)]) as sandbox:
        async with await sandbox.start(["python3", "-c", STOP_NEWCOMERS]) as process:
            await process.stdout.receive_some()
            with trio.fail_after(20):
                while reasons.count(ExitReason.WALL_TIME) < 3 and len(reasons) < 200:
                    result = await sandbox.run([PROBE, "ids"], limits=Limits(wall_time_s=0.1))
                    reasons.append(result.exit_reason)
        after = await sandbox.run([PROBE, "ids"])

    assert set(reasons) <= {ExitReason.EXITED, ExitReason.WALL_TIME}
    assert ExitReason.WALL_TIME in reasons
    assert after.ok


@pytest.mark.requires_root
async def test_a_signal_to_a_command_that_is_over_hits_nobody(sandbox: Sandbox) -> None:
    """Row 55: not even when another command has its pid by now. Defence off: that one's own signal does reach it."""
    if not LAST_PID.exists():
        pytest.skip(f"this kernel has no {LAST_PID}: nobody can choose a pid")
    async with await sandbox.start("echo $$") as first:
        pid = int(await first.stdout.receive_some())
        await first.wait()
        _reuse_pid(sandbox, pid)
        async with await sandbox.start("echo $$; exec sleep 60") as second:
            reused = int(await second.stdout.receive_some())
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL):
                await first.kill(number)
            alive = await sandbox.run(["cat", f"/proc/{pid}/comm"])
            await second.kill(signal.SIGTERM)
            result = await second.wait()

    assert pid == reused
    assert alive.ok
    assert signal.SIGTERM == result.signal


def _reuse_pid(sandbox: Sandbox, pid: int) -> None:
    """Have the next process of a sandbox get a pid that was used; only root of the host can (pid_namespaces(7))."""
    script = f"echo {pid - 1} > {LAST_PID}"
    subprocess.run(["nsenter", f"--pid=/proc/{host_pid_of_init(sandbox)}/ns/pid", "sh", "-c", script], check=True)
