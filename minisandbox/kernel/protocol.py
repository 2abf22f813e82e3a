"""The wire between supervisor, launcher and init: requests of words, records of 32 bytes.

The other side is `launcher/protocol.h`; `minisandbox-launcher --print-protocol` prints what it believes, and a test
compares both. Values only, no I/O but the making of a sealed memory file for a large request.
"""

from __future__ import annotations

import enum
import fcntl
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from minisandbox.errors import ProtocolError, StartError, UsageError

VERSION = 1
RECORD_BYTES = 32
REQUEST_INLINE_MAX = 32768
REQUEST_MEMFD_MAX = 4 << 20
FDS_MAX = 128
LAYERS_MAX = 32
BINDS_MAX = 48
FILTERS_MAX = 8
RUNS_MAX = 256
SLOT_IDS = 65536
WARDEN_ID = SLOT_IDS - 1

_RECORD = struct.Struct("<HHIiiqq")
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class RecordKind(enum.IntEnum):
    """What a record reports; `protocol.h` says which fields mean what."""

    HELLO = 0
    SLOT = 1
    STAGE = 2
    READY = 3
    FAILED = 4
    EXIT = 5
    DISK = 6
    OPENED = 7
    GONE = 8
    SEALED = 9


Stage = enum.IntEnum(
    "Stage",
    "NONE REQUEST SEAL OUTER_USERNS OUTER_IDMAP LAUNCHER_NAMESPACE LAUNCHER_ROOT DEVICES POD"
    " SLOT_FORK SLOT_NETNS SLOT_LOOPBACK SLOT_USERNS SLOT_IDMAP"
    " LAYER BIND_SOURCE CLONE"
    " CGROUP PIN NETNS HOSTNAME TMPFS UPPER OVERLAY PROC DEV SHM PTS BIND UNMOUNT ROOT FILTER WARDEN"
    " NSJAIL_MOUNTS NSJAIL_EXEC NSJAIL"
    " COMMAND_WARM COMMAND_CLONE COMMAND_CGROUP COMMAND_STDIO COMMAND_RLIMIT COMMAND_USERNS COMMAND_USER"
    " COMMAND_CAPABILITIES COMMAND_CWD COMMAND_TERMINAL COMMAND_SECCOMP COMMAND_EXEC"
    " FILE_OPEN FILE_TYPE FILE_WRITE TREE_STREAM"
    " LISTEN SEAL_DISK COPY",
    start=0,
)
"""The named steps of whatever launcher and init do, in the order of `protocol.h`."""


class Record(NamedTuple):
    """One report. `error` is an errno, `item` the index of what it concerns, `time_ns` CLOCK_MONOTONIC."""

    kind: int
    stage: int
    id: int
    error: int
    item: int
    value: int
    time_ns: int


def decode_record(datagram: bytes) -> Record:
    """Return the record in a datagram. Raises ProtocolError when it is not one."""
    if len(datagram) != RECORD_BYTES:
        raise ProtocolError(f"a record has {RECORD_BYTES} bytes, this datagram has {len(datagram)}")
    return Record._make(_RECORD.unpack(datagram))


def encode_record(record: Record) -> bytes:
    """Return the datagram of a record."""
    return _RECORD.pack(*record)


def stage_name(number: int) -> str:
    """Return the name of a stage in lower case; unknown numbers keep their digits."""
    return Stage(number).name.lower() if number in Stage._value2member_map_ else f"stage {number}"


_REFUSED: dict[int, RecordKind] = {
    Stage.LISTEN: RecordKind.OPENED,
    Stage.COPY: RecordKind.OPENED,
    Stage.SEAL_DISK: RecordKind.SEALED,
}
"""What a failure at this stage answers; any other answers the making of a slot."""


def answered(record: Record) -> RecordKind:
    """Return what the record answers, as it is called when all went well."""
    if record.kind != RecordKind.FAILED:
        return RecordKind(record.kind)
    return _REFUSED.get(record.stage, RecordKind.SLOT)


def stage_seconds(records: Sequence[Record], asked_ns: int) -> dict[str, float]:
    """Return how long each traced stage took, by name, in order."""
    seconds = {}
    for record in records:
        seconds[stage_name(record.stage)] = (record.time_ns - asked_ns) * 1e-9
        asked_ns = record.time_ns
    return seconds


class Request:
    """A request while it is made: words, and descriptors in the order of the options that take one."""

    __slots__ = ("fds", "words")

    def __init__(self, verb: str) -> None:
        self.words: list[str] = [verb]
        self.fds: list[int] = []

    def option(self, name: str, value: int | str) -> Request:
        """Add --name=value."""
        self.words.append(f"--{name}={value}")
        return self

    def flag(self, name: str) -> Request:
        """Add --name."""
        self.words.append(f"--{name}")
        return self

    def descriptor(self, name: str, fd: int) -> Request:
        """Add --name and the descriptor that it takes (borrowed: it is not closed)."""
        self.words.append(f"--{name}")
        self.fds.append(fd)
        return self

    def command(self, argv: Sequence[str]) -> Request:
        """Add `--` and a command line; nothing may follow."""
        self.words.append("--")
        self.words.extend(argv)
        return self

    def encode(self) -> bytes:
        """Return the words as bytes, each ended by NUL. Raises UsageError when a word holds NUL or all are too long."""
        try:
            data = os.fsencode("\0".join(self.words)) + b"\0"
        except UnicodeEncodeError as error:
            raise UsageError(f"text for a sandbox cannot be encoded: {error}") from error
        if data.count(b"\0") != len(self.words):
            word = next(word for word in self.words if "\0" in word)
            raise UsageError(f"{word!r} holds a NUL character; arguments, paths and variables of a program cannot")
        if len(data) > REQUEST_MEMFD_MAX:
            raise UsageError(
                f"the command holds {len(data)} bytes of arguments and variables, more than {REQUEST_MEMFD_MAX};"
                " put large data into a file or stdin"
            )
        return data


def sealed_memfd(name: str, data: bytes) -> int:
    """Return a descriptor of a new memory file that holds `data` and can never change. The caller closes it.

    Raises StartError when there is none to be had.
    """
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise StartError(f"cannot make the memory file {name}", "none", error.errno or 0) from error
    return fd
