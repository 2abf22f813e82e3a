"""The kind `busybox`: one static program that is all of a small Unix, and nothing else of the host."""

from __future__ import annotations

import struct
import subprocess
from functools import partial
from pathlib import Path

from minisandbox.errors import HostError
from minisandbox.images.recipe import Building, LayerPlan, Plan, Recipe, Site
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

PLACES = ("bin/busybox", "usr/bin/busybox")
"""Where distributions put it."""

_ADVICE = "install a static one (Debian, Ubuntu: apt-get install busybox-static; Fedora: dnf install busybox)"
_LIST_TIMEOUT_S = 10.0
_PT_INTERP = 3

_TREE: dict[str, Entry] = {
    **CLEAN_DIRECTORIES,
    **CLEAN_ETC,
    "etc/os-release": File(b'ID=busybox\nNAME="BusyBox"\nPRETTY_NAME="BusyBox"\n'),
}


class BusyboxRecipe(Recipe, frozen=True, kw_only=True, tag="busybox"):
    """A rootfs of the host's static busybox."""

    def plan(self, site: Site) -> Plan:
        """Return one layer. Raises HostError when busybox is missing or needs libraries."""
        program = find_busybox(site.host_root)
        try:
            content = program.read_bytes()
        except OSError as error:
            raise HostError(f"cannot read {program}: {error.strerror}; {_ADVICE}") from error
        if not is_static(content):
            raise HostError(f"{program} is not a static ELF program, so it would not run without a libc; {_ADVICE}")
        key = tree_digest({**_TREE, "bin": Directory(), "bin/busybox": File(content, mode=0o755)})
        return Plan(layers=(LayerPlan(key, partial(_fill, program, content)),))


def find_busybox(host_root: Path) -> Path:
    """Return the host's busybox. Raises HostError when there is none."""
    for place in PLACES:
        if (host_root / place).is_file():
            return host_root / place
    raise HostError(f"this host has no busybox (looked at {', '.join('/' + place for place in PLACES)}); {_ADVICE}")


def is_static(program: bytes) -> bool:
    """Return whether an ELF program runs without an interpreter, that is without shared libraries (elf(5))."""
    if program[:4] != b"\x7fELF" or len(program) < 64:
        return False
    order = "<" if program[5] == 1 else ">"
    if program[4] == 2:
        (offset,) = struct.unpack_from(order + "Q", program, 32)
        size, count = struct.unpack_from(order + "HH", program, 54)
    else:
        (offset,) = struct.unpack_from(order + "I", program, 28)
        size, count = struct.unpack_from(order + "HH", program, 42)
    starts = [offset + size * number for number in range(count)]
    if not starts or starts[-1] + 4 > len(program):
        return False
    return all(struct.unpack_from(order + "I", program, start)[0] != _PT_INTERP for start in starts)


def _fill(program: Path, content: bytes, building: Building) -> None:
    links = {place: Link("/bin/busybox") for place in _applets(program)}
    write_tree(with_parents({**_TREE, **links, "bin/busybox": File(content, mode=0o755)}), building.top)


def _applets(program: Path) -> list[str]:
    """Return where this busybox wants its applets, such as "usr/bin/env"."""
    try:
        ran = subprocess.run(
            [program, "--list-full"], capture_output=True, stdin=subprocess.DEVNULL, env={}, timeout=_LIST_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"cannot run {program} --list-full: {error}; {_ADVICE}") from error
    applets = ran.stdout.decode().split()
    if ran.returncode != 0 or "bin/sh" not in applets:
        raise HostError(f"{program} --list-full failed with {ran.returncode} or named no bin/sh; {_ADVICE}")
    return applets
