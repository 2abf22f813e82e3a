"""Trees that nobody vouches for, unpacked: what stays outside, is left out or refused, and what comes of the rest."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox.errors import HostError, RootfsError, StateError, UsageError
from minisandbox.images import Progress, StateDir, import_image, inspect_rootfs, tarball, unpack
from minisandbox.images.overlay import Parts
from minisandbox.images.tree import TOP, Step, walk
from tests.archives import Item, directory, file, hard_link, pack, symlink
from tests.disks import small_disk

pytestmark = pytest.mark.requires_root

CAPABILITY = "\x01\x00\x00\x02\x00\x20\x00\x00" + "\x00" * 12
"""cap_net_raw+ep as an extended attribute (capabilities(7))."""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A directory of the host with one file, which must stay as it is."""
    place = tmp_path / "canary"
    place.mkdir()
    (place / "file").write_text("secret")
    return place


def is_untouched(canary: Path) -> bool:
    """Return whether a canary is as it was made."""
    status = (canary / "file").stat()
    kept = (["file"], "secret", 1) == (os.listdir(canary), (canary / "file").read_text(), status.st_nlink)
    return kept and stat.S_IMODE(status.st_mode) == 0o644


def layer_of(state: StateDir, place: Path, *items: Item) -> Path:
    """Import an archive of the items and return its layer."""
    (place / "a.tar").write_bytes(pack(*items))
    (layer,) = import_image(state, place / "a.tar", "a").layers
    return layer.path


def contents(top: Path) -> dict[str, str]:
    """Return all that a tree holds: content of files, targets of links, the type of others."""
    found = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        else:
            found[name] = path.read_text() if path.is_file() else "/" if path.is_dir() else "?"
    return found


def assert_nothing_left(state: StateDir) -> None:
    """Neither a layer nor part of one, nor a manifest."""
    assert [] == [*os.listdir(state.layers), *os.listdir(state.path / "tmp"), *state.rootfs.glob("*.json")]


def escapes(canary: Path) -> dict[str, tuple[Item, ...]]:
    """Return archives that try to change or take a file of the host."""
    up = "../" * 30
    return {
        "through a link": (symlink("out", str(canary)), file("out/pwned")),
        "through a link upwards": (symlink("out", up + str(canary)[1:]), file("out/pwned")),
        "through a link of a link": (symlink("a", str(canary)), symlink("b", "a"), file("b/pwned")),
        "a directory through a link": (symlink("out", str(canary)), directory("out/pwned", mode=0o777)),
        "a link through a link": (symlink("out", str(canary)), symlink("out/pwned", "x")),
        "a hard link through a link": (symlink("out", str(canary)), hard_link("taken", "out/file")),
        "hard links into a link": (file("f"), symlink("out", str(canary)), hard_link("out/pwned", "f")),
    }


ESCAPES = list(escapes(Path("/")))


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("how", ESCAPES)
def test_nothing_lands_or_is_taken_outside_through_links(
    state: StateDir, tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, how: str, defended: bool
) -> None:
    """Each way out by a link is an error that names the member. Following links, each would be one."""
    if not defended:
        monkeypatch.setattr(unpack, "_DIRECTORY", os.O_RDONLY | os.O_DIRECTORY)
    try:
        layer_of(state, tmp_path, *escapes(canary)[how])
    except RootfsError as error:
        assert_nothing_left(state)
        assert defended, error
        assert f"a.tar: member '{escapes(canary)[how][-1].name}'" in str(error)
    else:
        assert not defended

    assert defended is is_untouched(canary)


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("name", ["../pwned", "a/../../pwned", "/../pwned", "a/b/../../../pwned"])
def test_nothing_lands_above_the_top(
    state: StateDir, tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, name: str, defended: bool
) -> None:
    """A name with ".." in it is refused. Taken as it is, it would lead up to the root directory."""

    def split_plainly(path: bytes) -> Parts:
        return tuple(part for part in path.split(b"/") if part not in (b"", b"."))

    if not defended:
        monkeypatch.setattr(tarball, "split_path", split_plainly)
    name = name.replace("../pwned", "../" * 30 + str(canary)[1:] + "/pwned")
    try:
        layer_of(state, tmp_path, file(name))
    except RootfsError as error:
        assert defended and '".." in it' in str(error)
    else:
        assert not defended

    assert defended is is_untouched(canary)


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("item", [file("f", b"pwned"), file("f", b"pwned", mode=0o4777)])
def test_file_over_a_link_replaces_the_link(
    state: StateDir, tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch, item: Item, defended: bool
) -> None:
    """What the link leads to stays. Without O_EXCL and O_NOFOLLOW it would be written to."""
    if not defended:
        monkeypatch.setattr(unpack, "_NEW_FILE", os.O_WRONLY | os.O_CREAT)

    layer = layer_of(state, tmp_path, symlink("f", str(canary / "file")), item)

    assert defended is is_untouched(canary)
    assert defended is not (layer / "f").is_symlink()


