"""The state directory: where layers, rootfs manifests and the locks of live instances are kept.

    format               which format this is, and the identity of this directory
    layers/<hex>/        one immutable tree a layer; layers/<hex>.json, written last, says that it is whole
    rootfs/<name>.json   what a rootfs consists of; rootfs/<name>.lock is held by whoever builds it
    snapshots/<name>.json  what a snapshot consists of
    instances/<id>       locked for as long as that instance lives; <id>.status, its socket for those who ask
    tmp/<hex>/           what is being built, locked by its builder

A layer is locked by supervisors that may mount it, rootfs/ by all who build: garbage.py says why.

Whether a process still lives is proved by its lock (flock(2)), never by an age or a process id. What must survive
a crash is written in tmp/, synced and renamed. This module never looks inside a layer and reads no environment.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from minisandbox.binds import check_absolute
from minisandbox.errors import StateError, StoreFullError, UsageError
from minisandbox.images.lock import is_held, locked, take_lock, take_lock_if_free
from minisandbox.images.tree import remove_tree

STATUS_SUFFIX = ".status"
"""Of the socket beside the lock of an instance, on which that says what it does."""

FORMAT = 1
"""The format that this version reads and writes."""

DEFAULT_PATH = Path("/var/lib/minisandbox")
"""Where root keeps its state."""

# Layers may hold setuid programs that a workload made, with root as owner: no user of the host may reach one by path.
# Inside a sandbox every user reads them all the same: the path to a layer is walked once, by root, when it is mounted.
_MODES = {"layers": 0o700, "rootfs": 0o755, "instances": 0o700, "tmp": 0o700, "snapshots": 0o700}
_ID = re.compile(r"[0-9a-f]{8}")
_INSTANCE = re.compile(r"[0-9a-f]{16}")
_FORMAT_MAX_BYTES = 4096

_ADVICE = {
    errno.ENOSPC: "free some space on its file system, or choose another state directory",
    errno.EDQUOT: "raise the quota, or choose another state directory",
    errno.EROFS: "remount its file system writable, or choose another state directory",
    errno.EACCES: "run as the user who owns it, or choose another state directory",
    errno.EPERM: "run as the user who owns it, or choose another state directory",
    errno.ENOTDIR: "a part of the path is a file; choose another state directory",
    errno.EEXIST: "a file is in its place; choose another state directory",
    errno.EXDEV: "unmount what is mounted below it",
    errno.EIO: "the disk fails: see the kernel's log",
}


class _Version(msgspec.Struct, frozen=True):
    format: int


class _Format(_Version, frozen=True, forbid_unknown_fields=True):
    id: str


@dataclass(frozen=True, slots=True)
class StateDir:
    """An open state directory. It holds no descriptor, so it need not be closed. All its methods block."""

    path: Path
    id: str
    """Eight hex digits that no other state directory of this host has; its instance ids begin with them."""

    @classmethod
    def open(cls, path: Path | None = None) -> StateDir:
        """Open a state directory, making it where there is none, and remove what dead processes left in it.

        Without a path it is that of root, or in the home of an ordinary user.
        Raises UsageError when that has no home, StateError when it is of another format, belongs to somebody
        else, holds other files or cannot be written.
        """
        path = _default_path() if path is None else path
        check_absolute("state directory", str(path))
        with reporting(f"open the state directory {path}"):
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            path = path.resolve()
            with locked(path):
                _check_owner(path)
                state = cls(path, _read_format(path) or _make(path))
                state.snapshots.mkdir(_MODES["snapshots"], exist_ok=True)  # the first version had none
            state._sweep("tmp")
            state._sweep("instances")
        return state

    @property
    def layers(self) -> Path:
        """The directory of all layers."""
        return self.path / "layers"

    @property
    def rootfs(self) -> Path:
        """The directory of the manifests of all rootfs."""
        return self.path / "rootfs"

    @property
    def snapshots(self) -> Path:
        """The directory of the manifests of all snapshots."""
        return self.path / "snapshots"

    @contextmanager
    def open_scratch(self) -> Iterator[Path]:
        """Make an empty directory in tmp/ that is removed at the end, or by the next `open` if we die before."""
        place = self.path / "tmp" / secrets.token_hex(8)
        # Between mkdir and flock it looks dead; the lock on tmp/ keeps the sweep away for that long.
        with locked(place.parent, fcntl.LOCK_SH):
            place.mkdir(mode=0o700)
            lock_fd = take_lock(place)
        try:
            yield place
        finally:
            _remove_and_close(place, lock_fd)

    def write_file(self, target: Path, content: bytes) -> None:
        """Write a file of this state directory so that after a crash it is there whole or not at all."""
        with reporting(f"write {target}"), self.open_scratch() as scratch:
            _write_synced(scratch / target.name, content)
            os.rename(scratch / target.name, target)
            sync_directory(target.parent)

    def open_instance(self) -> InstanceLock:
        """Return the lock of a new instance, held until it is closed."""
        instances = self.path / "instances"
        name = self.id + secrets.token_hex(4)
        with reporting(f"make a lock in {instances}"), locked(instances, fcntl.LOCK_SH):
            os.close(os.open(instances / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return InstanceLock(instances / name, take_lock(instances / name))

    def is_alive(self, instance: str) -> bool:
        """Return False only where it is proved that no process holds the lock of this instance.

        An instance of another state directory counts as alive, since its lock cannot be seen from here.
        """
        if not _INSTANCE.fullmatch(instance) or not instance.startswith(self.id):
            return True
        with reporting(f"look for the instance {instance}"):
            return is_held(self.path / "instances" / instance)

    def _sweep(self, directory: str) -> None:
        """Remove the entries of a directory whose locks nobody holds."""
        place = self.path / directory
        for name in os.listdir(place):
            if name.endswith(STATUS_SUFFIX) and not self.is_alive(name.removesuffix(STATUS_SUFFIX)):
                (place / name).unlink(missing_ok=True)
            if not _INSTANCE.fullmatch(name):
                continue
            with locked(place):
                lock_fd = take_lock_if_free(place / name)
            # Removed while locked: to others that sweep now it looks alive, so that one alone removes it.
            if lock_fd is not None:
                _remove_and_close(place / name, lock_fd)


class InstanceLock:
    """Proof that an instance lives: it does until every process that shares `fd` has ended or closed it."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd

    @property
    def id(self) -> str:
        """The instance, as 16 hex digits."""
        return self.path.name

    def close(self) -> None:
        """Give up our share, and remove the file unless a child still holds its share."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        with reporting(f"remove the lock {self.path}"):
            lock_fd = take_lock_if_free(self.path)
            if lock_fd is not None:
                _remove_and_close(self.path, lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def reporting(tried: str) -> Iterator[None]:
    """Turn an OSError of the block into a StateError that says what was tried and what to do."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        where = f" ({error.filename})" if isinstance(error.filename, str) else ""
        advice = _ADVICE.get(number, "see the kernel's log and the state directory's file system")
        name = errno.errorcode.get(number, str(number))
        kind = StoreFullError if number in (errno.ENOSPC, errno.EDQUOT) else StateError
        raise kind(f"cannot {tried}: {os.strerror(number)} [{name}]{where}; {advice}") from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a crash."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _default_path() -> Path:
    if os.geteuid() == 0:
        return DEFAULT_PATH
    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        home = Path("/nonexistent")
    if not home.is_dir():
        raise UsageError(f"there is no state directory to use: uid {os.geteuid()} has no home; give one of your own")
    return home / ".local/state/minisandbox"


