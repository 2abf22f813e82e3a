"""What a host may be unable to enforce, by name: what each means and how to get it back. Values only.

Whatever is missing is refused unless its name was given; then each Result carries it in `degraded`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from minisandbox.errors import HostError, UsageError


class Degradation(enum.StrEnum):
    """A protection that can be done without. This set is closed."""

    CONTROL_GROUPS = "control-groups"
    """No control group is ours: no limit of memory, processes, cpus or CPU time, and none of them is measured. The
    processes of one command cannot be told from those of another: what ends one by force ends all of the sandbox."""
    MEMORY_LIMIT = "memory-limit"
    """`Limits.memory_bytes` is not enforced, and memory is not measured."""
    PROCESSES_LIMIT = "processes-limit"
    """`Limits.processes` is not enforced, and processes are not counted."""
    CPUS_LIMIT = "cpus-limit"
    """`Limits.cpus` is not enforced."""
    DISK_LIMIT = "disk-limit"
    """`Limits.disk_bytes` and `Limits.disk_inodes` are not enforced in sandboxes with `disk="state"`."""
    SINGLE_ID = "single-id"
    """Root is the only user inside, and is the user of the host who runs minisandbox, groups included; so is init."""


_DELEGATE = "start it with `systemd-run --user --scope -p Delegate=yes COMMAND`"

_CONTROLLER_ADVICE = "have the {} controller delegated: in user@.service, Delegate=cpu memory pids (systemd)"

MISSING = {
    Degradation.CONTROL_GROUPS: ("this user may not make control groups", _DELEGATE),
    Degradation.MEMORY_LIMIT: (
        "no control group of ours has the memory controller, so limit memory_bytes cannot be enforced",
        _CONTROLLER_ADVICE.format("memory"),
    ),
    Degradation.PROCESSES_LIMIT: (
        "no control group of ours has the pids controller, so limit processes cannot be enforced",
        _CONTROLLER_ADVICE.format("pids"),
    ),
    Degradation.CPUS_LIMIT: (
        "no control group of ours has the cpu controller, so limit cpus cannot be enforced",
        _CONTROLLER_ADVICE.format("cpu"),
    ),
    Degradation.DISK_LIMIT: (
        'disk_bytes and disk_inodes cannot be enforced with disk="state"',
        "leave both at None in the policy, or keep the files in memory",
    ),
    Degradation.SINGLE_ID: (
        "this user has no subordinate ids, or newuidmap(1) and newgidmap(1) are not there",
        "install uidmap (shadow-utils) and run `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`",
    ),
}
"""For each degradation, what is missing where it is in force, and one line about how to get it."""

LIMITS_OF = {
    Degradation.MEMORY_LIMIT: "memory",
    Degradation.PROCESSES_LIMIT: "pids",
    Degradation.CPUS_LIMIT: "cpu",
}
"""The controller that enforces each limit."""


def parse_degradations(names: Iterable[str]) -> frozenset[Degradation]:
    """Return the degradations of these names. Raises UsageError for a name that is none."""
    try:
        return frozenset(map(Degradation, names))
    except ValueError as error:
        raise UsageError(f"{error}; degradations are {', '.join(Degradation)}") from None


def refusal(degradation: Degradation) -> HostError:
    """Return the error for a protection that this host cannot give and nobody agreed to do without."""
    what, advice = MISSING[degradation]
    return HostError(f'{what}; {advice}, or do without: degrade=("{degradation}",), --degrade {degradation}')
