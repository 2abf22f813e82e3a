"""Facts about this host, each found by looking for the feature itself, never by comparing versions.

It only reads: /proc, /sys, /etc, and one system call that answers a question (landlock_create_ruleset(2)).
What is missing is a value here and an error only where it is needed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
import resource
from pathlib import Path

import msgspec
import psutil

from minisandbox.errors import HostError
from minisandbox.kernel.cgroup_layout import CgroupKind, CgroupLayout, detect_layout, writable_layout

SYS_LANDLOCK_CREATE_RULESET = 444
"""The same number on every architecture (asm-generic/unistd.h)."""

LANDLOCK_CREATE_RULESET_VERSION = 1

CONTAINER_MARKS = (
    ("/.dockerenv", "docker"),
    ("/run/.containerenv", "podman"),
    ("/run/systemd/container", "systemd"),
    ("/var/run/secrets/kubernetes.io", "kubernetes"),
    ("/proc/vz", "openvz"),
    ("/dev/lxd/sock", "lxd"),
    ("/proc/sys/fs/binfmt_misc/WSLInterop", "wsl"),
)
"""Files that a container runtime leaves inside, and its name. They are hints, not proofs."""


MAPPERS = ("newuidmap", "newgidmap")
"""The programs that map subordinate ids; both are setuid root or have file capabilities."""

PLACES = (Path("/usr/bin"), Path("/bin"), Path("/usr/local/bin"), Path("/run/wrappers/bin"))
"""Where distributions keep them."""


class IdRange(msgspec.Struct, frozen=True, kw_only=True):
    """Ids that a user may map into a user namespace (subuid(5))."""

    first: int
    count: int


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What this host gives to this process at this moment. None where the host does not say."""

    kernel_release: str
    """As text, for people; nothing is decided by it."""
    architecture: str
    uid: int
    is_root: bool
    """The effective uid is 0 in our user namespace, which may be a container's."""
    capabilities_permitted: int
    """Bit masks, bit n is capability n (capabilities(7))."""
    capabilities_effective: int
    capabilities_bounding: int
    cgroup_kind: CgroupKind | None
    """"v2", "hybrid" or "v1"; None when no hierarchy is mounted."""
    cgroup_controllers: dict[str, str]
    """Our own directory for each of memory, pids and cpu that can be limited."""
    cgroup_writable: bool
    """Control groups can be made below our own, in every hierarchy that is needed; an ordinary user needs but one."""
    landlock_abi: int
    """0 when Landlock is not built in or not enabled."""
    seccomp_actions: tuple[str, ...]
    """What a seccomp filter can answer; empty when the kernel has no seccomp filters."""
    seccomp_filters: int | None
    """Filters that already hold for this process, as in a container."""
    no_new_privs: bool
    overlay: bool
    """Overlayfs is there; as a module that was never loaded it is not listed and counts as missing."""
    user_namespaces_max: int
    """0 when user namespaces are switched off."""
    unprivileged_userns_clone: bool | None
    """Debian's switch; None on kernels without it."""
    apparmor_restrict_unprivileged_userns: bool | None
    """Ubuntu's switch; None on kernels without it."""
    in_user_namespace: bool
    """We are in a user namespace that does not map every id of the host."""
    subuids: tuple[IdRange, ...]
    subgids: tuple[IdRange, ...]
    id_mappers: bool
    """newuidmap(1) and newgidmap(1) are there, without which subordinate ids are of no use."""
    cores: int
    """Processors that this process may use."""
    memory_total_bytes: int
    memory_available_bytes: int
    swap_total_bytes: int
    open_files_soft: int
    open_files_hard: int
    pid_max: int
    threads_max: int
    container_hints: tuple[str, ...]
    proc_covered: tuple[str, ...]
    """What is mounted over parts of /proc, as a container hides or protects them."""

    @property
    def unprivileged_user_namespaces(self) -> bool:
        """Whether a process without privileges may make a user namespace with capabilities in it."""
        forbidden = self.unprivileged_userns_clone is False or self.apparmor_restrict_unprivileged_userns is True
        return self.user_namespaces_max > 0 and not forbidden

    def has_capability(self, number: int) -> bool:
        """Return whether a capability is in our effective set."""
        return bool(self.capabilities_effective >> number & 1)


