"""Shows a Python that lives outside /usr, as pyenv, conda and uv install it, read-only at its own place.

It makes no directory of the host reachable but the one that is asked for.
"""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

from minisandbox.binds import Bind, check_absolute
from minisandbox.errors import UsageError
from minisandbox.images.layer import find_layer, store_layer
from minisandbox.images.rootfs import Rootfs
from minisandbox.images.skeleton import Directory, tree_digest, write_tree
from minisandbox.images.state import StateDir

TOO_MUCH = frozenset(
    "/ /bin /boot /dev /etc /home /lib /lib32 /lib64 /libx32 /media /mnt /opt /proc /root /run /sbin /srv /sys /tmp "
    "/usr /var /var/cache /var/lib /var/log /var/tmp".split()
)
"""Directories that hold more than one thing, secrets of the host among them (hier(7))."""

NEVER_BELOW = ("/boot", "/dev", "/etc", "/proc", "/sys")
"""Directories where no Python lives."""

SEARCHABLE = 0o055
"""What every user needs of a directory to reach what is below."""


def with_prefix(state: StateDir, rootfs: Rootfs, prefix: Path) -> Rootfs:
    """Return a rootfs that shows the host directory `prefix` read-only at its own path.

    One more layer on top holds the mount point, with parents that every user may search, as the prefix itself needs.
    A prefix that the rootfs shows already, as one below /usr in `host`, changes nothing.
    Raises UsageError when it is not an absolute path of a directory, or one that holds more than a Python.
    """
    source = _check(state, prefix)
    if any(_shows(bind, prefix, source) for bind in rootfs.binds):
        return rootfs
    # The mount point and its parents, but not "/"; parents first, so that none is looked for behind a link.
    places = [*reversed(prefix.parents), prefix][1:]
    tree = {str(place)[1:]: _directory(rootfs, place, source) for place in places}
    layer = find_layer(state, tree_digest(tree)) or store_layer(state, partial(write_tree, tree))
    bind = Bind(source=source, target=str(prefix))
    others = (other for other in rootfs.layers if other != layer)  # the kernel refuses to mount one twice
    return Rootfs(rootfs.name, (layer, *others), (*rootfs.binds, bind), rootfs.env)


def _check(state: StateDir, prefix: Path) -> Path:
    """Return where the prefix really is. What it is called and what it is must both be fit to be shown."""
    check_absolute("prefix", str(prefix))
    try:
        source = prefix.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise UsageError(
            f"cannot use the prefix {prefix}: {error}; give the directory that holds bin/python"
        ) from error
    if not source.is_dir():
        raise UsageError(f"the prefix {prefix} is not a directory; give the directory that holds bin/python")
    for path in (prefix, source):
        text = str(path)
        if text in TOO_MUCH or path.parent == Path("/home"):
            raise UsageError(f"the prefix {prefix} would show all of {text}; give the directory of the Python alone")
        if text.startswith(tuple(directory + "/" for directory in NEVER_BELOW)):
            raise UsageError(
                f"the prefix {prefix} is at {text}, which no sandbox may see; install the Python elsewhere"
            )
    if source.is_relative_to(state.path) or state.path.is_relative_to(source):
        raise UsageError(
            f"the prefix {prefix} and the state directory {state.path} lie in one another; move one of them"
        )
    return source


def _shows(bind: Bind, prefix: Path, source: Path) -> bool:
    """Return whether a bind shows at `prefix` what is there on the host."""
    return prefix.is_relative_to(bind.target) and bind.source / prefix.relative_to(bind.target) == source


def _directory(rootfs: Rootfs, place: Path, source: Path) -> Directory:
    """Return a directory for the new layer. It hides those below it, so owner and mode are theirs, but searchable."""
    for layer in rootfs.layers:
        try:
            status = (layer.path / place.relative_to("/")).lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise UsageError(
                f"{place} is no directory in the rootfs {rootfs.name}, so nothing can be shown below; the "
                f"host's real path of this prefix is {source}"
            )
        return Directory(stat.S_IMODE(status.st_mode) | SEARCHABLE, status.st_uid, status.st_gid)
    return Directory()