def test_absolute_names_mean_the_top_of_the_tree(state: StateDir, tmp_path: Path, canary: Path) -> None:
    """As for every program that unpacks images; for links too."""
    layer = layer_of(state, tmp_path, file(f"{canary}/file", b"x"), hard_link("//h", f"{canary}/file"))

    assert is_untouched(canary)
    assert "x" == (layer / "h").read_text() == (layer / str(canary / "file")[1:]).read_text()


@pytest.mark.parametrize("type", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_fifos_are_left_out_and_counted(state: StateDir, tmp_path: Path, type: bytes) -> None:
    """A device 0/0 among them, which would be a whiteout; what was there by that name before is gone."""
    layer = layer_of(state, tmp_path, file("d/special", b"old"), file("kept"), Item("d/special", type), Item("x", type))

    what = "FIFO" if type == tarfile.FIFOTYPE else "device"
    assert {"d": "/", "kept": ""} == contents(layer)
    assert {what: 2} == inspect_rootfs(state, "a").skipped


def test_modes_and_owners_are_kept(state: StateDir, tmp_path: Path) -> None:
    """Setuid bits too, which mean nothing inside, where everything is mounted nosuid."""
    items = [
        directory(".", mode=0o700, uid=4),
        directory("d", mode=0o1777, uid=1, gid=2),
        directory("s", mode=0o2775, gid=50),
        file("s/f", mode=0o640, uid=7),
        file("d/su", mode=0o6755, uid=65534, gid=65534),
    ]
    layer = layer_of(state, tmp_path, *items)

    found = {item.name: (layer / item.name).lstat() for item in items}
    assert {item.name: (item.mode, item.uid, item.gid) for item in items} == {
        name: (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) for name, status in found.items()
    }


@pytest.mark.parametrize("who", [{"uid": 65535}, {"gid": 65536}, {"uid": 3_000_000_000}])
@pytest.mark.parametrize("type", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_owner_that_no_sandbox_has_is_an_error_that_says_so(
    state: StateDir, tmp_path: Path, who: dict[str, int], type: bytes
) -> None:
    """It names the member, the owner, and which there are."""
    (number,) = who.values()

    with pytest.raises(RootfsError, match=rf"member 'd/f': it belongs to .id {number}, but .* the ids 0 to 65534"):
        layer_of(state, tmp_path, Item("d/f", type, target="t", uid=who.get("uid", 0), gid=who.get("gid", 0)))
    assert_nothing_left(state)


DUPLICATES: list[tuple[tuple[Item, ...], dict[str, str]]] = [
    ((file("f", b"1"), file("f", b"2")), {"f": "2"}),
    ((file("f", b"1"), directory("f")), {"f": "/"}),
    ((directory("f"), file("f/x"), file("f", b"2")), {"f": "2"}),
    ((directory("f"), file("f/x"), symlink("f", "t")), {"f": "-> t"}),
    ((file("f/x"), symlink("f", "t"), file("f", b"2"), directory("f"), file("f/y")), {"f": "/", "f/y": ""}),
    ((directory("d", 0o700), file("d/f"), directory("d", 0o755)), {"d": "/", "d/f": ""}),
    ((file("a", b"1"), hard_link("b", "a"), file("b", b"2")), {"a": "1", "b": "2"}),
    ((file("a", b"1"), hard_link("b", "a"), file("a", b"2")), {"a": "2", "b": "1"}),
    ((file("a", b"1"), file("b", b"2"), hard_link("b", "a"), hard_link("b", "a")), {"a": "1", "b": "1"}),
    ((symlink("a", "t"), hard_link("b", "a")), {"a": "-> t", "b": "-> t"}),
    ((file("a", b"1"), hard_link("a", "a")), {"a": "1"}),
    ((file("./a//b/./c", b"1"), file("a/b/c", b"2")), {"a": "/", "a/b": "/", "a/b/c": "2"}),
]


@pytest.mark.parametrize(("items", "expected"), DUPLICATES)
def test_last_of_several_entries_counts(
    state: StateDir, tmp_path: Path, items: tuple[Item, ...], expected: dict[str, str]
) -> None:
    """Whatever each of them is; and what one replaces takes nothing else with it."""
    assert expected == contents(layer_of(state, tmp_path, *items))


def test_hard_links_are_one_file(state: StateDir, tmp_path: Path) -> None:
    """In the layer too, so that they take the room of one."""
    layer = layer_of(state, tmp_path, file("d/a", b"x"), hard_link("e/b", "d/a"), hard_link("c", "e/b"))

    assert 3 == (layer / "c").stat().st_nlink
    assert (layer / "c").samefile(layer / "d/a")


REFUSED: list[tuple[Item, str]] = [
    (file("x" * 256), "cannot be made: File name too long"),
    (file("x/" * 2100 + "f"), "its path has 4201 bytes; 4095 are possible"),
    (file("f", pax={"path": "a\0b"}), "its path holds a NUL byte"),
    (file("."), "in place of the top directory"),
    (symlink("/", "x"), "in place of the top directory"),
    (symlink("l", ""), "is no path"),
    (symlink("l", "x" * 5000), "cannot be made: File name too long"),
    (file("there/f"), "lies below 'there', which is no directory"),
    (hard_link("h", "missing"), "hard link to 'missing', which is no file of this tree so far"),
    (hard_link("h", "missing/f"), "there is no 'missing/f' in this tree so far"),
    (hard_link("h", "."), "hard link to '', which is no file"),
    (hard_link("h", "d"), "hard link to 'd', which is no file"),
    (hard_link("h", "../there"), '".." in it'),
    (hard_link("d", "d/f"), "cannot be made: No such file"),
    (
        file("f", pax={"SCHILY.xattr.user.large": "x" * 70_000}),
        "its attribute user.large of 70000 bytes cannot be kept",
    ),
]


@pytest.mark.parametrize(("item", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_entry_that_cannot_be_is_refused_by_name(state: StateDir, tmp_path: Path, item: Item, message: str) -> None:
    """The message has the archive, the member and what is wrong; nothing is left."""
    with pytest.raises(RootfsError) as caught:
        layer_of(state, tmp_path, directory("d"), file("d/f"), file("there"), item)

    assert str(caught.value).startswith(f"{tmp_path}/a.tar: member '")
    assert message in str(caught.value)
    assert_nothing_left(state)


@pytest.mark.parametrize("defended", [True, False])
def test_attributes_with_a_meaning_to_the_kernel_are_left_out(
    state: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """Marks of overlayfs, capabilities and access lists are counted, others kept. Taken over, they would work."""
    names = ["trusted.overlay.opaque", "user.overlay.opaque", "security.capability", "user.note"]
    pax = {f"SCHILY.xattr.{name}": CAPABILITY if name == "security.capability" else "y" for name in names}
    if not defended:
        monkeypatch.setattr(unpack, "is_safe_xattr", lambda name: True)

    layer = layer_of(
        state, tmp_path, directory("d", pax={"SCHILY.xattr.trusted.overlay.opaque": "y"}), file("f", pax=pax)
    )
    found = {name for name in names if name in os.listxattr(layer / "f")} | set(os.listxattr(layer / "d"))

    assert found == ({"user.note"} if defended else {*names})
    assert inspect_rootfs(state, "a").skipped == ({"xattr": 4} if defended else {})


def test_times_are_those_of_the_archive(state: StateDir, tmp_path: Path) -> None:
    """Of directories too, whatever was put into them after."""
    items = [directory("d", mtime=1000), file("d/f", mtime=2000.5), symlink("d/l", "f"), directory("d/e", mtime=3000)]
    layer = layer_of(state, tmp_path, *items, file("d/e/g", mtime=4000), file("implied/f"))

    times = {name: (layer / name).lstat().st_mtime for name in ("d", "d/f", "d/l", "d/e", "d/e/g", "implied")}
    expected = {"d": 1000, "d/f": 2000.5, "d/l": 1_600_000_000, "d/e": 3000, "d/e/g": 4000, "implied": 946_684_800}
    assert expected == times


def test_import_ends_when_its_caller_wants_so(state: StateDir, tmp_path: Path) -> None:
    """What `report` raises comes out, and nothing is left."""

    def stop(progress: Progress) -> None:
        raise KeyError(progress.step)

    (tmp_path / "a.tar").write_bytes(pack(file("f")))
    with pytest.raises(KeyError, match=r"unpacking a\.tar"):
        import_image(state, tmp_path / "a.tar", "a", report=stop)
    assert_nothing_left(state)


@pytest.fixture
def full_soon(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    with small_disk(tmp_path / "disk", "512k") as place:
        yield place


def test_full_disk_is_an_error_of_the_host_and_leaves_nothing(full_soon: Path, tmp_path: Path) -> None:
    """It is not the archive that is to blame."""
    state = StateDir.open(full_soon / "state")

    with pytest.raises(StateError, match=r"\[ENOSPC\].*free some space"):
        layer_of(state, tmp_path, file("large", bytes(1 << 20)))
    assert_nothing_left(state)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory of the host with one of everything."""
    top = tmp_path / "source"
    (top / "d").mkdir(parents=True)
    (top / "d" / "f").write_text("content")
    os.setxattr(top / "d" / "f", "user.note", b"n")
    os.setxattr(top / "d" / "f", "trusted.note", b"n")
    os.link(top / "d" / "f", top / "linked")
    (top / "l").symlink_to("/etc/passwd")
    os.mkfifo(top / "fifo")
    os.mknod(top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(top / "socket"))
    return top


def test_directory_is_copied_but_for_what_no_sandbox_may_have(state: StateDir, source: Path) -> None:
    """Links as links, hard links as one file, attributes; special files are counted and nothing waits for them."""
    (layer,) = import_image(state, source, "s").layers

    assert {"d": "/", "d/f": "content", "linked": "content", "l": "-> /etc/passwd"} == contents(layer.path)
    assert (layer.path / "linked").samefile(layer.path / "d/f")
    assert ["user.note"] == os.listxattr(layer.path / "linked")
    assert {"device": 1, "FIFO": 1, "socket": 1, "xattr": 1} == inspect_rootfs(state, "s").skipped


def test_directory_with_something_mounted_inside_is_refused(state: StateDir, source: Path) -> None:
    """It says so, before anything is copied."""
    subprocess.run(["mount", "--bind", source, source / "d"], check=True)
    try:
        with pytest.raises(HostError, match="unmount what is mounted below"):
            import_image(state, source, "s")
    finally:
        subprocess.run(["umount", source / "d"], check=True)
    assert_nothing_left(state)


def test_owner_of_a_copied_file_must_be_one_that_sandboxes_have(state: StateDir, source: Path) -> None:
    """The same as for archives."""
    os.chown(source / "d" / "f", 70_000, 0)

    with pytest.raises(RootfsError, match=r"source: 'd/f': it belongs to uid 70000"):
        import_image(state, source, "s")
    assert_nothing_left(state)


def test_changed_directory_is_another_rootfs(state: StateDir, source: Path) -> None:
    """A change of content that keeps size and time is noticed as well."""
    first = import_image(state, source, "s")
    times = (source / "d" / "f").stat()
    (source / "d" / "f").write_text("CONTENT")
    os.utime(source / "d" / "f", ns=(times.st_atime_ns, times.st_mtime_ns))

    assert first != import_image(state, source, "s")


@pytest.mark.parametrize("path", ["missing", "fifo", "", "nul\0"])
def test_path_of_nothing_is_an_error_of_the_caller(state: StateDir, source: Path, path: str) -> None:
    """A FIFO is not waited for."""
    with pytest.raises(UsageError, match="archive"):
        import_image(state, source / path / "x" if not path else source / path, "s")


def test_walk_of_an_imported_tree_finds_no_special_file(state: StateDir, source: Path) -> None:
    """Not even one that would be a whiteout."""
    (layer,) = import_image(state, source, "s").layers

    kinds = {stat.S_IFMT(visit.status.st_mode) for visit in walk(layer.path) if visit.name != TOP}
    assert {stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK} == kinds
    assert Step.ENTER is next(walk(layer.path)).step