def read_host_facts() -> HostFacts:
    """Read all facts anew; a few milliseconds."""
    status, subordinates = status_fields(_text("/proc/self/status")), read_subordinate_ids()
    layout, usable = _layouts()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = psutil.virtual_memory()
    return HostFacts(
        kernel_release=platform.release(),
        architecture=platform.machine(),
        uid=os.geteuid(),
        is_root=os.geteuid() == 0,
        capabilities_permitted=int(status.get("CapPrm", "0"), 16),
        capabilities_effective=int(status.get("CapEff", "0"), 16),
        capabilities_bounding=int(status.get("CapBnd", "0"), 16),
        cgroup_kind=layout.kind if layout else None,
        cgroup_controllers=_controllers(usable),
        cgroup_writable=_writable(usable),
        landlock_abi=_landlock_abi(),
        seccomp_actions=tuple(_text("/proc/sys/kernel/seccomp/actions_avail").split()),
        seccomp_filters=int(status["Seccomp_filters"]) if "Seccomp_filters" in status else None,
        no_new_privs=status.get("NoNewPrivs") == "1",
        overlay="overlay" in _text("/proc/filesystems").split(),
        user_namespaces_max=_number("/proc/sys/user/max_user_namespaces") or 0,
        unprivileged_userns_clone=_switch("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restrict_unprivileged_userns=_switch("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        in_user_namespace=_text("/proc/self/uid_map").split() != ["0", "0", str(2**32 - 1)],
        subuids=subordinates[0],
        subgids=subordinates[1],
        id_mappers=find_mappers() is not None,
        cores=len(os.sched_getaffinity(0)),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        swap_total_bytes=psutil.swap_memory().total,
        open_files_soft=soft,
        open_files_hard=hard,
        pid_max=_number("/proc/sys/kernel/pid_max") or 0,
        threads_max=_number("/proc/sys/kernel/threads-max") or 0,
        container_hints=tuple(name for path, name in CONTAINER_MARKS if os.path.lexists(path)),
        proc_covered=mounts_below("/proc", _text("/proc/self/mountinfo")),
    )


def status_fields(text: str) -> dict[str, str]:
    """Return the fields of a status file of /proc by name (proc_pid_status(5))."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, separator, value in pairs if separator}


def mounts_below(place: str, table: str) -> tuple[str, ...]:
    """Return what is mounted below a directory, binfmt_misc excepted, from a table as in proc_pid_mountinfo(5)."""
    fields = [line.split(" ") for line in table.splitlines() if line.count(" ") >= 6]
    points = {field[4] for field in fields if field[4].startswith(f"{place}/")}
    return tuple(sorted(points - {f"{place}/sys/fs/binfmt_misc"}))


def read_subordinate_ids() -> tuple[tuple[IdRange, ...], tuple[IdRange, ...]]:
    """Return the subordinate uids and gids of this user, as far as files name them."""
    login, uid = _login(), os.getuid()
    uids, gids = (subordinate_ids(_text(path), login, uid) for path in ("/etc/subuid", "/etc/subgid"))
    return uids, gids


def find_mappers() -> tuple[Path, Path] | None:
    """Return both programs, None unless they are there."""
    for place in PLACES:
        if all(os.access(place / name, os.X_OK) for name in MAPPERS):
            return place / MAPPERS[0], place / MAPPERS[1]
    return None


def subordinate_ids(text: str, login: str, uid: int) -> tuple[IdRange, ...]:
    """Return the ranges that a file in the format of subuid(5) gives to a user, named by login or by number."""
    ranges = []
    for line in text.splitlines():
        owner, _, rest = line.strip().partition(":")
        first, _, count = rest.partition(":")
        if owner in (login, str(uid)) and first.isascii() and first.isdigit() and count.isascii() and count.isdigit():
            ranges.append(IdRange(first=int(first), count=int(count)))
    return tuple(ranges)


def _text(path: str) -> str:
    """Return what a file holds, empty when it is not there or not ours to read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _switch(path: str) -> bool | None:
    number = _number(path)
    return None if number is None else number != 0


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _layout() -> CgroupLayout | None:
    try:
        return detect_layout()
    except HostError:
        return None


def _layouts() -> tuple[CgroupLayout | None, CgroupLayout | None]:
    """Return our own control groups, and which of them we may use."""
    layout = _layout()
    return layout, layout if layout is None or os.geteuid() == 0 else writable_layout(layout)


def _controllers(layout: CgroupLayout | None) -> dict[str, str]:
    if layout is None:
        return {}
    return {name: str(own) for name in ("memory", "pids", "cpu") if (own := layout.where(name))}


def _writable(layout: CgroupLayout | None) -> bool:
    if layout is None or layout.is_empty:
        return False
    needed = {own for name in ("memory", "pids", "cpu") if (own := layout.where(name))}
    return all(os.access(own, os.W_OK) for own in needed | ({layout.unified} if layout.unified else set()))


def _landlock_abi() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, int(abi))
