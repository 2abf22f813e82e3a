"""What a sandbox can do to its own init, which holds the sandbox together: nothing."""

from __future__ import annotations

import os

import pytest

from tests.probes.conftest import Survey
from tests.probes.lab import SANDBOXED, Defence, is_denied, is_reached

ACTS = (
    *("ptrace-attach", "ptrace-seize", "process_vm_readv", "process_vm_writev", "process_madvise", "perf_event_open"),
    *("pidfd_getfd", "pidfd_send_signal", "kill-0", "kill-stop", "kill-term", "kill-kill", "tkill", "prlimit64"),
    *("sched_setaffinity", "sched-batch", "sched-idle", "setpriority", "ioprio_set", "migrate_pages", "move_pages"),
    *(
        "get_robust_list",
        "mem:read",
        "mem:read-write",
        "task/mem:read-write",
        "environ:read",
        "maps:read",
        "smaps:read",
    ),
    *("pagemap:read", "auxv:read", "stack:read", "syscall:read", "io:read", "personality:read", "map_files:read"),
    *("fd:read", "fdinfo:read", "fd/3:read", "root:path", "root/usr:path", "cwd:path", "exe:path", "exe:write"),
    *(f"ns/{name}:read" for name in ("mnt", "pid", "user", "net", "ipc", "uts", "cgroup")),
    *("clear_refs:write", "oom_score_adj:write", "comm:write", "coredump_filter:write", "autogroup:write"),
    *("timerslack_ns:write", "uid_map:write", "gid_map:write", "setgroups:write"),
)


OPEN_TO_OWN_ROOT = frozenset(
    ("map_files:read", "fd:read", "clear_refs:write", "oom_score_adj:write", "comm:write", "coredump_filter:write")
) | {"uid_map:write", "gid_map:write"}
"""What root inside may open where he is the user who runs minisandbox; the threat model says what comes of it."""


def test_every_act_is_listed(process_survey: Survey) -> None:
    """Rows 1, 18, 39, 50, 64: all that the probe program tries is looked at here."""
    assert set(ACTS) == set(process_survey[Defence.DEFAULT]) == set(process_survey[Defence.OFF])


@pytest.mark.enforces("single-id")
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
@pytest.mark.parametrize("name", ACTS)
def test_act_upon_init_is_refused(process_survey: Survey, defence: Defence, name: str) -> None:
    """Rows 1, 18, 39, 50, 64: init is another user of the host, not dumpable, and of no user namespace of the sandbox.

    So it is with all capabilities and without filters, too.
    """
    outcome = process_survey[defence][name]
    if outcome == "ENOENT" == process_survey[Defence.OFF][name]:
        pytest.skip(f"this kernel has no {name}")
    if os.geteuid() != 0 and defence is not Defence.STRICT and name in OPEN_TO_OWN_ROOT:
        pytest.skip("files of init belong to the user who is root inside")

    assert is_denied(outcome), outcome


@pytest.mark.requires_root
@pytest.mark.parametrize("name", ACTS)
def test_act_upon_a_process_like_any_other_goes_through(process_survey: Survey, name: str) -> None:
    """Rows 1, 18, 39, 50, 64, defence off: root of the host can do each of this to a child of his."""
    outcome = process_survey[Defence.OFF][name]
    if outcome == "ENOSYS" or outcome == "ENOENT" == process_survey[Defence.DEFAULT][name]:
        pytest.skip(f"this kernel has no {name}")

    assert is_reached(outcome), outcome
