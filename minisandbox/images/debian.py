"""The kind `debian`: a Debian or Ubuntu of chosen packages, by mmdebstrap from the mirrors that this host's apt uses.

Maintainer scripts run as root in a chroot, in namespaces of their own that end with us: nothing they mount or start is
left. Where packages come from, and through which proxy, does not get into the layer.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Literal

from minisandbox.errors import HostError, RootfsError, UsageError
from minisandbox.images.entry import Attributes
from minisandbox.images.oci_image import host_architecture
from minisandbox.images.overlay import Parts
from minisandbox.images.recipe import Building, LayerPlan, Plan, Recipe, Site
from minisandbox.images.skeleton import CLEAN_ETC, File
from minisandbox.images.stream import Bounds, Source
from minisandbox.images.tarball import unpack
from minisandbox.images.unpack import TreeWriter

PROGRAM = "usr/bin/mmdebstrap"

_ADVICE = "install it (Debian, Ubuntu: apt-get install mmdebstrap)"
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?")
_SUITE = re.compile(r"[a-z][a-z0-9.-]*")
_HOST_SETTINGS = re.compile(r"Acquire::(https?|ftp|Retries|ForceIPv[46])\b.*")
_EPOCH = 946_684_800
_REPLACED = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
"""What mmdebstrap copies from the host; ours take their place."""
_OMITTED = re.compile(rb"etc/apt/(apt\.conf\.d/99mmdebstrap|sources\.list|sources\.list\.d/.*)|dev/.*")
"""The host's mirrors and proxies, and devices, which the launcher has its own of."""

# A new process namespace, whose first process dies with its parent, which dies with us: so all processes do, and with
# the last one the mount namespace (setpriv(1), unshare(1)).
_CONTAINED = "setpriv --pdeathsig KILL -- unshare --fork --kill-child=KILL --pid --mount-proc --ipc --"


class DebianRecipe(Recipe, frozen=True, kw_only=True, tag="debian"):
    """A rootfs of Debian packages."""

    suite: str = ""
    """Such as "bookworm"; when left out, that of this host."""
    variant: Literal["extract", "custom", "essential", "apt", "minbase", "important", "standard"] = "minbase"
    """Which packages are there in any case (mmdebstrap(1), --variant)."""
    packages: tuple[str, ...] = ()
    """Those that are chosen besides, each a name, or name=version."""
    max_bytes: int = Bounds().max_bytes
    max_files: int = Bounds().max_files

    def plan(self, site: Site) -> Plan:
        """Return one layer. Raises HostError without mmdebstrap, UsageError when a name is none."""
        if not (site.host_root / PROGRAM).is_file():
            raise HostError(f"this host has no mmdebstrap (looked at /{PROGRAM}), which builds Debian; {_ADVICE}")
        for package in self.packages:
            if not _PACKAGE.fullmatch(package):
                raise UsageError(f"{package!r} is no name of a Debian package")
        suite = self.suite or _read_os_release(site.host_root).get("VERSION_CODENAME", "")
        if not _SUITE.fullmatch(suite):
            raise UsageError(f'{suite!r} is no suite; set suite in the recipe, such as suite = "bookworm"')
        asked = ("debian 1", suite, self.variant, sorted(self.packages), host_architecture())
        key = "sha256:" + hashlib.sha256(repr(asked).encode()).hexdigest()
        return Plan(layers=(LayerPlan(key, partial(_fill, self, suite, site.host_root)),))


def _fill(recipe: DebianRecipe, suite: str, host_root: Path, building: Building) -> None:
    scratch = building.make_scratch("debian")
    building.meter.begin(f"installing Debian {suite}, {recipe.variant} and {len(recipe.packages)} packages")
    bounds = Bounds(max_bytes=recipe.max_bytes, max_files=recipe.max_files)
    command = [*_CONTAINED.split(), "env", f"SOURCE_DATE_EPOCH={_EPOCH}", f"TMPDIR={scratch}", "LC_ALL=C.UTF-8"]
    command += [
        str(host_root / PROGRAM),
        *_options(recipe, scratch),
        suite,
        "-",
        *_find_sources(suite, host_root, scratch),
    ]
    with _running(command, scratch) as stdout:
        source = Source(stdout, lambda message: RootfsError(message, Path("mmdebstrap")), bounds.max_bytes)
        with TreeWriter(building.top, bounds, on_entry=building.meter.add_file) as writer:
            for path in _REPLACED:
                entry = CLEAN_ETC[path]
                assert isinstance(entry, File)
                writer.add_file(
                    tuple(path.encode().split(b"/")), Attributes(entry.mode), len(entry.content), [(0, entry.content)]
                )
            unpack(source, writer, special=_is_left_out)
    building.skipped.update(writer.skipped)


