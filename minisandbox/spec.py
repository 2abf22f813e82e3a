"""The vocabulary: what is asked for (`Limits`, `Command`) and what came of it (`Result`, `Usage`, `ExitReason`).

Values only, checked at construction and trusted afterwards. Bytes are int, times are float seconds.
`None` means "no limit" in `Limits` and "this host cannot tell" in `Usage`. This module does no I/O.
"""

from __future__ import annotations

import enum
import math

import msgspec

from minisandbox.errors import UsageError

MAX_BYTES = 1 << 50
"""Upper bound of any limit in bytes (1 PiB): a larger value is a mistake, not a wish."""

MAX_SECONDS = 366 * 86400.0
"""Upper bound of any limit in seconds (a year)."""


MAX_PROCESSES = 1 << 22
"""PID_MAX_LIMIT of the kernel (proc_sys_kernel(5), pid_max)."""

MAX_OPEN_FILES = 1 << 20
"""The default of fs.nr_open (proc_sys_fs(5)), above which no process can set its limit."""


class ExitReason(enum.Enum):
    """How a command ended. Exactly one holds; `minisandbox.runtime.outcome.decide_reason` has their precedence."""

    EXITED = "exited"
    """The main process returned an exit code by itself."""
    SIGNALED = "signaled"
    """A signal ended the main process, and no limit is to blame."""
    WALL_TIME = "wall_time"
    """It ran longer than `Limits.wall_time_s` and was killed."""
    CPU_TIME = "cpu_time"
    """Its tree used more than `Limits.cpu_time_s` and was killed."""
    MEMORY = "memory"
    """The kernel killed it, or a process of its tree, for `Limits.memory_bytes`."""
    OUTPUT = "output"
    """It wrote more than `Limits.stdout_bytes` or `Limits.stderr_bytes` and was killed."""
    PROCESSES = "processes"
    """It asked for more processes than `Limits.processes` and was killed."""
    DISK = "disk"
    """It failed with its writable file system full (`Limits.disk_bytes` or `Limits.disk_inodes`)."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was asked for. Each field is a positive number, or None for no limit.

    `memory_bytes`, `cpus`, `disk_bytes` and `disk_inodes` hold for the whole sandbox; the others for one command.
    Raises UsageError when a value is not positive, not finite or absurdly large.
    """

    wall_time_s: float | None = None
    """Real time from start to end of a command."""
    cpu_time_s: float | None = None
    """User plus system time of all processes the command started, wherever they went."""
    memory_bytes: int | None = None
    """Memory of all processes plus what they wrote to the sandbox's file system; swap is off."""
    processes: int | None = None
    """Processes and threads at once."""
    cpus: float | None = None
    """CPU bandwidth: 1.5 is one and a half cores."""
    disk_bytes: int | None = None
    """What may be written to the root file system, /tmp and /dev/shm together."""
    disk_inodes: int | None = None
    """Files, directories and links that may be made there."""
    open_files: int | None = None
    """File descriptors of one process (RLIMIT_NOFILE)."""
    stdout_bytes: int | None = None
    """What may be written to stdout before the command is ended."""
    stderr_bytes: int | None = None
    """What may be written to stderr before the command is ended."""
    output_kept_bytes: int = 4 << 20
    """How much of each stream the result keeps: the first half and the last half of this."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None:
                _check_limit(name, value)

    def overridden_by(self, other: Limits | None) -> Limits:
        """Return these limits with every field that `other` sets to something else than its default."""
        if other is None:
            return self
        changes = {
            name: value
            for name, default in zip(self.__struct_fields__, Limits.__struct_defaults__, strict=True)
            if (value := getattr(other, name)) != default
        }
        return msgspec.structs.replace(self, **changes)


_LARGEST = {"processes": MAX_PROCESSES, "open_files": MAX_OPEN_FILES}

WHOLE_SANDBOX = ("memory_bytes", "cpus", "disk_bytes", "disk_inodes")
"""The limits that all commands of a sandbox share."""


def _check_limit(name: str, value: object) -> None:
    whole = not name.endswith("_s") and name != "cpus"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise UsageError(f"limit {name} must be {'an integer' if whole else 'a number'}, not {value!r}")
    largest = MAX_SECONDS if name.endswith("_s") else _LARGEST.get(name, MAX_BYTES)
    if (isinstance(value, float) and not math.isfinite(value)) or value <= 0:
        raise UsageError(f"limit {name} must be greater than 0, not {value!r}; leave it out (None) for no limit")
    if value > largest:
        raise UsageError(f"limit {name} is {value!r}, more than the {largest!r} that make sense; use None for no limit")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured for one command. None where this host cannot tell."""

    wall_time_s: float
    """Real time from the request to the end of the main process."""
    cpu_time_s: float | None
    """User plus system time of the command's whole tree, from its control group."""
    memory_peak_bytes: int | None
    """Highest memory charge during the command, beyond what the sandbox held when it began."""
    memory_held_bytes: int | None
    """Memory charge when the command began: files written earlier, background processes."""
    processes_peak: int | None
    """Most processes and threads of the command's tree at once."""
    stdout_bytes: int
    """Bytes written to stdout, kept or not."""
    stderr_bytes: int
    """Bytes written to stderr, kept or not."""
    disk_bytes: int
    """Bytes in use on the sandbox's writable file system when the command ended."""
    disk_inodes: int
    """Inodes in use there."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a start went, in seconds."""

    parked: bool = False
    """True when it was started ahead of demand, so that nobody waited for it; the other fields are 0 then."""
    slot_s: float
    """Waiting for a free slot, or making one."""
    start_s: float
    """From the request to the launcher until init said that it was ready."""
    stages: dict[str, float] = {}
    """Seconds of each step inside `start_s`, by stage name; empty unless the start was traced."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one command. `exit_code` and `signal` are those of the main process; one of them is None."""

    exit_reason: ExitReason
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    usage: Usage
    limits: Limits
    timing: Timing
    degraded: tuple[str, ...] = ()
    """Protections that this host could not give and the caller agreed to do without, by name."""

    @property
    def ok(self) -> bool:
        """True when the command exited by itself with code 0."""
        return self.exit_reason is ExitReason.EXITED and self.exit_code == 0
