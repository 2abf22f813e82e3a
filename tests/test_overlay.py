"""Layers of images on top of each other: what the kernel makes of them is what the image means, merged ones too."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisandbox.errors import RootfsError
from minisandbox.images import Layer, Rootfs, StateDir, import_image, oci, overlay
from minisandbox.images.overlay import look_below
from tests.archives import Item, directory, file, pack, symlink, write_layout

pytestmark = pytest.mark.requires_root

Tree = dict[str, str]
"""Path and what is there: "/" for a directory, else the content of a file."""


class Conflict(Exception):
    """An entry lies below something that is no directory."""


def apply(layers: Sequence[Sequence[Item]]) -> Tree:
    """Return the tree that an image means, by the words of the specification (layer.md), one layer after another."""
    tree: Tree = {}
    for layer in layers:
        mine: Tree = {}
        for item in layer:
            place, _, name = item.name.rpartition("/")
            _make_parents(tree, mine, item.name)
            if name == ".wh..wh..opq":
                _drop(tree, [path for path in tree if path not in mine and _is_below(path, place)])
            elif name.startswith(".wh."):
                hidden = f"{place}/{name.removeprefix('.wh.')}".lstrip("/")
                doomed = [path for path in tree if path == hidden or _is_below(path, hidden)]
                _drop(tree, [path for path in doomed if path not in mine])
            else:
                what = "/" if item.type == directory("d").type else item.content.decode()
                if what != "/" or tree.get(item.name) != "/":
                    for owner in (tree, mine):
                        _drop(owner, [path for path in owner if path == item.name or _is_below(path, item.name)])
                tree[item.name] = mine[item.name] = what
    return tree


def _is_below(path: str, top: str) -> bool:
    return path.startswith(top + "/") or not top


def _drop(tree: Tree, paths: list[str]) -> None:
    for path in paths:
        tree.pop(path, None)


def _make_parents(tree: Tree, mine: Tree, path: str) -> None:
    parts = path.split("/")[:-1]
    for number in range(1, len(parts) + 1):
        parent = "/".join(parts[:number])
        if tree.get(parent, "/") != "/":
            raise Conflict(parent)
        tree[parent] = mine[parent] = "/"


@contextmanager
def mounted(rootfs: Rootfs, place: Path) -> Iterator[Path]:
    """Mount the layers of a rootfs as the launcher does, with an upper directory of its own, for the block."""
    for name in ("upper", "work", "merged"):
        (place / name).mkdir()
    lower = ":".join(str(layer.path) for layer in rootfs.layers)
    options = f"lowerdir={lower},upperdir={place}/upper,workdir={place}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", place / "merged"], check=True)
    try:
        yield place / "merged"
    finally:
        subprocess.run(["umount", place / "merged"], check=True)


def read_tree(top: Path) -> Tree:
    """Return a tree of the disk; a name that is listed but does not exist is there with "ghost"."""
    tree = {}
    for here, _, _ in os.walk(top):
        for name in os.listdir(here):
            path = Path(here, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                tree[str(path.relative_to(top))] = "ghost"
                continue
            tree[str(path.relative_to(top))] = "/" if stat.S_ISDIR(mode) else _content(path)
    return tree


def _content(path: Path) -> str:
    return os.readlink(path) if path.is_symlink() else path.read_text()


def see(layers: Sequence[Sequence[Item]], place: Path) -> tuple[Tree, Rootfs]:
    """Import an image of these layers and return what a mount of it shows."""
    write_layout(place / "image", *(pack(*layer) for layer in layers))
    rootfs = import_image(StateDir.open(place / "state"), place / "image", "image")
    with mounted(rootfs, place) as top:
        return read_tree(top), rootfs


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


def _whiteout(path: str) -> str:
    place, slash, name = path.rpartition("/")
    return f"{place}{slash}.wh.{name}"


@st.composite
def image_layers(draw: st.DrawFn) -> list[list[Item]]:
    """Images of up to five layers; every file has a content of its own."""
    layers = []
    for number in range(draw(st.integers(1, 5))):
        hiding = st.one_of(
            NAMES.map(_whiteout), NAMES.map(lambda path: f"{path}/.wh..wh..opq"), st.just(".wh..wh..opq")
        )
        hidden = [file(name) for name in draw(st.lists(hiding, max_size=2))]
        shown = [
            directory(path) if is_directory else file(path, f"{number} {index}".encode())
            for index, (path, is_directory) in enumerate(draw(st.lists(st.tuples(NAMES, st.booleans()), max_size=4)))
        ]
        layers.append(hidden + shown if draw(st.booleans()) else shown + hidden)
    return layers


@pytest.mark.slow
@pytest.mark.parametrize("layers_max", [24, 2, 1])
@settings(max_examples=25, deadline=None)
@given(layers=image_layers())
def test_mounted_image_is_what_it_means(layers_max: int, layers: list[list[Item]]) -> None:
    """Each file of the image is seen and no other, whether its layers are mounted one by one or merged before."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as temporary:
        patch.setattr(oci, "LAYERS_MAX", layers_max)
        try:
            expected = apply(layers)
        except Conflict:
            with pytest.raises(RootfsError, match="is no directory"):
                see(layers, Path(temporary))
            return
        seen, rootfs = see(layers, Path(temporary))

    assert expected == seen
    assert len(rootfs.layers) <= layers_max