def _is_left_out(writer: TreeWriter, parts: Parts) -> bool:
    path = b"/".join(parts)
    return path.decode(errors="replace") in _REPLACED or _OMITTED.fullmatch(path) is not None


def _options(recipe: DebianRecipe, scratch: Path) -> list[str]:
    """Return options for mmdebstrap, among them how this host's apt reaches its mirrors."""
    settings = scratch / "apt.conf"
    dumped = _ask(["apt-config", "dump", "--format", '%f "%v";%n', "Acquire"])
    lines = [line for line in dumped.splitlines() if _HOST_SETTINGS.fullmatch(line)]
    lines.append('APT::Sandbox::User "root";')  # the directory is closed to apt's own user
    settings.write_text("\n".join(lines) + "\n")
    options = ["--mode=root", "--format=tar", f"--variant={recipe.variant}", f"--aptopt={settings}"]
    return [*options, f"--include={','.join(recipe.packages)}"] if recipe.packages else options


def _find_sources(suite: str, host_root: Path, scratch: Path) -> list[str]:
    """Return a file with the host's own sources of a suite; none where it has none, and mmdebstrap knows better."""
    origin = _read_os_release(host_root).get("ID", "")
    line_format = "$(ORIGIN) $(RELEASE) $(COMPONENT) $(REPO_URI)"
    found = {}
    for line in _ask(["apt-get", "indextargets", "--format", line_format, "Created-By: Packages"]).splitlines():
        fields = line.split(" ")
        if len(fields) == 4 and fields[0].lower() == origin and re.fullmatch(rf"{re.escape(suite)}(-\w+)?", fields[1]):
            found[f"deb {fields[3]} {fields[1]} {fields[2]}"] = fields[1]
    if suite not in found.values():
        return []
    sources = scratch / "sources.list"
    sources.write_text("\n".join(found) + "\n")
    return [str(sources)]


def _ask(command: list[str]) -> str:
    """Return what a program of apt says; nothing where there is no apt."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    except OSError:
        return ""


def _read_os_release(host_root: Path) -> dict[str, str]:
    try:
        lines = (host_root / "etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip("\"'") for name, equals, value in (line.partition("=") for line in lines) if equals}


class _Pipe:
    """Reads what a process writes."""

    def __init__(self, stdout: IO[bytes]) -> None:
        self._stdout = stdout
        self.ended = False

    def read(self, size: int, /) -> bytes:
        data = self._stdout.read(size)
        self.ended = not data
        return data


@contextmanager
def _running(command: list[str], scratch: Path) -> Iterator[_Pipe]:
    """Run a program for the block, which reads its output. Raises HostError with what it said when it fails."""
    with tempfile.TemporaryFile(dir=scratch) as said:
        try:
            process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
            )
        except OSError as error:
            raise HostError(f"cannot run {command[0]}: {error.strerror}; install the package util-linux") from error
        assert process.stdout is not None
        pipe = _Pipe(process.stdout)
        try:
            yield pipe
            failed = process.wait() != 0
        except RootfsError:
            failed = pipe.ended and process.wait() != 0  # it failed, and so its output is not whole
            if not failed:
                raise
        finally:
            process.kill()
            process.stdout.close()
            process.wait()
        if failed:
            raise HostError(f"mmdebstrap failed with {process.returncode}: {_last_lines(said)}")


def _last_lines(said: IO[bytes]) -> str:
    said.seek(max(0, os.fstat(said.fileno()).st_size - 4000))
    lines = said.read().decode(errors="replace").replace("\r", "\n").splitlines()
    errors = [line for line in lines if line.startswith("E:")] or lines[-3:]
    return "; ".join(errors)
