"""The digest of trees, which decides what counts as the same, and the store of layers named by it."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisandbox.errors import RootfsError, StateError
from minisandbox.images import Layer, StateDir, find_layer, measure_tree, read_manifest, store_layer, verify
from minisandbox.images.skeleton import Directory, Entry, File, Link, tree_digest, with_parents, write_tree
from tests.disks import small_disk

pytestmark = pytest.mark.requires_root

NAMES = st.sampled_from(["a", "b", "a.b", "A", "a b", "ab", "é", "\udcff", "-", "\n", "x" * 255])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
IDS = st.integers(0, 65534)
CONTENTS = st.one_of(
    st.binary(max_size=20),
    st.builds(lambda zeros, tail: bytes(zeros) + tail, st.sampled_from([65535, 65536, 131072]), st.binary(max_size=3)),
)
FILES = st.builds(File, content=CONTENTS, mode=st.sampled_from([0o644, 0o600, 0o755, 0o4755]))
LINKS = st.builds(Link, target=st.sampled_from(["a", "/a", "../a", "a/", "é"]))
DIRECTORIES = st.builds(Directory, mode=st.sampled_from([0o755, 0o700, 0o1777]), uid=IDS, gid=IDS)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Entry]:
    """Trees in which everything lies in a directory."""
    drawn: dict[str, Entry] = draw(st.dictionaries(PATHS, st.one_of(FILES, LINKS, DIRECTORIES), max_size=8))
    tree = with_parents(drawn)
    parents = {path.rpartition("/")[0] for path in tree}
    return {path: Directory() if path in parents and not isinstance(e, Directory) else e for path, e in tree.items()}


def digest_written(tree: dict[str, Entry], seed: int = 0) -> str:
    """Return the digest of a tree on the disk, its entries written in a random order, parents before children."""
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary, "top")
        top.mkdir()
        top.chmod(0o755)
        waiting = list(tree)
        shuffle = random.Random(seed)
        while waiting:
            path = shuffle.choice(waiting)
            if (top / path).parent.exists():
                tree[path].create(top / path)
                waiting.remove(path)
        return measure_tree(top).digest


@given(trees(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_equal_trees_digest_equal_in_whatever_order_they_were_written(tree: dict[str, Entry], seed: int) -> None:
    """Neither order nor time counts, and the digest of a tree as a value is that of the tree written."""
    first, second = digest_written(tree, seed), digest_written(tree, seed + 1)

    assert tree_digest(tree) == first == second


def _changed(tree: dict[str, Entry], path: str, how: str) -> dict[str, Entry]:
    """Return a tree with one change."""
    entry = tree[path]
    match how, entry:
        case "name", _:
            return {(path + "+" + old.removeprefix(path) if _is_in(old, path) else old): e for old, e in tree.items()}
        case "removed", _:
            return {old: e for old, e in tree.items() if not _is_in(old, path)}
        case "mode", File():
            return {**tree, path: File(entry.content, entry.mode ^ 0o4)}
        case "mode", Directory():
            return {**tree, path: Directory(entry.mode ^ 0o1, entry.uid, entry.gid)}
        case "uid", Directory():
            return {**tree, path: Directory(entry.mode, entry.uid ^ 1, entry.gid)}
        case "gid", Directory():
            return {**tree, path: Directory(entry.mode, entry.uid, entry.gid ^ 256)}
        case "content", File():
            return {**tree, path: File(entry.content + b"\0", entry.mode)}
        case "content", Link():
            return {**tree, path: Link(entry.target + "/")}
        case "type", File():
            return {**tree, path: Link("x" + entry.content[-20:].hex())}
        case "type", Link():
            return {**tree, path: File(os.fsencode(entry.target), 0o777)}
    assume(False)
    raise AssertionError


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


CHANGES = st.sampled_from(["name", "removed", "mode", "uid", "gid", "content", "type"])


@given(trees(), CHANGES, st.data())
@settings(max_examples=60, deadline=None)
def test_any_single_change_changes_the_digest(tree: dict[str, Entry], how: str, data: st.DataObject) -> None:
    """A name, mode, owner, content, link target or type."""
    assume(tree)
    path = data.draw(st.sampled_from(sorted(tree)))
    assume(how != "name" or len(os.fsencode(path.rpartition("/")[2])) < 255)
    changed = _changed(tree, path, how)

    assert digest_written(tree) != digest_written(changed)


@given(trees(), trees())
def test_different_trees_digest_differently(one: dict[str, Entry], other: dict[str, Entry]) -> None:
    """Two digests are equal exactly when the trees are."""
    assert (one == other) is (tree_digest(one) == tree_digest(other))


def test_encoding_is_the_documented_one(tmp_path: Path) -> None:
    """A layer made today digests the same by every later version, and by other programs."""
    top = tmp_path / "top"
    write_tree({"d": Directory(0o1777, 5, 6), "d/f": File(b"abc"), "l": Link("d/f")}, top_made(top))

    def field(value: bytes) -> bytes:
        return len(value).to_bytes(8, "little") + value

    def record(name: bytes, kind: bytes, mode: int, uid: int, gid: int, content: bytes) -> bytes:
        numbers = b"".join(field(struct.pack("<Q", number)) for number in (mode, uid, gid))
        return field(name) + field(kind) + numbers + field(content) + field(bytes(8))

    end = bytes(8)
    abc = struct.pack("<Q", 3) + hashlib.sha256(bytes(8) + field(b"abc")).digest()
    encoded = (
        field(b"minisandbox tree 1")
        + record(b".", b"d", 0o755, 0, 0, b"")
        + record(b"d", b"d", 0o1777, 5, 6, b"")
        + record(b"f", b"f", 0o644, 0, 0, abc)
        + end
        + record(b"l", b"l", 0o777, 0, 0, b"d/f")
        + end
    )
    assert "sha256:" + hashlib.sha256(encoded).hexdigest() == measure_tree(top).digest


def top_made(top: Path) -> Path:
    """Make an empty directory as a layer begins with."""
    top.mkdir()
    top.chmod(0o755)
    return top


def _device(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))


def _other_device(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))


def _block_device(path: Path) -> None:
    os.mknod(path, 0o600 | 0o060000, os.makedev(1, 3))


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.chmod(0o600)


def _file(path: Path) -> None:
    path.touch(0o600)


def _directory(path: Path) -> None:
    path.mkdir(0o600)


def test_every_type_of_file_has_its_own_digest(tmp_path: Path) -> None:
    """None is opened but regular files, so that neither a FIFO nor a device holds us up."""
    makers: list[Callable[[Path], None]] = [
        _device,
        _other_device,
        _block_device,
        _fifo,
        _socket,
        _file,
        _directory,
    ]
    digests = set()
    for number, make in enumerate(makers):
        make(top_made(tmp_path / str(number)) / "x")
        digests.add(measure_tree(tmp_path / str(number)).digest)

    assert len(makers) == len(digests)


def _digest_with_xattr(top: Path, name: str, value: bytes) -> str:
    os.setxattr(top / "f", name, value)
    digest = measure_tree(top).digest
    os.removexattr(top / "f", name)
    return digest


@pytest.mark.parametrize("name", ["user.note", "trusted.overlay.opaque", "trusted.overlay.redirect"])
def test_extended_attributes_count(tmp_path: Path, name: str) -> None:
    """Name and value."""
    (top_made(tmp_path / "top") / "f").touch()

    digests = {
        measure_tree(tmp_path / "top").digest,
        _digest_with_xattr(tmp_path / "top", name, b"y"),
        _digest_with_xattr(tmp_path / "top", name, b"n"),
    }

    assert 3 == len(digests)


@pytest.mark.parametrize("name", ["trusted.overlay.origin", "trusted.overlay.impure"])
def test_attributes_that_name_inodes_of_this_machine_do_not_count(tmp_path: Path, name: str) -> None:
    """Else two snapshots of the same work would never be equal."""
    (top_made(tmp_path / "top") / "f").touch()

    assert measure_tree(tmp_path / "top").digest == _digest_with_xattr(tmp_path / "top", name, b"y")


def test_hole_equals_the_zeros_that_it_reads_as(tmp_path: Path) -> None:
    """Whether zeros take room on the disk is not content."""
    for name in ("hole", "zeros"):
        top_made(tmp_path / name)
    with open(tmp_path / "hole" / "f", "wb") as file:
        file.seek(300_000)
        file.write(b"end")
    (tmp_path / "zeros" / "f").write_bytes(bytes(300_000) + b"end")

    assert measure_tree(tmp_path / "zeros").digest == measure_tree(tmp_path / "hole").digest


def test_largest_sparse_file_digests_at_once(tmp_path: Path) -> None:
    """A program can make it for nothing; read byte by byte it would take centuries."""
    subprocess.run(["mount", "-t", "tmpfs", "sparse", tmp_path], check=True)
    try:
        (tmp_path / "top").mkdir()
        with open(tmp_path / "top" / "f", "wb") as file:
            os.ftruncate(file.fileno(), (1 << 63) - 1)
            os.pwrite(file.fileno(), b"x", 1 << 62)
        measured = measure_tree(tmp_path / "top")
    finally:
        subprocess.run(["umount", tmp_path], check=True)

    assert (1 << 63) - 1 == measured.content_bytes


def test_deep_tree_digests(tmp_path: Path) -> None:
    """Deeper than Python recurses and than a path may be long, with one descriptor at a time."""
    here = os.getcwd()
    os.chdir(top_made(tmp_path / "top"))
    try:
        for _ in range(1500):
            os.mkdir("x" * 200)
            os.chdir("x" * 200)
        measured = measure_tree(tmp_path / "top")
    finally:
        os.chdir(here)
        # pytest could not remove a tree this deep.
        subprocess.run(["rm", "-rf", tmp_path / "top"], check=True)

    assert 1501 == measured.files


def test_tree_with_something_mounted_inside_is_no_layer(tmp_path: Path) -> None:
    """What is mounted there now would be digested but not stored."""
    mounted = top_made(tmp_path / "top") / "mounted"
    mounted.mkdir()
    subprocess.run(["mount", "--bind", tmp_path, mounted], check=True)
    try:
        with pytest.raises(OSError, match="mounted inside") as caught:
            measure_tree(tmp_path / "top")
    finally:
        subprocess.run(["umount", mounted], check=True)

    assert errno.EXDEV == caught.value.errno


def _hello(top: Path) -> None:
    (top / "hello").write_bytes(b"hello\n")


def test_layer_is_stored_under_its_digest(state: StateDir) -> None:
    """What was put in is there, with what was counted beside it, and nothing else is left."""
    layer = store_layer(state, _hello)

    verify(layer)
    assert b"hello\n" == (layer.path / "hello").read_bytes()
    assert layer == find_layer(state, layer.digest)
    assert (layer.digest, 2, 6) == _numbers(layer)
    assert [layer.path.name, layer.path.name + ".json"] == sorted(os.listdir(state.layers))
    assert [] == os.listdir(state.path / "tmp")


def _numbers(layer: Layer) -> tuple[str, int, int]:
    manifest = read_manifest(layer)
    return manifest.digest, manifest.files, manifest.content_bytes


def test_equal_content_is_one_layer(state: StateDir) -> None:
    """Storing it again keeps the tree that is there, which sandboxes may have mounted."""
    first = store_layer(state, _hello)
    inode = first.path.stat().st_ino
    second = store_layer(state, _hello)

    assert first == second
    assert inode == second.path.stat().st_ino


def test_damaged_layer_is_noticed_and_mended(state: StateDir) -> None:
    """It names what is wrong, and storing the layer again puts it right."""
    layer = store_layer(state, _hello)
    (layer.path / "hello").write_bytes(b"hullo\n")

    with pytest.raises(RootfsError, match="the layer is damaged"):
        verify(layer)
    store_layer(state, _hello)

    verify(layer)
    assert [] == os.listdir(state.path / "tmp")


def test_layer_without_its_sidecar_is_not_there(state: StateDir) -> None:
    """The sidecar is written last, so without it the layer may not be on the disk."""
    layer = store_layer(state, _hello)
    layer.path.with_name(layer.path.name + ".json").unlink()

    assert find_layer(state, layer.digest) is None
    assert store_layer(state, _hello) == find_layer(state, layer.digest)


def test_layer_that_is_gone_cannot_be_verified(state: StateDir) -> None:
    """That is an error of the state directory, not a difference of content."""
    layer = store_layer(state, _hello)
    shutil.rmtree(layer.path)

    with pytest.raises(StateError, match=r"cannot read the layer .*\[ENOENT\]"):
        verify(layer)


@pytest.mark.parametrize("defended", [True, False])
def test_setuid_program_in_a_layer_is_out_of_reach_of_the_host_s_users(defended: bool) -> None:
    """What a workload made as its root would be the host's root. With layers/ open to all it could be run."""
    with tempfile.TemporaryDirectory() as temporary:
        os.chmod(temporary, 0o755)
        state = StateDir.open(Path(temporary, "state"))
        layer = store_layer(state, partial(write_tree, {"su": File(b"#!", mode=0o4755)}))
        if not defended:
            state.layers.chmod(0o755)
        os.seteuid(65534)
        try:
            reached = os.access(layer.path / "su", os.X_OK, effective_ids=True)
        finally:
            os.seteuid(0)

    assert reached is not defended


def test_failed_build_leaves_nothing(state: StateDir) -> None:
    """What the builder raised is raised, and all that it had written is removed."""

    def fail(top: Path) -> None:
        _hello(top)
        raise KeyError("builder")

    with pytest.raises(KeyError, match="builder"):
        store_layer(state, fail)

    assert [] == [*os.listdir(state.layers), *os.listdir(state.path / "tmp")]


def _mebibyte(top: Path) -> None:
    (top / "large").write_bytes(b"x" * (1 << 20))


def test_layer_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """A full disk is an error that says so."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        state = StateDir.open(disk / "state")
        with pytest.raises(StateError, match=r"cannot build a layer .*\[ENOSPC\].*free some space"):
            store_layer(state, _mebibyte)
        left = [*os.listdir(state.layers), *os.listdir(state.path / "tmp")]

    assert [] == left
