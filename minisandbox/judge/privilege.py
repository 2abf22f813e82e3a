"""The judge's own user: what root prepares for it, and how a process becomes it. There is no way back.

Root gives the user an empty control group of the unified hierarchy, moves the process there, and sets its ids. The
group stays, one for a user, and is used again. What v1 hierarchies limit is not limited: they are for root alone.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from minisandbox.errors import CgroupError, HostError, UsageError
from minisandbox.kernel.cgroup_layout import CgroupLayout, detect_layout

PR_SET_DUMPABLE = 4
_FILES = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control")
"""Of a group, what its owner needs to have groups below (cgroup-v2.rst, "Delegation Containment")."""


@dataclass(frozen=True, slots=True)
class User:
    """An ordinary user."""

    uid: int
    gid: int
    name: str


def find_user(name: str) -> User:
    """Return a user by name or number. Raises UsageError for root, and for a name that there is not."""
    try:
        if name.isascii() and name.isdigit():
            user = User(int(name), int(name), name)
        else:
            entry = pwd.getpwnam(name)
            user = User(entry.pw_uid, entry.pw_gid, name)
    except KeyError:
        raise UsageError(f"there is no user {name!r}: useradd --system {name}, or give a number") from None
    if user.uid == 0 or user.uid >= 2**32 - 1:
        raise UsageError("the judge's own user is an ordinary one, not root")
    return user


def give_directory(path: Path, user: User) -> None:
    """Make a directory that the user alone may enter; one that is there must be his already. Raises HostError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=False)
        os.chown(path, user.uid, user.gid)
    except FileExistsError:
        if path.lstat().st_uid != user.uid:
            raise HostError(f"{path} belongs to uid {path.lstat().st_uid}: chown -R {user.name} {path}") from None
    except OSError as error:
        raise HostError(f"cannot make {path}: {error.strerror}") from error


def become(user: User, layout: CgroupLayout | None = None) -> None:
    """Give this process to an ordinary user: control groups first, which root alone can give."""
    if os.geteuid() != 0:
        raise HostError("only root can become another user; start the judge as that user, without --user")
    found = detect_layout() if layout is None else layout
    if found.unified is not None:
        _delegate(found.unified, user, found)
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    # else /proc/self belongs to root, and the launcher could map no ids (PR_SET_DUMPABLE(2const), proc(5))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def group_name(user: User) -> str:
    """Return the name of a user's control group."""
    return f"minisandbox-judge-{user.uid}"


def _delegate(parent: Path, user: User, layout: CgroupLayout) -> None:
    place = parent / group_name(user)
    try:
        if layout.unified_controllers:
            given = " ".join(f"+{name}" for name in sorted(layout.unified_controllers))
            (parent / "cgroup.subtree_control").write_text(given)
        place.mkdir(exist_ok=True)
        os.chown(place, user.uid, user.gid)
        for name in _FILES:
            if (place / name).exists():
                os.chown(place / name, user.uid, user.gid)
        (place / "cgroup.procs").write_text("0")
    except OSError as error:
        raise CgroupError(
            f"cannot give control group {place} to {user.name}: {error.strerror}; start the judge as that user with "
            f"`systemd-run --uid={user.name} -p Delegate=yes`"
        ) from error
