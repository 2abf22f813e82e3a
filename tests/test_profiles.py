"""The seccomp profiles that come with the package let nothing of a class of calls through, and let programs live.

Whole classes are run through the programs on both architectures. The tests under "for real" load them into a process,
and without them each of those calls gets further.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from typing import Any

import pyseccomp
import pytest

from minisandbox import seccomp
from minisandbox.data import data_dir
from minisandbox.kernel.host import read_host_facts
from minisandbox.seccomp import compile_profile
from tests.facts import IS_USER_MODE_LINUX, ONE_ENTRY
from tests.seccomp_lab import ALLOW, TOKENS, call_number, errno_action, probe, run_filter, run_filters

POLICIES = data_dir() / "policies"
SHIPPED = [POLICIES / "default.json", POLICIES / "terminal.json"]
HIGH_BITS = [0, 1 << 32, 1 << 63, 0xFFFFFFFF << 32]
CLONE_FLAGS = {
    "CLONE_NEWTIME": 0x80,
    "CLONE_NEWNS": 0x20000,
    "CLONE_NEWCGROUP": 0x2000000,
    "CLONE_NEWUTS": 0x4000000,
    "CLONE_NEWIPC": 0x8000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
}
TERMINAL_REQUESTS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCCONS": 0x541D, "TIOCSETD": 0x5423}
REFUSED = """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig
    fsmount fsopen fspick init_module kcmp kexec_file_load kexec_load keyctl lookup_dcookie mount mount_setattr
    move_mount name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root
    process_madvise process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key setdomainname
    sethostname setns settimeofday swapoff swapon syslog umount2 unshare userfaultfd vhangup
""".split()
ABSENT = "clone3 io_uring_setup io_uring_enter io_uring_register memfd_secret set_mempolicy".split()
DEBUGGER = "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace".split()

EPERM, ENOSYS = errno_action(errno.EPERM), errno_action(errno.ENOSYS)
EAFNOSUPPORT, EPROTONOSUPPORT = errno_action(errno.EAFNOSUPPORT), errno_action(errno.EPROTONOSUPPORT)


def programs(arch: str = "x86_64", *capabilities: str) -> list[bytes]:
    """Return the filters that a policy with both profiles loads."""
    return [compile_profile(path, arch=arch, capabilities=frozenset(capabilities)) for path in SHIPPED]


def result(name: str, *args: int, arch: str = "x86_64") -> int:
    """Return the action for a call."""
    return run_filters(programs(arch), call_number(name, arch), args, arch)


both = pytest.mark.parametrize("arch", sorted(TOKENS))


@both
def test_every_known_call_has_a_rule(arch: str) -> None:
    """No call that libseccomp or we know is refused only because nobody thought of it."""
    named = {name for rule in json.loads(SHIPPED[0].read_text())["syscalls"] for name in rule["names"]}
    known = {*seccomp._UNIFIED_CALLS, *(name for name, (home, _) in seccomp._LONE_CALLS.items() if home == arch)}
    for number in range(600):
        try:
            known.add(pyseccomp.resolve_syscall(TOKENS[arch], number).decode())
        except ValueError:
            continue

    assert 300 < len(known)
    assert set() == known - named


@both
def test_filters_are_shallow(arch: str) -> None:
    """A call whose arguments do not count takes 20 steps at most, others 60: the kernel tries all when it loads."""
    with_arguments = {call_number(name, arch) for name in ("socket", "socketpair", "clone", "personality", "ioctl")}
    for program in programs(arch):
        steps = {number: run_filter(program, number, token=TOKENS[arch])[1] for number in range(600)}

        assert 60 >= max(steps.values())
        assert 20 >= max(count for number, count in steps.items() if number not in with_arguments)


@both
def test_dangerous_calls_are_refused(arch: str) -> None:
    """Each of them gets EPERM, as from a kernel that finds no capability."""
    assert dict.fromkeys(REFUSED, EPERM) == {name: result(name, arch=arch) for name in REFUSED}


@both
def test_calls_to_fall_back_from_are_absent(arch: str) -> None:
    """clone3, io_uring and the like, and every number that has no call yet, get ENOSYS."""
    absent = [call_number(name, arch) for name in ABSENT] + list(range(470, 700)) + [0x3FFFFFFF, 0xFFFFFFFF]

    assert {ENOSYS} == {run_filters(programs(arch), number, arch=arch) for number in absent}


@both
@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_only_four_families_of_sockets_can_be_made(arch: str, name: str) -> None:
    """Of all families there are or could be, four exist, with junk in the register's upper half or without."""
    allowed = {
        family
        for family in range(256)
        for high in HIGH_BITS
        if result(name, family | high, socket.SOCK_STREAM, 0, arch=arch) == ALLOW
    }
    refusals = {result(name, family, socket.SOCK_STREAM, 0, arch=arch) for family in {*range(64)} - allowed}

    assert {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK} == allowed
    assert {EAFNOSUPPORT} == refusals


@both
def test_netlink_is_for_routes_alone(arch: str) -> None:
    """Audit, generic netlink and the others do not exist; useradd goes on where audit is EPROTONOSUPPORT."""
    results = {
        protocol: {result("socket", socket.AF_NETLINK, 3, protocol | high, arch=arch) for high in HIGH_BITS}
        for protocol in range(32)
    }

    assert {0: {ALLOW}, **{protocol: {EPROTONOSUPPORT} for protocol in range(1, 32)}} == results


