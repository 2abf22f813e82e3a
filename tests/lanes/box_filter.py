"""Runs a command behind a seccomp filter that refuses what Docker's does to a container without CAP_SYS_ADMIN.

Usage: box_filter.py COMMAND... (with CAP_SYS_ADMIN, since no_new_privs stays off, as it is in a container by default)
Not the whole of Docker's profile: the calls that a sandbox needs, each answered as there (moby: profiles/seccomp).
"""

from __future__ import annotations

import errno
import os
import sys

import pyseccomp

CLONE_NAMESPACES = 0x7E020000
"""The flags of clone(2) that make a namespace."""

REFUSED = (
    "mount", "umount2", "mount_setattr", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick",
    "pivot_root", "unshare", "setns", "sethostname", "setdomainname", "bpf", "perf_event_open", "quotactl",
    "fanotify_init", "lookup_dcookie", "syslog", "swapon", "swapoff", "reboot", "init_module", "finit_module",
    "delete_module", "keyctl", "add_key", "request_key", "userfaultfd",
    "open_by_handle_at", "name_to_handle_at", "kcmp",
)  # fmt: skip


def main(command: list[str]) -> None:
    """Load the filter, then become the command."""
    refuse = pyseccomp.ERRNO(errno.EPERM)
    box = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    box.set_attr(pyseccomp.Attr.CTL_NNP, 0)
    for name in REFUSED:
        box.add_rule(refuse, name)
    for flag in (1 << bit for bit in range(32) if CLONE_NAMESPACES >> bit & 1):
        box.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    # Its flags are in memory, where a filter cannot look: the C library then takes clone.
    box.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    box.load()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
