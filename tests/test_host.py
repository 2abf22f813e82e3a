"""Facts about this host agree with what other sources say, and their text formats are read right."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.kernel.cgroup import detect_layout
from minisandbox.kernel.host import HostFacts, IdRange, mounts_below, read_host_facts, status_fields, subordinate_ids


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    """The facts of this host."""
    return read_host_facts()


def test_facts_agree_with_other_sources(facts: HostFacts) -> None:
    """What the standard library or the kernel tells in another way is the same."""
    release, machine = os.uname().release, os.uname().machine

    assert (release, machine, os.geteuid()) == (facts.kernel_release, facts.architecture, facts.uid)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (facts.open_files_soft, facts.open_files_hard)
    assert os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") == facts.memory_total_bytes
    assert 0 < facts.memory_available_bytes <= facts.memory_total_bytes
    assert 0 < facts.cores <= os.sysconf("SC_NPROCESSORS_ONLN")
    assert facts.pid_max > os.getpid()
    assert (facts.uid == 0) == facts.is_root


@pytest.mark.enforces("control-groups")
def test_control_groups_are_those_of_the_layout(facts: HostFacts) -> None:
    """A controller is named with the directory through which it is used."""
    layout = detect_layout()
    where = {name: str(own) for name in ("memory", "pids", "cpu") if (own := layout.where(name))}

    assert (layout.kind, where) == (facts.cgroup_kind, facts.cgroup_controllers)


def test_capabilities_are_those_of_the_process(facts: HostFacts) -> None:
    """The effective set is within the permitted one, and the right of a capability that is effective can be used."""
    try:
        os.listdir("/proc/1/fd")
        may_trace = True
    except PermissionError:
        may_trace = False

    assert facts.capabilities_effective & ~facts.capabilities_permitted == 0
    assert may_trace or not facts.has_capability(19)
    assert not facts.has_capability(63)


def test_kernel_features_are_found(facts: HostFacts) -> None:
    """Seccomp, overlayfs, Landlock and user namespaces are reported as the kernel lists them."""
    modules = Path("/sys/kernel/security/lsm")

    assert ("errno" in facts.seccomp_actions) == Path("/proc/sys/kernel/seccomp").is_dir()
    assert facts.overlay == ("\toverlay\n" in Path("/proc/filesystems").read_text())
    assert facts.landlock_abi > 0 or not modules.exists() or "landlock" not in modules.read_text()
    assert (facts.user_namespaces_max > 0) == Path("/proc/self/ns/user").exists()


@pytest.mark.parametrize(
    ("limit", "debian", "ubuntu", "allowed"),
    [
        (100, None, None, True),
        (100, True, False, True),
        (100, False, None, False),
        (100, None, True, False),
        (0, True, False, False),
    ],
)
def test_unprivileged_user_namespaces_need_every_switch(
    facts: HostFacts, limit: int, debian: bool | None, ubuntu: bool | None, allowed: bool
) -> None:
    """One switch that forbids them is enough, and a switch that is not there forbids nothing."""
    host = msgspec.structs.replace(
        facts,
        user_namespaces_max=limit,
        unprivileged_userns_clone=debian,
        apparmor_restrict_unprivileged_userns=ubuntu,
    )

    assert allowed == host.unprivileged_user_namespaces


def test_facts_survive_json(facts: HostFacts) -> None:
    """What is printed for machines is the same when it is read again."""
    assert facts == msgspec.json.decode(msgspec.json.encode(facts), type=HostFacts)


def test_subordinate_ids_are_those_of_the_user() -> None:
    """Ranges are found by name and by number; those of others, and lines that say nothing, are passed over."""
    text = "alice:100000:65536\nbob:165536:65536\n1000:300000:10\nalice:x:1\nalice:1\n\n# alice:1:1\nalice:400000:5"

    assert (
        IdRange(first=100000, count=65536),
        IdRange(first=300000, count=10),
        IdRange(first=400000, count=5),
    ) == subordinate_ids(text, "alice", 1000)


def test_what_covers_proc_is_found() -> None:
    """A mask of a file and a read-only part count, what the kernel mounts there does not, nor does another /proc."""
    masks = ["/proc", "/proc/keys", "/proc/sys", "/proc/sys/fs/binfmt_misc", "/procs/x", "/mnt/proc/keys"]
    table = "\n".join(f"30 25 0:26 / {point} rw - tmpfs tmpfs rw" for point in masks)

    assert ("/proc/keys", "/proc/sys") == mounts_below("/proc", table)


@given(st.text())
def test_junk_gives_no_facts_and_no_error(text: str) -> None:
    """Files that do not hold what they should are read without an error."""
    assert () == mounts_below("/proc", text.replace("/proc/", ""))
    assert () == subordinate_ids(text, "nobody-has-this-name", -1)
    assert "CapEff" not in status_fields(text) or "CapEff" in text