BASE = [file("d/x", b"1"), file("d/y", b"1"), file("e", b"1")]


def test_without_its_mark_a_whiteout_would_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a directory that no other layer has: overlayfs looks for whiteouts there only if the mark says so."""
    layers = [BASE, [file("new/f"), file("new/.wh.x")]]
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    seen, _ = see(layers, tmp_path / "with")
    monkeypatch.setattr(overlay, "ORIGIN", "trusted.overlay.impure")
    unmarked, _ = see(layers, tmp_path / "without")

    assert {"new/f"} == {path for path in seen if path.startswith("new/")}
    assert "ghost" == unmarked["new/x"]


def test_whiteouts_are_the_kernel_s_own(tmp_path: Path) -> None:
    """Devices 0/0, and the attribute of opaque directories; both are part of the layer's digest."""
    _, rootfs = see([BASE, [file("d/.wh.x"), directory("o"), file("o/.wh..wh..opq")], [file(".wh.e")]], tmp_path)
    whiteout = (rootfs.layers[1].path / "d/x").lstat()

    assert (True, 0) == (stat.S_ISCHR(whiteout.st_mode), whiteout.st_rdev)
    assert b"y" == os.getxattr(rootfs.layers[1].path / "o", "trusted.overlay.opaque")
    assert 3 == len({layer.digest for layer in rootfs.layers})


def test_layer_that_hides_everything_leaves_the_lower_ones_out(tmp_path: Path) -> None:
    """Overlayfs does not heed the attribute of a top directory."""
    seen, rootfs = see([BASE, [file(".wh..wh..opq"), file("f", b"2")], [file("g", b"3")]], tmp_path)

    assert {"f": "2", "g": "3"} == seen
    assert 2 == len(rootfs.layers)


def test_layers_of_nothing_are_left_out(tmp_path: Path) -> None:
    """Unless there is nothing else."""
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    _, rootfs = see([[], BASE, []], tmp_path / "1")
    _, empty = see([[], []], tmp_path / "2")

    assert (1, 1) == (len(rootfs.layers), len(empty.layers))


def test_layer_that_occurs_twice_is_mounted_once(tmp_path: Path) -> None:
    """The kernel refuses a mount with the same directory twice; what it means stays the same."""
    again = [file("a", b"1"), file("d/.wh.x"), directory("o"), file("o/.wh..wh..opq")]
    layers = [[*BASE, file("o/x")], again, [file("a", b"2"), file("d/x", b"2"), file("o/y", b"2")], again]
    seen, rootfs = see(layers, tmp_path)

    assert apply(layers) == seen
    assert 3 == len(rootfs.layers)


