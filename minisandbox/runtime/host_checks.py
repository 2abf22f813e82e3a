"""What the facts about a host mean for sandboxes: pure functions from facts to findings. Nothing is tried here."""

from __future__ import annotations

import re
from collections.abc import Callable, Set

import msgspec

from minisandbox.degradation import LIMITS_OF, MISSING, Degradation
from minisandbox.kernel.host import HostFacts
from minisandbox.policy import CAPABILITIES
from minisandbox.runtime.advice import IN_A_CONTAINER, USER_NAMESPACES
from minisandbox.runtime.finding import Finding

LAUNCHER_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_KILL",
    "CAP_NET_ADMIN",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
)
"""What supervisor and launcher use, no more and no less (capabilities(7)): to give files and control groups away, to
make and join namespaces, to mount, to change users, and to take the namespaces of a child that did and to end it."""

ARCHITECTURES = ("x86_64", "aarch64")
"""Where the system call filters are made and tested."""

OLDEST_KERNEL = (6, 1)
"""The oldest one that the tests run on."""

CONTROLLERS = ("memory", "pids", "cpu")


def check_host(facts: HostFacts, agreed: Set[Degradation] = frozenset()) -> list[Finding]:
    """Return one finding for each feature, those that everything else rests on first.

    What is missing for a protection that was `agreed` to be done without is not needed.
    """
    lacking = _lacking(facts)
    if Degradation.CONTROL_GROUPS in agreed:  # it says that there are no limits
        agreed = agreed | LIMITS_OF.keys()
    found = [check(facts) for check in CHECKS]
    return [
        msgspec.structs.replace(finding, ok=None, detail=f"{finding.detail}; done without")
        if finding.ok is False and finding.name in lacking and lacking[finding.name] <= agreed
        else finding
        for finding in found
    ]


def _lacking(facts: HostFacts) -> dict[str, frozenset[Degradation]]:
    """Return by finding which protections go with what it is about."""
    limits = {name for name, controller in LIMITS_OF.items() if controller not in facts.cgroup_controllers}
    return {
        "control groups": frozenset({Degradation.CONTROL_GROUPS}),
        "controllers": frozenset(limits - {Degradation.CPUS_LIMIT}),
        "subordinate ids": frozenset({Degradation.SINGLE_ID}),
    }


def _offer(*degradations: Degradation) -> str:
    return " ".join(f"--degrade {name}" for name in degradations)


def _root(facts: HostFacts) -> Finding:
    detail = f"uid {facts.uid}" + ("" if facts.is_root else "; his sandboxes are in a user namespace of his own")
    return Finding(name="root", ok=True if facts.is_root else None, detail=detail)


def _capabilities(facts: HostFacts) -> Finding:
    if not facts.is_root:
        return Finding(name="capabilities", ok=None, detail="none; in a user namespace of one's own none are needed")
    missing = [name for name in LAUNCHER_CAPABILITIES if not facts.has_capability(CAPABILITIES[name])]
    if not missing:
        return Finding(name="capabilities", ok=True, detail="all that the launcher needs")
    return Finding(name="capabilities", ok=False, detail=f"missing: {', '.join(missing)}", advice=IN_A_CONTAINER)


def _kernel(facts: HostFacts) -> Finding:
    refusal = kernel_refusal(facts.kernel_release, facts.architecture)
    detail = f"Linux {facts.kernel_release} on {facts.architecture}"
    return Finding(name="kernel", ok=not refusal, detail=detail, advice=refusal)


def kernel_refusal(release: str, architecture: str) -> str:
    """Return why no sandbox is opened on a kernel, or nothing. An unreadable release is no reason.

    The one thing that is decided by a version: what is older was never tried, and no test of one feature says whether
    the others hold.
    """
    if architecture not in ARCHITECTURES:
        return " or ".join(ARCHITECTURES)
    match = re.match(r"(\d+)\.(\d+)", release)
    if match and (int(match[1]), int(match[2])) < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        return f"Linux {oldest} or newer, as in Debian 12, Ubuntu 24.04 and Amazon Linux 2023"
    return ""


def _user_namespaces(facts: HostFacts) -> Finding:
    most = facts.user_namespaces_max
    advice = (
        "" if most > 0 else "sysctl -w user.max_user_namespaces=65536 (where it stays 0: a kernel with CONFIG_USER_NS)"
    )
    return Finding(name="user namespaces", ok=most > 0, detail=f"at most {most}", advice=advice)


def _overlay(facts: HostFacts) -> Finding:
    if facts.overlay:
        return Finding(name="overlayfs", ok=True, detail="in /proc/filesystems")
    # None: the kernel may load the module at the first mount, and the trial will show it.
    return Finding(name="overlayfs", ok=None, detail="not in /proc/filesystems", advice="modprobe overlay")


def _seccomp(facts: HostFacts) -> Finding:
    needed = {"kill_process", "errno", "allow"}
    missing = sorted(needed - set(facts.seccomp_actions))
    if not missing:
        return Finding(name="seccomp", ok=True, detail=f"filters can answer {', '.join(facts.seccomp_actions)}")
    advice = "a kernel with CONFIG_SECCOMP_FILTER"
    return Finding(name="seccomp", ok=False, detail=f"filters cannot answer {', '.join(missing)}", advice=advice)


