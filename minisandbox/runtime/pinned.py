"""What deterministic sandboxes see alike beyond what the launcher pins: variables, the ids of machine and boot."""

from __future__ import annotations

import os

from minisandbox.images.state import StateDir
from minisandbox.policy import Policy, Proc
from minisandbox.runtime.handles import Handles

PINNED_ENV = {"TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
"""Variables that programs take their time zone, language and order of hashes from."""

PINNED_TIME_S = 315532800
"""1980-01-01, as the launcher has it (pin.c)."""

_MACHINE_ID = ("/etc/machine-id", b"5b0fd9a3c1d84e0f9d6a4c0e2f7b8a61\n")
_BOOT_ID = ("/proc/sys/kernel/random/boot_id", b"3f6c2c1e-7a54-4d0b-8f3e-91c2a6d5e0b7\n")


def pinned_files(state: StateDir, handles: Handles, policy: Policy) -> list[tuple[str, int]]:
    """Return the files that are mounted over those of the system, by place inside, with a descriptor each."""
    pinned = [_MACHINE_ID] if policy.proc is Proc.PID else [_MACHINE_ID, _BOOT_ID]
    return [(target, _file(state, handles, target, content)) for target, content in pinned]


def _file(state: StateDir, handles: Handles, target: str, content: bytes) -> int:
    path = state.path / f"pinned-{os.path.basename(target)}"
    if not path.exists() or path.read_bytes() != content:
        state.write_file(path, content)
    os.chmod(path, 0o444)
    os.utime(path, (PINNED_TIME_S, PINNED_TIME_S))
    return handles.path_fd(path)
