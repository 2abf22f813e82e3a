"""Facts about this host on which tests are skipped."""

from __future__ import annotations

from pathlib import Path

IS_USER_MODE_LINUX = "User Mode Linux" in Path("/proc/cpuinfo").read_text()

HAS_TIME_NAMESPACES = Path("/proc/self/ns/time").exists()

NO_TIME_NAMESPACES = "this kernel has no time namespaces"

HAS_FUSE = Path("/dev/fuse").exists()

NO_MEMORY_TO_EXECUTE = "user-mode Linux panics when a limit of memory is reached within execve(2)"

ONE_ENTRY = "user-mode Linux takes int 0x80 for a 64-bit system call"
