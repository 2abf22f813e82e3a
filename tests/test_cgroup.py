"""Slots and the leaves of commands on the real kernel: limits hold, counters are true, wardens need no privilege."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from minisandbox.errors import HostError, UsageError
from minisandbox.kernel.cgroup import CgroupLayout, CgroupTree, SlotCgroup
from minisandbox.kernel.cgroup_charge import stat_lag_bytes
from minisandbox.spec import Limits
from tests.cgroup_lab import WARDEN, Start, layout, layout_named, new_instance, slot, spawn_program, start, tree

__all__ = ["layout", "slot", "spawn_program", "start", "tree"]  # fixtures, which tests ask for by name

MIB = 1 << 20
FORKS = """
import os, time
for _ in range(20):
    try:
        if os.fork() == 0:
            time.sleep(0.3)
            os._exit(0)
    except BlockingIOError:
        pass
"""
BURN = "import time\nwhile time.process_time() < {}: pass"


def python(program: str) -> tuple[str, str, str]:
    """Return the command that runs a Python program, without the packages that are installed."""
    return sys.executable, "-Sc", program


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a command and all its descendants; return its exit code."""
    return process.wait(timeout=20)


@pytest.mark.qemu
@pytest.mark.parametrize("memory_bytes", [64 * MIB, None], ids=["limited", "defence-off"])
def test_memory_limit_kills_and_is_counted(slot: SlotCgroup, start: Start, memory_bytes: int | None) -> None:
    """A process that takes more than the limit is killed and counted; without the limit it is not."""
    slot.configure(Limits(memory_bytes=memory_bytes))
    run = slot.open_run(os.geteuid())
    slot.reset_memory_peak()
    code = wait(start(run, *python(f"bytearray({128 * MIB})")))

    assert (0 if memory_bytes is None else 128 + 9) == code
    assert (0 if memory_bytes is None else 1) == slot.oom_kills()
    peak = slot.memory_peak()
    slot.end_memory_peak()
    assert peak is None or (peak > 128 * MIB if memory_bytes is None else 60 * MIB < peak <= memory_bytes)


@pytest.mark.qemu
def test_memory_peak_starts_again_for_the_next_command(slot: SlotCgroup, start: Start) -> None:
    """What an earlier command took is not told as the peak of a later one."""
    peaks = []
    for size in (64 * MIB, 1 * MIB):
        run = slot.open_run(os.geteuid())
        slot.reset_memory_peak()
        assert 0 == wait(start(run, *python(f"bytearray({size})")))
        peaks.append(slot.memory_peak())
        slot.end_memory_peak()

    assert peaks[0] is None or peaks[0] > 64 * MIB
    assert peaks[1] is None or peaks[1] < 48 * MIB


@pytest.mark.parametrize(
    ("of_slot", "of_command", "refuses"),
    [(8, None, True), (8, 100, True), (100, 8, True), (None, 8, True), (100, 100, False), (None, None, False)],
)
def test_processes_beyond_the_limit_are_refused_and_counted(
    slot: SlotCgroup, start: Start, of_slot: int | None, of_command: int | None, refuses: bool
) -> None:
    """The limit of the slot and that of the command both hold, and either's refusals are counted."""
    slot.configure(Limits(processes=of_slot))
    run = slot.open_run(os.geteuid(), of_command)
    assert 0 == wait(start(run, *python(FORKS)))

    assert (13 if refuses else 0) == run.processes_refused()
    assert run.processes_peak() in (None, *((8, 9) if refuses else (21,)))


def test_refusals_of_an_earlier_command_are_not_counted_again(slot: SlotCgroup, start: Start) -> None:
    """Each command starts at zero, whichever limit refused."""
    slot.configure(Limits(processes=8))
    assert 0 == wait(start(slot.open_run(os.geteuid(), 100), *python(FORKS)))
    run = slot.open_run(os.geteuid(), 100)
    assert 0 == wait(start(run, "true"))

    assert (0, 0.0) == (run.processes_refused(), round(run.cpu_time_s(), 1))
    assert run.processes_peak() in (None, 1)


def test_refusal_wakes_who_waits_for_it(slot: SlotCgroup, start: Start, layout: CgroupLayout) -> None:
    """`events_fd` is quiet until a process is refused."""
    if "pids" not in layout.unified_controllers:
        pytest.skip("pids.events of v1 does not notify")
    run = slot.open_run(os.geteuid(), 8)
    waiting = select.poll()
    waiting.register(run.events_fd, select.POLLPRI)
    before = waiting.poll(0)
    wait(start(run, *python(FORKS)))

    assert [] == before
    assert [run.events_fd] == [fd for fd, _ in waiting.poll(0)]


def test_cpu_time_counts_double_forked_children(slot: SlotCgroup, start: Start) -> None:
    """CPU time of a process whose parents are long gone is that of the command, and of no other."""
    run, other = slot.open_run(os.geteuid()), slot.open_run(os.geteuid())
    orphan = f"import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n{BURN.format(0.3)}"
    begin = time.monotonic()
    assert 0 == wait(start(run, *python(orphan)))

    assert 0.3 <= run.cpu_time_s() < 0.1 + time.monotonic() - begin
    assert 0.0 == other.cpu_time_s()
    other.close_fds()


