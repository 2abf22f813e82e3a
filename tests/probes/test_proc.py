"""What /proc gives away or lets change: of the sandbox's processes everything, of the host nothing that is secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox import Sandbox, Supervisor
from tests.probes.lab import SANDBOXED, Defence, open_successor, parse, policy_of, run_outside

WALK = """
import os
for top in ("/proc", "/proc/self/net", "/proc/sys"):
    for path, directories, files in os.walk(top):
        if path == "/proc":
            processes = {"self", "thread-self", "sys", *filter(str.isdigit, directories)}
            directories[:] = set(directories) - processes
        for name in files:
            try:
                os.close(os.open(path + "/" + name, os.O_WRONLY | os.O_NONBLOCK))
                print(path + "/" + name, "ok")
            except OSError:
                pass
"""
"""Opens every file of /proc that is not of a process for writing, and writes nothing."""

HARMLESS = frozenset({"/proc/mounts", *(f"/proc/pressure/{name}" for name in ("cpu", "io", "irq", "memory"))})
"""A file of the process itself, and notices about a busy host, which the kernel gives to everybody."""

ASKED_AT_WRITE = frozenset({"/proc/sys/kernel/ns_last_pid"})
"""Everybody may open these; what may be written is checked at the write."""

OWN_SETTINGS = "/proc/sys/user/"
"""Limits of the sandbox's own user namespace: open to CAP_SYS_RESOURCE."""

TARGETS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/kernel/modprobe",
    "/proc/sysrq-trigger",
)


async def writable_in(sandbox: Sandbox) -> set[str]:
    """Return every file of /proc, but for those of processes, that can be opened for writing."""
    result = await sandbox.run(["python3", "-c", WALK])
    assert result.ok, result.stderr
    return set(parse(result.stdout.decode()))


@pytest.mark.requires_root
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_nothing_of_the_kernel_can_be_written(supervisor: Supervisor, defence: Defence) -> None:
    """Rows 23 and 24: no setting, no trigger, in all of /proc, by root with all capabilities and without filters."""
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        opened = await writable_in(sandbox) - HARMLESS
        written = await sandbox.run("echo 100 > /proc/sys/kernel/ns_last_pid", user="root")

    allowed = (
        set() if defence in (Defence.DEFAULT, Defence.STRICT) else {p for p in opened if p.startswith(OWN_SETTINGS)}
    )
    assert opened <= ASKED_AT_WRITE | allowed
    assert not written.ok


@pytest.mark.requires_root
def test_the_kernel_can_be_written_with_the_defence_off(tmp_path: Path) -> None:
    """Row 23, defence off: root outside opens all of them, and could write."""
    opened = set(parse(run_outside(["python3", "-c", WALK], tmp_path)))

    assert {target for target in TARGETS if Path(target).exists()} <= opened
    assert len(TARGETS) < len(opened)


async def test_settings_of_a_sandbox_do_not_survive(supervisor: Supervisor) -> None:
    """Row 23: what one with every capability set in its user namespace is gone for the next in the same slot.

    Defence off: for the next command of the same sandbox it is there.
    """
    setting = f"{OWN_SETTINGS}max_inotify_instances"
    async with supervisor.open_sandbox(policy=policy_of(Defence.UNFILTERED)) as sandbox:
        await sandbox.run(f"echo 7 > {setting}")
        own = await sandbox.run(["cat", setting])
        slot = sandbox.slot.number
    async with open_successor(supervisor, slot, policy_of(Defence.DEFAULT)) as sandbox:
        later = await sandbox.run(["cat", setting])

    assert b"7\n" == own.stdout
    assert later.ok
    assert b"7\n" != later.stdout


SECRETS = (
    *("kcore", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "slabinfo", "vmallocinfo", "timer_list"),
    *("pagetypeinfo", "latency_stats", "vmcore", "sysrq-trigger", "sys/kernel/cad_pid"),
)
"""What the kernel itself shows to root alone, as far as it is there."""

READ = """
import errno, os, sys
for name in sys.argv[1:]:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        os.read(fd, 64)
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""

WAYS = (
    "/proc/{}",
    "/proc/self/root/proc/{}",
    "/proc/self/cwd/../proc/{}",
    "/proc/thread-self/root/proc/{}",
    "/../../proc/{}",
    "/dev/fd/../../root/proc/{}",
)


@pytest.mark.requires_root
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_secrets_of_the_kernel_cannot_be_read(supervisor: Supervisor, tmp_path: Path, defence: Defence) -> None:
    """Row 24: neither by name nor by links of /proc that lead around a mask. Defence off: root outside reads them."""
    paths = [way.format(name) for name in SECRETS for way in WAYS]
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        inside = parse((await sandbox.run(["python3", "-c", READ, *paths], cwd="/tmp")).stdout.decode())
    outside = parse(run_outside(["python3", "-c", READ, *(f"/proc/{name}" for name in SECRETS)], tmp_path))

    assert set(inside) == set(paths)
    assert set(inside.values()) <= {"EACCES", "EPERM", "ENOENT", "EIO"}
    assert "ok" in outside.values()


ADDRESSES = "grep -v '^0* ' /proc/kallsyms | head -3; cut -c1-17 /proc/iomem | grep -v '^ *00000000-0*$'"


@pytest.mark.requires_root
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_no_address_of_the_kernel_is_shown(supervisor: Supervisor, defence: Defence) -> None:
    """Row 24: /proc/kallsyms and /proc/iomem have zeros, and no key of the host is listed."""
    async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
        addresses = await sandbox.run(ADDRESSES)
        keys = await sandbox.run("cat /proc/keys /proc/sched_debug")
        modules = await sandbox.run("cat /proc/modules")

    assert (b"", b"") == (addresses.stdout, keys.stdout)
    assert {b"0x0000000000000000"} >= {line.split()[5] for line in modules.stdout.splitlines()}


async def test_a_strict_proc_has_processes_alone(supervisor: Supervisor) -> None:
    """Rows 23 and 24: with `proc = "pid"` the kernel's files are not there at all. Defence off: by default they are."""
    listed = []
    for defence in (Defence.STRICT, Defence.DEFAULT):
        async with supervisor.open_sandbox(policy=policy_of(defence)) as sandbox:
            listed.append((await sandbox.run("ls /proc | grep -v '^[0-9]*$' | sort")).stdout.decode().split())
    strict, default = listed

    assert {"self", "thread-self"} <= set(strict) <= {"self", "thread-self", "mounts", "net"}
    assert {"sys", "kallsyms", "cpuinfo"} <= set(default)


async def test_processes_of_the_host_are_not_shown(sandbox: Sandbox) -> None:
    """Row 24: there are its init and its own commands, by whatever name one looks for them."""
    result = await sandbox.run("ls -d /proc/[0-9]*; for n in $(seq 1 300); do [ -d /proc/$n ] && echo $n; done")
    seen = {line.removeprefix("/proc/") for line in result.stdout.decode().splitlines()}

    assert "1" in seen
    assert len(seen) <= 5
