"""Archives whose members want to be somewhere else, or something else, than in the layer that is made of them."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox import RootfsError, StateDir, build_rootfs

SECRET = b"secret of the host"
CHANGED = b"changed by the archive"

Members = list[tarfile.TarInfo]


def member(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644, **pax: str
) -> tarfile.TarInfo:
    """Return a member; regular files hold `CHANGED`."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    info.size = len(CHANGED) if kind == tarfile.REGTYPE else 0
    info.devmajor, info.devminor = 1, 1
    info.pax_headers = {key.replace("__", "."): value for key, value in pax.items()}
    return info


UP = "../" * 32

ARCHIVES: dict[str, Callable[[Path], Members]] = {
    "dots": lambda canary: [member(f"{UP}{canary}")],
    "dots inside": lambda canary: [member("a", tarfile.DIRTYPE), member(f"a/{UP}{canary}")],
    "absolute": lambda canary: [member(str(canary))],
    "file through a link": lambda canary: [member("d", tarfile.SYMTYPE, str(canary.parent)), member("d/file")],
    "file through dots": lambda canary: [member("d", tarfile.SYMTYPE, f"{UP}{canary.parent}"), member("d/file")],
    "file on a link": lambda canary: [member("x", tarfile.SYMTYPE, str(canary)), member("x")],
    "directory on a link": lambda canary: [
        member("d", tarfile.SYMTYPE, str(canary.parent)),
        member("d", tarfile.DIRTYPE, mode=0o777),
        member("d/file"),
    ],
    "hard link out": lambda canary: [member("x", tarfile.LNKTYPE, str(canary)), member("x")],
    "hard link by dots": lambda canary: [member("x", tarfile.LNKTYPE, f"{UP}{canary}"), member("x")],
    "hard link to a link": lambda canary: [
        member("l", tarfile.SYMTYPE, str(canary)),
        member("x", tarfile.LNKTYPE, "l"),
        member("x"),
    ],
    "hard link through a link": lambda canary: [
        member("d", tarfile.SYMTYPE, str(canary.parent)),
        member("x", tarfile.LNKTYPE, "d/file"),
        member("x"),
    ],
    "devices": lambda canary: [
        member("c", tarfile.CHRTYPE, mode=0o666),
        member("b", tarfile.BLKTYPE, mode=0o666),
        member("p", tarfile.FIFOTYPE),
    ],
    "attributes": lambda canary: [
        member("x", SCHILY__xattr__security__capability="\x01\0\0\x02\x23\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        member("y", SCHILY__xattr__trusted__overlay__redirect="/etc"),
        member("z", SCHILY__xattr__trusted__overlay__opaque="y"),
    ],
}


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of the host, alone in its directory."""
    directory = tmp_path / "canary"
    directory.mkdir(mode=0o700)
    (directory / "file").write_bytes(SECRET)
    return directory / "file"


def is_untouched(canary: Path) -> bool:
    """Return whether a canary is as it was made."""
    status = canary.stat()
    alone = [canary] == list(canary.parent.iterdir()) and stat.S_IMODE(canary.parent.stat().st_mode) == 0o700
    return alone and canary.read_bytes() == SECRET and status.st_nlink == 1


def pack(archive: Path, members: Members) -> None:
    """Write an archive."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as packed:
        for info in members:
            packed.addfile(info, io.BytesIO(CHANGED) if info.isreg() else None)


def trust(packed: tarfile.TarFile) -> None:
    """Have members taken as they are, which Pythons before 3.12 do anyway; not all of 3.11 know another way."""
    packed.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)


@pytest.mark.parametrize("name", ARCHIVES)
def test_member_stays_inside_or_is_refused(tmp_path: Path, canary: Path, name: str) -> None:
    """Row 14: nothing is written, linked or read outside; devices and meaningful attributes do not get in."""
    pack(tmp_path / "evil.tar", ARCHIVES[name](canary))
    (tmp_path / "evil.toml").write_text('format = 1\nkind = "tar"\npath = "evil.tar"\n')
    state = StateDir.open(tmp_path / "state")
    try:
        layers = [layer.path for layer in build_rootfs(state, tmp_path / "evil.toml").layers]
    except RootfsError as error:
        assert "evil.tar" in str(error)
        layers = []
    files = [path for layer in layers for path in layer.rglob("*")]

    assert is_untouched(canary)
    assert all(path.is_symlink() or stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR) for path in files)
    assert not [path for path in files if path.is_file() and not path.is_symlink() and path.read_bytes() == SECRET]
    assert not [path for path in files if not path.is_symlink() and _attributes(path)]


def _attributes(path: Path) -> list[str]:
    return os.listxattr(path, follow_symlinks=False)


@pytest.mark.parametrize(
    "name",
    ["dots inside", "absolute", "file through a link", "file through dots", "file on a link", "directory on a link"],
)
def test_member_leads_out_with_the_defence_off(tmp_path: Path, canary: Path, name: str) -> None:
    """Row 14, defence off: Python's own tarfile, told to trust the archive, writes to the same canary."""
    pack(tmp_path / "evil.tar", ARCHIVES[name](canary))
    (tmp_path / "unpacked").mkdir()
    with tarfile.open(tmp_path / "evil.tar") as packed:
        trust(packed)
        packed.extractall(tmp_path / "unpacked")

    assert not is_untouched(canary)


@pytest.mark.requires_root
@pytest.mark.parametrize("name", ["hard link out", "devices"])
def test_member_is_something_else_with_the_defence_off(tmp_path: Path, canary: Path, name: str) -> None:
    """Row 14, defence off: the same of links and devices, which come to be."""
    pack(tmp_path / "evil.tar", ARCHIVES[name](canary)[:1])
    (tmp_path / "unpacked").mkdir()
    with tarfile.open(tmp_path / "evil.tar") as packed:
        trust(packed)
        packed.extractall(tmp_path / "unpacked")
    (made,) = (tmp_path / "unpacked").iterdir()
    is_device = stat.S_ISCHR(made.lstat().st_mode)
    is_linked = canary.stat().st_nlink == 2
    made.unlink()

    assert is_device or is_linked