@pytest.mark.qemu
@pytest.mark.slow
@pytest.mark.parametrize("cpus", [0.25, None], ids=["limited", "defence-off"])
def test_cpu_bandwidth_is_limited(slot: SlotCgroup, start: Start, layout: CgroupLayout, cpus: float | None) -> None:
    """0.3 s of CPU take 1 s and more with a quarter of a core, and not without the limit."""
    if layout.where("cpu") is None:
        pytest.skip("no hierarchy gives the cpu controller to our own group")
    slot.configure(Limits(cpus=0.5))
    slot.configure(Limits(cpus=cpus))
    begin = time.monotonic()
    assert 0 == wait(start(slot.open_run(os.geteuid()), *python(BURN.format(0.3))))

    assert (cpus is not None) == (time.monotonic() - begin > 0.9)


def test_slot_is_clean_when_shared_memory_is_gone(slot: SlotCgroup, start: Start) -> None:
    """Pages of a tmpfs outlive their writer and keep the slot from being handed out until they are gone."""
    size = 4 * stat_lag_bytes()
    kept = Path("/dev/shm") / f"minisandbox-{new_instance()}"
    try:
        wait(start(slot.open_run(os.geteuid()), "dd", "if=/dev/zero", f"of={kept}", f"bs={size}", "count=1"))
        left, clean, charge = slot.drain(), slot.is_clean(), slot.charge()
    finally:
        kept.unlink()

    assert left > size // 2
    assert (False, True) == (clean, slot.is_clean())
    assert charge.shmem_bytes > size // 2 > slot.drain()


@pytest.mark.parametrize("owner", [WARDEN, WARDEN + 1], ids=["warden", "defence-off"])
def test_only_the_warden_starts_processes_in_a_leaf(
    slot: SlotCgroup, start: Start, layout: CgroupLayout, owner: int
) -> None:
    """The uid that the leaf was opened for needs no privilege to start a command in it; any other is refused."""
    if layout.unified is None:
        pytest.skip("v1 `tasks` files are opened by root and handed over: there is no owner to check")
    run = slot.open_run(owner)

    assert (0 if owner == WARDEN else 120) == wait(start(run, "true", uid=WARDEN))


def test_stranger_to_the_warden_group_cannot_start_processes(layout: CgroupLayout, start: Start) -> None:
    """Owning a leaf is not enough: the group that inits and leaves have in common must allow it too."""
    if layout.unified is None:
        pytest.skip("v1 `tasks` files are opened by root and handed over: there is no common group to check")
    tree = CgroupTree.create(layout, new_instance(), warden_gid=WARDEN + 1)
    code = wait(start(tree.open_slot(1).open_run(WARDEN), "true", uid=WARDEN, inits=tree))

    assert [] == tree.close()
    assert 120 == code


def test_command_of_the_warden_is_counted_everywhere(slot: SlotCgroup, start: Start) -> None:
    """What the warden starts without privileges is limited and measured in each hierarchy."""
    slot.configure(Limits(memory_bytes=8 * MIB))
    run = slot.open_run(WARDEN)
    count = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done"
    wait(start(run, "sh", "-c", f"{count}; head -c 64m /dev/zero | tail -c 63m > /dev/null", uid=WARDEN))

    assert slot.oom_kills() > 0
    assert run.processes_peak() in (None, 3)
    assert run.cpu_time_s() > 0


def test_descriptors_are_few(slot: SlotCgroup) -> None:
    """A slot at rest holds none, one that runs a command at most one."""
    before = len(os.listdir("/proc/self/fd"))
    slot.configure(Limits(memory_bytes=64 * MIB, processes=9))
    slot.prepare_spare(WARDEN)
    at_rest = len(os.listdir("/proc/self/fd"))
    run = slot.open_run(WARDEN)
    run.close_start_fds()
    running = len(os.listdir("/proc/self/fd"))
    run.remove()

    assert before == at_rest
    assert running <= before + 1
    assert before == len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("limits", "controller"),
    [(Limits(memory_bytes=MIB), "memory"), (Limits(processes=1), "pids"), (Limits(cpus=1), "cpu")],
)
def test_limit_without_its_controller_is_an_error(limits: Limits, controller: str) -> None:
    """A limit that the host cannot enforce is named, never left out."""
    found = layout_named("hybrid")
    v1 = {name: own for name, own in found.v1.items() if name != controller}
    tree = CgroupTree.create(msgspec.structs.replace(found, v1=v1), new_instance())
    slot = tree.open_slot(1)
    with pytest.raises(HostError, match=f"{controller} controller"):
        slot.configure(limits)

    assert [] == tree.close()


def test_cpus_below_the_smallest_are_refused(slot: SlotCgroup, layout: CgroupLayout) -> None:
    """The kernel takes no less than a hundredth of a core."""
    if layout.where("cpu") is None:
        pytest.skip("no hierarchy gives the cpu controller to our own group")
    with pytest.raises(UsageError, match=r"smallest.*0\.01"):
        slot.configure(Limits(cpus=0.001))
