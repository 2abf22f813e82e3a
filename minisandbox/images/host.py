"""The kind `host`: the host's own programs, read-only, under a clean /etc and empty homes.

One small layer holds the top of the tree and the few files of the host's /etc that its libraries cannot do without.
What is not named in this module is not taken: no account, key, log, home or socket of the host.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from pathlib import Path

from minisandbox.binds import Bind
from minisandbox.errors import HostError
from minisandbox.images.recipe import LayerPlan, Plan, Recipe, Site
from minisandbox.images.skeleton import (
    CLEAN_DIRECTORIES,
    CLEAN_ETC,
    Directory,
    Entry,
    File,
    Link,
    tree_digest,
    with_parents,
    write_tree,
)

PROGRAMS = re.compile(r"bin|sbin|lib|lib32|lib64|libx32")
"""What may stand beside /usr: links into it where the two are merged, else directories of their own (hier(7))."""

TAKEN = (
    "etc/ca-certificates/extracted",
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/pki/ca-trust/extracted",
    "etc/pki/tls/certs",
    "etc/ssl/certs",
)
"""Taken from the host's /etc where it has them: where its libraries are and whom TLS trusts."""

ALTERNATIVES = "etc/alternatives"
"""Which program stands for which: links of /usr lead there, and from there back (update-alternatives(1))."""


class HostRecipe(Recipe, frozen=True, kw_only=True, tag="host"):
    """A rootfs that shows the host's /usr."""

    def plan(self, site: Site) -> Plan:
        """Return one layer that is made of the host's files now. Raises HostError when one cannot be read."""
        try:
            tree, binds = describe(site.host_root)
        except OSError as error:
            raise HostError(f"cannot read {error.filename} for the host rootfs: {error.strerror}") from error
        return Plan(
            layers=(LayerPlan(tree_digest(tree), lambda building: write_tree(tree, building.top)),), binds=binds
        )


def describe(host_root: Path) -> tuple[dict[str, Entry], tuple[Bind, ...]]:
    """Return the layer and the binds: for each place of programs either a link into /usr or a mount point."""
    if not stat.S_ISDIR((host_root / "usr").lstat().st_mode):
        raise HostError(f"{host_root / 'usr'} is not a directory: this host cannot be shown; use the busybox rootfs")
    tree: dict[str, Entry] = {**CLEAN_DIRECTORIES, **CLEAN_ETC, "etc/os-release": _os_release(host_root)}
    binds = [Bind(source=host_root / "usr", target="/usr")]
    for name in sorted(filter(PROGRAMS.fullmatch, os.listdir(host_root))):
        place = host_root / name
        if place.is_symlink() and _target(host_root, name).startswith("usr/"):
            tree[name] = Link(os.readlink(place))
        elif place.is_dir():
            tree[name] = Directory()
            binds.append(Bind(source=place.resolve(), target=f"/{name}"))
    visible = ("usr/", *(f"{name}/" for name in tree if PROGRAMS.fullmatch(name)))
    for top in TAKEN:
        tree |= _take(host_root, top, (*visible, *TAKEN))
    taken = _take(host_root, ALTERNATIVES, (*visible, ALTERNATIVES))
    tree |= {path: entry for path, entry in taken.items() if not isinstance(entry, File)}
    return with_parents(tree), tuple(binds)


def _take(host_root: Path, top: str, visible: tuple[str, ...]) -> dict[str, Entry]:
    """Return a file or tree of the host as far as everybody may read it, and links that lead to what is `visible`."""
    source = host_root / top
    try:
        mode = source.lstat().st_mode
    except FileNotFoundError:
        return {}
    if stat.S_ISLNK(mode):
        return {top: Link(os.readlink(source))} if _target(host_root, top).startswith(visible) else {}
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        return {top: File(source.read_bytes())}
    if not stat.S_ISDIR(mode) or mode & _SEARCHABLE != _SEARCHABLE:
        return {}
    tree: dict[str, Entry] = {top: Directory()}
    for name in os.listdir(source):
        tree |= _take(host_root, f"{top}/{name}", visible)
    return tree


def _target(host_root: Path, link: str) -> str:
    """Return what a symbolic link names, as a path from the root like its own, without following another link."""
    text = os.readlink(host_root / link)
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(link), text)).lstrip("/")


def _os_release(host_root: Path) -> Entry:
    if (host_root / "usr/lib/os-release").is_file():
        return Link("../usr/lib/os-release")
    return File(b'ID=linux\nNAME="Linux"\nPRETTY_NAME="Linux"\n')


_SEARCHABLE = stat.S_IROTH | stat.S_IXOTH