def _check_owner(path: Path) -> None:
    """Refuse a directory whose content another user could replace, since root trusts what is in it."""
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise StateError(f"the state directory {path} belongs to uid {status.st_uid}; run as it, or choose another")
    if status.st_mode & 0o022:
        raise StateError(f"other users may write to the state directory {path}; run: chmod go-w {path}")


def _read_format(path: Path) -> str | None:
    """Return the identity of a state directory, or None when there is nothing in it yet."""
    try:
        with open(path / "format", "rb") as file:
            content = file.read(_FORMAT_MAX_BYTES)
    except FileNotFoundError:
        if set(os.listdir(path)) <= set(_MODES):  # new, or its first opening was interrupted
            return None
        raise StateError(f"{path} holds other files and no format file; choose an empty or a new directory") from None
    try:
        version = msgspec.json.decode(content, type=_Version).format
        if version == FORMAT and _ID.fullmatch(name := msgspec.json.decode(content, type=_Format).id):
            return name
    except msgspec.MsgspecError as error:
        raise StateError(
            f"{path / 'format'} is damaged ({error}); remove {path}: what it held is built anew"
        ) from error
    if version == FORMAT:
        raise StateError(f"{path / 'format'} is damaged (id {name!r}); remove {path}: what it held is built anew")
    raise StateError(
        f"the state directory {path} has format {version} and this version reads format {FORMAT}; use the version that "
        f"made it, choose another state directory, or remove this one: what it held is built anew"
    )


def _make(path: Path) -> str:
    """Fill a new state directory, its format file last, and return its identity."""
    path.chmod(0o755)
    for name, mode in _MODES.items():
        (path / name).mkdir(exist_ok=True)
        (path / name).chmod(mode)
    state = StateDir(path, secrets.token_hex(4))
    state.write_file(path / "format", msgspec.json.encode(_Format(format=FORMAT, id=state.id)) + b"\n")
    return state.id


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _remove_and_close(path: Path, lock_fd: int) -> None:
    """Remove a file or tree of which we hold the lock, then let go of it."""
    try:
        if stat.S_ISDIR(os.fstat(lock_fd).st_mode):
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)
    finally:
        os.close(lock_fd)
