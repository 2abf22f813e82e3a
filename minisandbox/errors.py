"""Every exception the package raises, and the exit code of each; and what is in a group of them.

Three kinds of outcome never mix: an exception means that we failed or were asked for something impossible,
an `ExitReason` says how a program ended, a verdict says what its answer was worth.
This module does no I/O and imports nothing of the package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class SandboxError(Exception):
    """Base of all errors of this package. `retryable` says whether the same call may succeed later."""

    retryable = False


class UsageError(SandboxError):
    """The caller asked for something that cannot be: a bad argument, limit, path or name. Nothing was changed."""


class ClosedError(SandboxError):
    """You used a supervisor, sandbox or process that you closed."""


class BusyError(SandboxError):
    """Two tasks used a thing that serves one at a time."""


class AdmissionError(SandboxError):
    """This host cannot hold what was asked for: `limit` says what there is too little of.

    `asked` and `free` are in its unit. It is retryable where others on this host could make room.
    """

    def __init__(self, limit: str, asked: float, free: float, why: str, *, retryable: bool) -> None:
        self.limit, self.asked, self.free, self.retryable = limit, asked, free, retryable
        super().__init__(why)


class BrokenError(SandboxError):
    """Something outside broke it: the launcher or the init of a sandbox is gone."""

    retryable = True


class HostError(SandboxError):
    """This host lacks something that was asked for. The message names it and how to get it."""


class ProtocolError(SandboxError):
    """The launcher or an init said something that the wire format does not allow."""


class StartError(SandboxError):
    """A sandbox or a command could not be started. It never ran, so there is no result of the program.

    `stage` is the name of the step (see `minisandbox.kernel.protocol.Stage`), `errno` the system's error number,
    `item` the index of the mount, layer or limit concerned, or -1.
    """

    retryable = True

    def __init__(self, tried: str, stage: str, errno: int, item: int = -1, advice: str = "") -> None:
        self.stage, self.errno, self.item = stage, errno, item
        where = f" (item {item})" if item >= 0 else ""
        hint = f"; {advice}" if advice else ""
        super().__init__(f"{tried}: step {stage}{where}: {os.strerror(errno)}{hint}")


class CommandNotFoundError(SandboxError):
    """The executable, or the interpreter that its first line names, does not exist inside (as 127 in a shell)."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"cannot run {path}: not found in the sandbox; give an absolute path or one on its PATH")


class CommandNotExecutableError(SandboxError):
    """The executable exists but cannot be executed (as 126 in a shell)."""

    def __init__(self, path: str, errno: int) -> None:
        self.path, self.errno = path, errno
        super().__init__(f"cannot run {path}: {os.strerror(errno)}; check its mode and format")


class FileTransferError(SandboxError):
    """A file could not be read from or written into a sandbox. `errno` is the system's error number."""

    def __init__(self, tried: str, path: str, errno: int, advice: str = "") -> None:
        self.path, self.errno = path, errno
        hint = f"; {advice}" if advice else ""
        super().__init__(f"cannot {tried} {path} in the sandbox: {os.strerror(errno)}{hint}")


class SessionEndedError(SandboxError):
    """The shell of a session is gone: a command said `exit` or `exec`, failed under `set -e`, or something killed it.

    `exit_code` and `signal` are those of the shell, one of them None; `stdout` and `stderr` what came after its last
    result.
    """

    def __init__(
        self, why: str, exit_code: int | None, signal: int | None, stdout: bytes = b"", stderr: bytes = b""
    ) -> None:
        self.exit_code, self.signal, self.stdout, self.stderr = exit_code, signal, stdout, stderr
        how = f"exit code {exit_code}" if signal is None else f"signal {signal}"
        super().__init__(f"the shell of a session ended with {how}: {why}; open another session")


class TemplateError(SandboxError):
    """The warm process of a template cannot be made: its Python does not start, or its preload fails.

    `traceback` is what it said, for a preload the traceback.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        self.traceback = traceback
        super().__init__(message)


class CgroupError(SandboxError):
    """A control group could not be made, read, changed or removed."""


class LocatedError(SandboxError):
    """Something in a file is wrong. `file` and `line` (1-based, 0 for the whole file) say where."""

    def __init__(self, message: str, file: Path, line: int = 0) -> None:
        self.file, self.line = file, line
        super().__init__(f"{file}:{line}: {message}" if line else f"{file}: {message}")


class PolicyError(LocatedError):
    """A policy file is wrong."""


class RootfsError(LocatedError):
    """A root file system recipe is wrong, or its layers are damaged."""


class TaskError(LocatedError):
    """The description of a task is wrong, or it has no tests."""


class LedgerError(LocatedError):
    """A ledger of the judge was cut, edited or reordered. `line` is the first entry that does not hold."""


class EndpointError(SandboxError):
    """The server that a policy asks was not reached, or refused for now or failed, in all tries."""

    retryable = True


class UndecidedError(SandboxError):
    """The judge failed in all its tries, so that its verdict is none (IE)."""

    retryable = True


class RecordError(SandboxError):
    """The records of a run cannot be kept or read: the disk is full, the store is damaged or of another version."""


class StateError(SandboxError):
    """The state directory is damaged, of another format, or not writable."""


class StoreFullError(StateError):
    """The file system of the state directory, or a quota on it, is full. Nothing that was stored is lost."""

    retryable = True


class SnapshotNotFoundError(UsageError):
    """No stored snapshot has this name or digest, or several have digests that begin so."""


class SnapshotDamagedError(LocatedError):
    """A stored or exported snapshot is not what it was: `file` is what is damaged. Nothing of it was used."""


class DeadlineError(SandboxError):
    """One of our own steps (never a program's run) did not end within its deadline."""

    retryable = True


LAUNCHER_EXIT = 125
"""Exit code of the command line for any failure of ours, as with `env`, `timeout` and `docker run`."""

EXIT_CODES: dict[type[SandboxError], int] = {
    CommandNotFoundError: 127,
    CommandNotExecutableError: 126,
    PolicyError: 65,
    RootfsError: 65,
    SnapshotDamagedError: 65,
    TaskError: 65,
    LedgerError: 65,
    UsageError: 64,
}


def exit_code(error: SandboxError) -> int:
    """Return the stable exit code of an error: that of the nearest class in `EXIT_CODES`, else 125."""
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind]
    return LAUNCHER_EXIT


def leaves_of(group: BaseExceptionGroup[E]) -> list[E]:
    """Return the exceptions of a group, and of the groups in it, in their order."""
    leaves: list[E] = []
    for error in group.exceptions:
        leaves += leaves_of(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


def only_of(error: BaseException) -> BaseException:
    """Return what a group of one is about; anything else as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
