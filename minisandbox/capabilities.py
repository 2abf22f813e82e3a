"""The capabilities that Linux has, by name and number. A table and one function."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from minisandbox.errors import UsageError

CAPABILITIES = {
    f"CAP_{name}": number
    for number, name in enumerate(
        "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
        "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT "
        "SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL "
        "SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF "
        "CHECKPOINT_RESTORE".split()
    )
}
"""All capabilities with their numbers (linux/capability.h)."""


def capability_mask(names: Iterable[str]) -> int:
    """Return capabilities as the kernel counts them, bit n for capability n. Raises UsageError for an unknown name."""
    mask = 0
    for name in names:
        if name not in CAPABILITIES:
            close = difflib.get_close_matches(name, CAPABILITIES, 1)
            hint = f"; did you mean {close[0]}?" if close else "; names look like CAP_CHOWN"
            raise UsageError(f"unknown capability {name!r}{hint}")
        mask |= 1 << CAPABILITIES[name]
    return mask
