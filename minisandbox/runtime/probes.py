"""Small commands that show from inside whether a sandbox holds, and how what they print is judged.

A probe is a script of /bin/sh and a pure function. What the same scripts print on the bare host fails, which is how the
tests know that they can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minisandbox.degradation import Degradation
from minisandbox.kernel.host import status_fields
from minisandbox.kernel.ids import FIRST_ID
from minisandbox.kernel.outer import ALL_IDS, is_privileged
from minisandbox.policy import Policy, capability_mask
from minisandbox.spec import ExitReason, Limits

Judge = Callable[[str, Policy], tuple[bool, str]]
"""From what a script printed and the policy that should hold, to whether it does and what was seen."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A look at the sandbox from inside."""

    name: str
    script: str
    judge: Judge


@dataclass(frozen=True, slots=True)
class LimitProbe:
    """A command that runs into one limit. Those of memory and disk are the whole sandbox's: `SMALL`."""

    name: str
    command: Sequence[str]
    limits: Limits
    reason: ExitReason
    without: frozenset[Degradation] = frozenset()
    """It is not tried where one of these is in force: what it needs is not enforced."""


SMALL = Limits(memory_bytes=64 << 20, disk_bytes=8 << 20, disk_inodes=256, wall_time_s=20.0)
"""Limits of the sandbox that the limit probes run in."""


def _judge_command(printed: str, _policy: Policy) -> tuple[bool, str]:
    return printed == "42\n", f"printed {printed.strip()!r}"


def _judge_processes(printed: str, _policy: Policy) -> tuple[bool, str]:
    names = printed.split()
    return set(names) <= {"init", "sh"}, f"sees {len(names)} processes: {' '.join(names[:8])}"


def _judge_files(printed: str, _policy: Policy) -> tuple[bool, str]:
    seen = printed.split()
    return (
        not seen,
        f"sees {', '.join(seen)}" if seen else "state directory and a file in the host's /tmp are out of sight",
    )


def _judge_network(printed: str, _policy: Policy) -> tuple[bool, str]:
    interfaces = [line.partition(":")[0].strip() for line in printed.splitlines() if ":" in line]
    return interfaces == ["lo"], f"interfaces: {', '.join(interfaces) or 'none'}"


def _judge_users(printed: str, _policy: Policy) -> tuple[bool, str]:
    _inside, first, count = (printed.split() or ["0", "0", "4294967295"])[:3]
    if not is_privileged() and int(first) == 0 and int(count) < ALL_IDS:  # the outer user namespace is what is outside
        return True, "root inside is the user who runs minisandbox"
    return int(first) >= FIRST_ID, f"root inside is uid {first} of the host"


def _judge_filter(printed: str, _policy: Policy) -> tuple[bool, str]:
    status = status_fields(printed)
    mode, privs = status.get("Seccomp"), status.get("NoNewPrivs")
    filters = status.get("Seccomp_filters", "some")
    return (mode, privs) == ("2", "1"), f"seccomp mode {mode} with {filters} filters, no_new_privs {privs}"


def _judge_capabilities(printed: str, policy: Policy) -> tuple[bool, str]:
    status = status_fields(printed)
    names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    held = 0
    for name in names:
        held |= int(status.get(name, "ffffffffffffffff"), 16)
    beyond = held & ~capability_mask(policy.capabilities)
    return beyond == 0, f"holds {held:#x}, {beyond:#x} of it beyond the policy"


_NAMES = 'for place in /proc/[0-9]*; do read -r name < "$place/comm" && echo "$name"; done; true'
_SEEN = 'for path in "$@"; do if [ -e "$path" ]; then echo "$path"; fi; done'

PROBES = (
    Probe("command", "echo $((6 * 7))", _judge_command),
    Probe("processes", _NAMES, _judge_processes),
    Probe("host files", _SEEN, _judge_files),
    Probe("network", "cat /proc/self/net/dev", _judge_network),
    Probe("users", "cat /proc/self/uid_map", _judge_users),
    Probe("system call filter", "cat /proc/self/status", _judge_filter),
    Probe("capabilities inside", "cat /proc/self/status", _judge_capabilities),
)
"""All looks from inside. "host files" gets the paths to look for as arguments."""


def _sh(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


LIMIT_PROBES = (
    LimitProbe(
        "memory limit",
        _sh("dd if=/dev/zero of=/dev/null bs=256M count=1"),
        Limits(),
        ExitReason.MEMORY,
        frozenset({Degradation.MEMORY_LIMIT}),
    ),
    LimitProbe("disk limit", _sh("dd if=/dev/zero of=/tmp/fill bs=1M count=16"), Limits(), ExitReason.DISK),
    LimitProbe(
        "process limit",
        _sh("for i in 1 2 3 4 5 6 7 8; do sleep 5 & done; wait"),
        Limits(processes=4),
        ExitReason.PROCESSES,
        frozenset({Degradation.PROCESSES_LIMIT}),
    ),
    LimitProbe("wall-time limit", ("sleep", "10"), Limits(wall_time_s=0.1), ExitReason.WALL_TIME),
    LimitProbe(
        "CPU-time limit",
        _sh("while :; do :; done"),
        Limits(cpu_time_s=0.1),
        ExitReason.CPU_TIME,
        frozenset({Degradation.CONTROL_GROUPS}),
    ),
    LimitProbe("output limit", _sh("while :; do echo 0123456789; done"), Limits(stdout_bytes=4096), ExitReason.OUTPUT),
)
"""All limits that end a command."""