def _cgroups(facts: HostFacts) -> Finding:
    if facts.cgroup_kind is None:
        advice = f"mount -t cgroup2 none /sys/fs/cgroup; {IN_A_CONTAINER}"
        return Finding(name="control groups", ok=False, detail="no hierarchy is mounted", advice=advice)
    if not facts.cgroup_writable and not facts.is_root:
        what, advice = MISSING[Degradation.CONTROL_GROUPS]
        advice = f"{advice}, or do without: {_offer(Degradation.CONTROL_GROUPS)}"
        return Finding(name="control groups", ok=False, detail=f"{facts.cgroup_kind.value}, but {what}", advice=advice)
    if not facts.cgroup_writable:
        advice = f"run it as root, or with a delegated subtree (systemd-run --scope -p Delegate=yes); {IN_A_CONTAINER}"
        detail = f"{facts.cgroup_kind.value}, but no group can be made below ours"
        return Finding(name="control groups", ok=False, detail=detail, advice=advice)
    return Finding(name="control groups", ok=True, detail=f"{facts.cgroup_kind.value}, writable")


def _controllers(facts: HostFacts) -> Finding:
    there = ", ".join(f"{name} ({path})" for name, path in facts.cgroup_controllers.items())
    missing = [name for name in CONTROLLERS if name not in facts.cgroup_controllers]
    if not missing:
        return Finding(name="controllers", ok=True, detail=there)
    advice = (
        "with cgroup v2, let the parent give them: echo '+memory +pids +cpu' > cgroup.subtree_control; "
        "where the kernel has memory switched off, boot with cgroup_enable=memory"
    )
    if not facts.is_root:
        lost = [name for name, controller in LIMITS_OF.items() if controller in missing]
        advice = f"{MISSING[lost[0]][1]}, or do without: {_offer(*lost)}"
    # Without --cpus nothing needs the cpu controller.
    needed = any(name != "cpu" for name in missing)
    detail = f"missing: {', '.join(missing)}" + (f"; there: {there}" if there else "")
    return Finding(name="controllers", ok=False if needed else None, detail=detail, advice=advice)


def _descriptors(facts: HostFacts) -> Finding:
    enough = facts.open_files_hard >= 1024
    detail = f"{facts.open_files_soft} open files, {facts.open_files_hard} at most"
    advice = "" if enough else "raise the hard limit: ulimit -Hn 1048576, or LimitNOFILE= of the service"
    return Finding(name="descriptors", ok=True if enough else None, detail=detail, advice=advice)


def _room(facts: HostFacts) -> Finding:
    free, total = facts.memory_available_bytes >> 20, facts.memory_total_bytes >> 20
    detail = f"{facts.cores} cores, {free} of {total} MiB memory free, {facts.pid_max} pids"
    return Finding(name="room", ok=True, detail=detail)


def _nesting(facts: HostFacts) -> Finding:
    hints = list(facts.container_hints)
    if facts.in_user_namespace:
        hints.append("a user namespace")
    if facts.seccomp_filters:
        hints.append(f"{facts.seccomp_filters} seccomp filters")
    if not hints:
        return Finding(name="nesting", ok=True, detail="not in a container, as far as can be seen")
    advice = "what the container forbids, no sandbox in it can have"
    return Finding(name="nesting", ok=None, detail=f"inside {', '.join(hints)}", advice=advice)


def _proc(facts: HostFacts) -> Finding:
    if not facts.proc_covered:
        return Finding(name="proc", ok=True, detail="whole: nothing is mounted over parts of it")
    # None: it stands in the way of a user namespace's root alone, and the trials show whether it does.
    detail = f"{len(facts.proc_covered)} parts are covered, such as {facts.proc_covered[0]}"
    advice = "docker run --security-opt systempaths=unconfined; in a pod, securityContext.procMount: Unmasked"
    return Finding(name="proc", ok=None, detail=detail, advice=advice)


def _rootless(facts: HostFacts) -> Finding:
    allowed = facts.unprivileged_user_namespaces
    detail = f"user namespaces without root are {'allowed' if allowed else 'forbidden'}"
    if facts.is_root:
        return Finding(name="rootless", ok=None, detail=f"{detail}; root does not need them")
    return Finding(name="rootless", ok=allowed, detail=detail, advice="" if allowed else USER_NAMESPACES)


def _subordinate_ids(facts: HostFacts) -> Finding:
    most = min(max((part.count for part in ranges), default=0) for ranges in (facts.subuids, facts.subgids))
    there = "are" if facts.id_mappers else "are not"
    detail = f"{most} in a range; newuidmap and newgidmap {there} there"
    if facts.is_root:
        return Finding(name="subordinate ids", ok=None, detail=f"{detail}; root does not need them")
    if most and facts.id_mappers:
        return Finding(name="subordinate ids", ok=True, detail=detail)
    advice = f"{MISSING[Degradation.SINGLE_ID][1]}, or do without: {_offer(Degradation.SINGLE_ID)}"
    return Finding(name="subordinate ids", ok=False, detail=detail, advice=advice)


CHECKS: tuple[Callable[[HostFacts], Finding], ...] = (
    _root,
    _capabilities,
    _kernel,
    _user_namespaces,
    _overlay,
    _seccomp,
    _cgroups,
    _controllers,
    _descriptors,
    _room,
    _nesting,
    _proc,
    _rootless,
    _subordinate_ids,
)
"""All checks, in the order in which they are shown."""
