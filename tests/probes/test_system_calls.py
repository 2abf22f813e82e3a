"""System calls that no sandbox is to make: refused by filters, and most of them once more by who owns the namespaces.

Each is tried with the filters, once more without them, and on the host with the defence off, where the kernel must obey
(or complain of arguments that make no sense), since else the attempt would prove nothing.
"""

from __future__ import annotations

import os

import pytest

from minisandbox.policy import CAPABILITIES
from tests.facts import NO_TIME_NAMESPACES
from tests.probes.conftest import HOST_CLOCK, Survey
from tests.probes.lab import FILTERED, Defence, is_denied, is_reached, skip_without_capability

FILTER = "filter"
"""The filters alone refuse it: it is for everybody, or for whoever rules his own user namespace."""

NAMESPACES = ("mnt", "pid", "ipc", "uts", "net", "user", "cgroup")

MOUNTS = {
    "mount-tmpfs": "CAP_SYS_ADMIN",
    "mount-proc": "CAP_SYS_ADMIN",
    "mount-sysfs": "CAP_SYS_ADMIN",
    "mount-cgroup2": "CAP_SYS_ADMIN",
    "mount-devpts": "CAP_SYS_ADMIN",
    "mount-mqueue": "CAP_SYS_ADMIN",
    "mount-bind": "CAP_SYS_ADMIN",
    "mount-move": "CAP_SYS_ADMIN",
    "mount-remount": "CAP_SYS_ADMIN",
    "mount-private": "CAP_SYS_ADMIN",
    "umount2": "CAP_SYS_ADMIN",
    "fsopen": "CAP_SYS_ADMIN",
    "fspick": "CAP_SYS_ADMIN",
    "fsconfig": FILTER,
    "fsmount": "CAP_SYS_ADMIN",
    "open_tree": FILTER,
    "open_tree-clone": "CAP_SYS_ADMIN",
    "open_tree_attr": "CAP_SYS_ADMIN",
    "move_mount": "CAP_SYS_ADMIN",
    "mount_setattr": "CAP_SYS_ADMIN",
    "pivot_root": "CAP_SYS_ADMIN",
    "statmount": FILTER,
    "listmount": FILTER,
    **{f"setns-{name}": "CAP_SYS_ADMIN" for name in ("mnt", "pid", "ipc", "uts", "net", "time")},
    "setns-user": FILTER,
    "setns-cgroup": FILTER,
}
"""Row 22, with the capability that the kernel wants on the host, whatever a process holds in its own user namespace."""

NEW_NAMESPACES = {
    **{f"{way}-{name}": FILTER for way in ("unshare", "clone", "clone-high", "clone3") for name in NAMESPACES},
    "unshare-time": FILTER,
    "clone3-time": FILTER,
}
"""Rows 19 and 52: by every call there is, and with bits that the kernel passes over."""

KERNEL = {
    "bpf": FILTER,
    "perf_event_open": FILTER,
    "userfaultfd": FILTER,
    "kexec_load": "CAP_SYS_BOOT",
    "kexec_file_load": "CAP_SYS_BOOT",
    "add_key": FILTER,
    "request_key": FILTER,
    "keyctl": FILTER,
    "name_to_handle_at": FILTER,
    "open_by_handle_at-1": "CAP_DAC_READ_SEARCH",
    "open_by_handle_at-2": "CAP_DAC_READ_SEARCH",
    "fanotify_init": FILTER,
    "fanotify_init-content": "CAP_SYS_ADMIN",
    "fanotify_mark": FILTER,
    "quotactl": FILTER,
    "quotactl_fd": FILTER,
    "swapon": "CAP_SYS_ADMIN",
    "swapoff": "CAP_SYS_ADMIN",
    "reboot": "CAP_SYS_BOOT",
    "init_module": "CAP_SYS_MODULE",
    "finit_module": "CAP_SYS_MODULE",
    "delete_module": "CAP_SYS_MODULE",
    "acct": "CAP_SYS_PACCT",
    "syslog-read": "CAP_SYSLOG",
    "syslog-size": "CAP_SYSLOG",
    "sethostname": "CAP_SYS_ADMIN",
    "setdomainname": "CAP_SYS_ADMIN",
    "vhangup": "CAP_SYS_TTY_CONFIG",
    "memfd_secret": FILTER,
    "migrate_pages": FILTER,
    "move_pages": FILTER,
    "mbind": FILTER,
    "set_mempolicy": FILTER,
    "get_mempolicy": FILTER,
    "personality-exec": FILTER,
    "personality-32": FILTER,
    "personality-svr4": FILTER,
    "personality-layout": FILTER,
    "personality-page-zero": FILTER,
    "personality-high": FILTER,
    "iopl": "CAP_SYS_RAWIO",
    "ioperm": "CAP_SYS_RAWIO",
    "modify_ldt": FILTER,
}
"""Rows 21, 51 and 52."""

RINGS = {"io_uring_setup": FILTER, "io_uring_enter": FILTER, "io_uring_register": FILTER}
"""Row 20."""

CLOCKS = dict.fromkeys(("adjtimex", "clock_adjtime", "settimeofday", "clock_settime"), "CAP_SYS_TIME")
"""Row 42."""

NODES = {f"mknod-{name}": "CAP_MKNOD" for name in ("mem", "null", "tun", "fuse", "console", "disk", "loop")}
"""Row 26. The call itself is allowed, since FIFOs are made by it."""

RIGHTS = {
    "rlimit-nofile": "CAP_SYS_RESOURCE",
    "rlimit-core": "CAP_SYS_RESOURCE",
    "rlimit-rtprio": "CAP_SYS_RESOURCE",
    "oom_score_adj": "CAP_SYS_RESOURCE",
    "sched-fifo": "CAP_SYS_NICE",
    "sched-rr": "CAP_SYS_NICE",
    "setpriority": "CAP_SYS_NICE",
    "ioprio-real-time": "CAP_SYS_NICE",
}
"""Row 50. No filter is concerned: the kernel alone refuses."""