@both
def test_packet_sockets_have_no_other_name(arch: str) -> None:
    """SOCK_PACKET of AF_INET, which the kernel turns into AF_PACKET, is refused whatever flags it carries."""
    flags = [0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 1 << 32]

    assert {EAFNOSUPPORT} == {result("socket", socket.AF_INET, 10 | flag, 0, arch=arch) for flag in flags}
    assert {ALLOW} == {result("socket", socket.AF_INET, kind | flag, 0, arch=arch) for kind in (1, 2) for flag in flags}


@both
def test_no_namespace_can_be_made(arch: str) -> None:
    """clone with any of the flags, alone or with all that a thread or a fork has, is refused; without them it works."""
    thread, fork, vfork = 0x3D0F00, signal.SIGCHLD, 0x4100 | signal.SIGCHLD
    usual = [base | high for base in (thread, fork, vfork) for high in HIGH_BITS]

    assert {ALLOW} == {result("clone", flags, arch=arch) for flags in usual}
    for flag in CLONE_FLAGS.values():
        assert {EPERM} == {result("clone", flags | flag, arch=arch) for flags in usual}


@both
def test_personality_cannot_weaken_memory(arch: str) -> None:
    """Of all single bits and the known personalities, four values and the question are allowed."""
    values = {0, 8, 0x20008, 0x60000, 0xFFFFFFFF, *(1 << bit for bit in range(32))}
    for high in HIGH_BITS:
        allowed = {value for value in values if result("personality", value | high, arch=arch) == ALLOW}

        assert {0, 0x20000, 0x40000, 0x60000, 0xFFFFFFFF} == allowed


@both
def test_terminal_requests_are_refused(arch: str) -> None:
    """Of all requests to a terminal, those that reach beyond it are refused, with a high bit set as well."""
    results = {
        request: {result("ioctl", 0, request | high, arch=arch) for high in HIGH_BITS}
        for request in range(0x5400, 0x5500)
    }

    assert set(TERMINAL_REQUESTS.values()) == {request for request, actions in results.items() if actions == {EPERM}}
    assert {ALLOW} == {action for actions in results.values() for action in actions} - {EPERM}


@both
def test_capabilities_of_the_policy_open_calls(arch: str) -> None:
    """chroot and debuggers depend on their capability, each on its own."""
    allowed = {
        capability: {
            name
            for name in REFUSED
            if run_filters(programs(arch, capability), call_number(name, arch), arch=arch) == ALLOW
        }
        for capability in ("CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN")
    }

    assert {"CAP_SYS_CHROOT": {"chroot"}, "CAP_SYS_PTRACE": set(DEBUGGER), "CAP_SYS_ADMIN": set()} == allowed


def test_x32_numbers_without_their_bit_are_absent() -> None:
    """512 to 547 were reachable without the x32 bit on old kernels: another ioctl, another execve."""
    assert {ENOSYS} == {run_filters(programs(), number) for number in range(512, 548)}


# For real.

MACHINE = os.uname().machine
INT_80_GETPID = "b814000000cd80c3"  # mov eax, 20; int 0x80; ret
on_x86_64 = pytest.mark.skipif(MACHINE != "x86_64", reason="int 0x80 and x32 are ways into an x86_64 kernel")
with_and_without = pytest.mark.parametrize("loaded", [True, False], ids=["filters", "no filters"])


def attempts() -> dict[str, tuple[list[Any], int]]:
    """Return steps that a root process can take when nothing stops it, and what the filters answer."""
    call = {
        name: call_number(name, MACHINE) for name in ("socket", "unshare", "keyctl", "personality", "ioctl", "clone")
    }
    return {
        "packet socket": (["call", call["socket"], socket.AF_PACKET, 3, 0], errno.EAFNOSUPPORT),
        "packet socket by its old name": (["call", call["socket"], socket.AF_INET, 10, 0], errno.EAFNOSUPPORT),
        "audit": (["call", call["socket"], socket.AF_NETLINK, 3, 9], errno.EPROTONOSUPPORT),
        "new hostname": (["call", call["unshare"], CLONE_FLAGS["CLONE_NEWUTS"]], errno.EPERM),
        "clone": (["clone", call["clone"], CLONE_FLAGS["CLONE_NEWUTS"]], errno.EPERM),
        "clone with a high bit": (["clone", call["clone"], CLONE_FLAGS["CLONE_NEWUTS"] | 1 << 32], errno.EPERM),
        "executable data": (["call", call["personality"], 0x400000], errno.ENOSYS),
        "TIOCSTI": (["terminal", call["ioctl"], TERMINAL_REQUESTS["TIOCSTI"]], errno.EPERM),
        "TIOCSTI with a high bit": (["terminal", call["ioctl"], TERMINAL_REQUESTS["TIOCSTI"] | 1 << 32], errno.EPERM),
    }


@pytest.mark.requires_root
@with_and_without
def test_kernel_enforces_the_filters(loaded: bool) -> None:
    """Each attempt fails with the error of the filters; without them, each succeeds."""
    steps = attempts()
    errors = probe(programs(MACHINE) if loaded else [], [step for step, _ in steps.values()])

    expected = {name: error if loaded else 0 for name, (_, error) in steps.items()}
    assert expected == dict(zip(steps, errors, strict=True))


@on_x86_64
@with_and_without
@pytest.mark.parametrize("step", [["machine", INT_80_GETPID], ["call", 0x40000000 | 39]], ids=["int 0x80", "x32"])
def test_kernel_kills_for_a_foreign_entry(step: list[Any], loaded: bool) -> None:
    """getpid by way of another architecture ends the process; without the filters it does not."""
    if IS_USER_MODE_LINUX and step[0] == "machine":
        pytest.skip(ONE_ENTRY)
    if not loaded and read_host_facts().seccomp_filters:
        pytest.skip("a filter around us answers first")
    (result,) = probe(programs() if loaded else [], [step])

    assert loaded == (result == -signal.SIGSYS)