def test_directories_that_a_layer_does_not_describe_are_as_below(tmp_path: Path) -> None:
    """Else a file in a layer would open its directory to all, or take it away from its owner."""
    base = [directory("home", 0o711), directory("home/u", 0o700, uid=1000, gid=1000, mtime=5), file("home/u/old")]
    _, rootfs = see([base, [file("home/u/new", uid=1000)], [directory("home/u", 0o755, uid=3)]], tmp_path)

    status = (rootfs.layers[1].path / "home/u").stat()
    assert (0o40700, 1000, 1000, 5) == (status.st_mode, status.st_uid, status.st_gid, status.st_mtime)
    assert 0o711 == stat.S_IMODE((rootfs.layers[1].path / "home").stat().st_mode)


def test_hidden_directory_that_comes_back_is_new(tmp_path: Path) -> None:
    """It has nothing of the one that was hidden, not even its mode, whichever entry comes first."""
    base = [directory("d", 0o700, uid=9), file("d/x"), file("e/x")]
    orders = [file(".wh.d"), file("d/new"), file("e/new"), file("e/.wh..wh..opq")]
    seen, rootfs = see([base, orders], tmp_path)

    assert {"d": "/", "d/new": "", "e": "/", "e/new": ""} == seen
    assert 0o755 == stat.S_IMODE((rootfs.layers[0].path / "d").stat().st_mode)


@pytest.mark.parametrize("lower", [symlink("lib", "usr/lib"), file("lib")])
def test_file_below_a_link_of_a_lower_layer_is_refused(tmp_path: Path, lower: Item) -> None:
    """A directory made in its place would hide what the link leads to."""
    with pytest.raises(RootfsError, match=r"member 'lib/f': it lies below 'lib', which in the layers below is no dir"):
        see([[lower], [file("lib/f")]], tmp_path)

    (tmp_path / "2").mkdir()
    seen, _ = see([[lower], [directory("lib"), file("lib/f", b"2")]], tmp_path / "2")

    assert {"lib": "/", "lib/f": "2"} == seen


def test_what_is_left_out_hides_what_lies_below(tmp_path: Path) -> None:
    """A FIFO in place of a file is not the file."""
    seen, _ = see([BASE, [Item("e", b"6"), Item("d/x", b"3")]], tmp_path)

    assert {"d": "/", "d/y": "1"} == seen


def test_names_of_aufs_mean_nothing(tmp_path: Path) -> None:
    """They are in images that docker made on aufs."""
    aufs = [file(".wh..wh.aufs"), directory(".wh..wh.plnk"), file(".wh..wh.plnk/1.2"), file("f", b"2")]
    seen, _ = see([BASE, aufs], tmp_path)

    assert {"d": "/", "d/x": "1", "d/y": "1", "e": "1", "f": "2"} == seen


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "d/.wh."])
def test_whiteout_of_no_name_is_refused(tmp_path: Path, name: str) -> None:
    """It could hide the directory that it is in, or the one above."""
    with pytest.raises(RootfsError, match="hides nothing that could be there"):
        see([BASE, [file(name)]], tmp_path)


def test_looking_below_follows_no_link(tmp_path: Path) -> None:
    """Neither a whiteout, a link nor an opaque directory lets anything below it through."""
    _, rootfs = see(
        [[*BASE, directory("o"), file("o/x")], [symlink("l", "d"), file("o/.wh..wh..opq"), file("d/.wh.x")]], tmp_path
    )
    found = {
        path: look_below(rootfs.layers, tuple(path.encode().split(b"/"))) is not None
        for path in ("d", "d/x", "d/y", "e", "e/x", "l", "l/y", "o", "o/x", "missing", "missing/x")
    }

    assert {"d", "d/y", "e", "l", "o"} == {path for path, is_there in found.items() if is_there}
    assert look_below([Layer("", tmp_path)], ()) is not None