DEBUGGERS = {"ptrace-traceme": FILTER}
"""Row 18. Open to a policy with CAP_SYS_PTRACE."""

CALLS = {**MOUNTS, **NEW_NAMESPACES, **KERNEL, **RINGS, **CLOCKS, **NODES, **RIGHTS, **DEBUGGERS}

SETTINGS_DECIDE = frozenset(
    {"bpf", "perf_event_open", "syslog-read", "unshare-user", "clone-user", "clone-high-user", "clone3-user"}
)
"""What the kernel of this host grants to everybody or to nobody, as its settings (sysctl(8)) are."""


ONLY_X86 = frozenset({"iopl", "ioperm", "modify_ldt"})


def skip_what_the_user_may_do(survey: Survey, name: str) -> None:
    """Skip what an ordinary user can do to a process of his without any privilege, and so does within a sandbox."""
    if os.geteuid() != 0 and name == "oom_score_adj" and is_reached(outcome_of(survey, Defence.OFF, name)):
        pytest.skip("this user may lower oom_score_adj: what started his session raised it (proc_pid_oom_score_adj(5))")


def outcome_of(survey: Survey, defence: Defence, name: str) -> str:
    """Return what came of an attempt; skip where this host has no such call."""
    if name in ONLY_X86 and name not in survey[Defence.DEFAULT]:
        pytest.skip(f"this architecture has no {name}")
    return survey[defence][name]


def may_schedule_in_real_time() -> bool:
    """Return whether this process could; a group without a budget cannot, whatever its rights (sched(7))."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *before)
    return True


def skip_where_unknown(survey: Survey, name: str) -> None:
    """Skip where nothing but the age or the configuration of the kernel is to blame for ENOSYS."""
    if outcome_of(survey, Defence.OFF, name) == "ENOSYS":
        pytest.skip(f"this kernel has no {name}")


def skip_without_namespace(survey: Survey, name: str) -> None:
    """Skip where there is nothing to be joined."""
    if name == "setns-time" and outcome_of(survey, Defence.OFF, name) == "ENOENT":
        pytest.skip(NO_TIME_NAMESPACES)


def test_every_attempt_is_in_a_table(survey: Survey) -> None:
    """Rows 18 to 22, 26, 42, 50, 51: nothing of what the probe program tries is left out here, nor the other way."""
    tried = set(survey[Defence.DEFAULT])

    assert set(CALLS) - ONLY_X86 <= tried <= set(CALLS)
    assert set(CALLS.values()) <= {FILTER, *CAPABILITIES}


@pytest.mark.parametrize("defence", FILTERED, ids=lambda defence: defence.value)
@pytest.mark.parametrize("name", CALLS)
def test_call_is_refused(survey: Survey, defence: Defence, name: str) -> None:
    """Rows 18 to 22, 26, 42, 50, 51, 52: whoever one is inside, and whatever capabilities one has there."""
    skip_what_the_user_may_do(survey, name)
    skip_without_namespace(survey, name)
    outcome = outcome_of(survey, defence, name)

    if name in DEBUGGERS and defence is Defence.PRIVILEGED:
        assert is_reached(outcome)
    else:
        assert is_denied(outcome), outcome


@pytest.mark.parametrize("name", [name for name, who in CALLS.items() if who != FILTER and name not in SETTINGS_DECIDE])
def test_call_is_refused_without_filters_too(survey: Survey, name: str) -> None:
    """Rows 21, 22, 26, 42, 50: all capabilities inside are none towards what belongs to the host."""
    if name not in HOST_CLOCK:
        skip_where_unknown(survey, name)
    skip_what_the_user_may_do(survey, name)
    skip_without_namespace(survey, name)
    outcome = outcome_of(survey, Defence.UNFILTERED, name)

    assert is_denied(outcome), outcome


@pytest.mark.parametrize("name", [name for name, who in CALLS.items() if who == FILTER and name not in SETTINGS_DECIDE])
def test_call_goes_through_without_filters(survey: Survey, name: str) -> None:
    """Rows 18 to 21, 51, 52, defence off: only the filters stand before these, so it is they who refused."""
    skip_where_unknown(survey, name)
    outcome = outcome_of(survey, Defence.UNFILTERED, name)

    assert is_reached(outcome), outcome


@pytest.mark.requires_root
@pytest.mark.parametrize("name", [name for name in CALLS if name not in HOST_CLOCK])
def test_call_goes_through_outside(survey: Survey, name: str) -> None:
    """Rows 18 to 22, 26, 42, 50, 51, 52, defence off: the attempt itself is sound.

    Except that of setting the clock, which a test must not do on any host; `adjtimex` stands for it.
    """
    skip_where_unknown(survey, name)
    outcome = outcome_of(survey, Defence.OFF, name)

    if is_denied(outcome) and CALLS[name] != FILTER:
        skip_without_capability(CALLS[name])
    if is_denied(outcome) and name in ("sched-fifo", "sched-rr") and not may_schedule_in_real_time():
        pytest.skip("root of this host has no real-time scheduling in his control group")
    assert is_reached(outcome), outcome


def test_clone3_is_unknown_so_that_libraries_fall_back(survey: Survey) -> None:
    """Rows 19 and 59: EPERM from clone3 would be the end of every thread; ENOSYS makes libc use clone."""
    assert {"ENOSYS"} == {survey[Defence.DEFAULT][f"clone3-{name}"] for name in (*NAMESPACES, "time")}
