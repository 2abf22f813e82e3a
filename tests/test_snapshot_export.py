"""Snapshots as files: the same on another state directory, and nothing of one that is not what it says."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisandbox import open_supervisor
from minisandbox.errors import HostError, SandboxError, SnapshotDamagedError, StoreFullError, UsageError
from minisandbox.images import (
    Bounds,
    Layer,
    Rootfs,
    SnapshotStore,
    StateDir,
    StoredSnapshot,
    export_snapshot,
    import_snapshot,
    store_layer,
    verify_snapshot,
)
from minisandbox.images.tar import MAX_EXTENDED_BYTES
from tests.crash import crash_at_each_step
from tests.disks import small_disk
from tests.snapshots import left_of, make_layer, make_upper, opened, save

pytestmark = pytest.mark.requires_root


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """Where snapshots are made."""
    return SnapshotStore(StateDir.open(tmp_path / "state"))


@pytest.fixture
def other(tmp_path: Path) -> SnapshotStore:
    """Where they are imported."""
    return SnapshotStore(StateDir.open(tmp_path / "other"))


@pytest.fixture
def saved(store: SnapshotStore, tmp_path: Path) -> StoredSnapshot:
    """A snapshot of two layers with one of everything."""
    return save(store, "one", make_upper(tmp_path / "upper"), make_layer(tmp_path / "layer"))


@pytest.fixture
def file(store: SnapshotStore, saved: StoredSnapshot, tmp_path: Path) -> Path:
    """The file that it is exported to."""
    export_snapshot(store, saved, tmp_path / "one.tar")
    return tmp_path / "one.tar"


def facts(snapshot: StoredSnapshot) -> tuple[object, ...]:
    """Return what of a snapshot does not depend on where it is."""
    layers = [layer.digest for layer in snapshot.as_rootfs().layers]
    return snapshot.digest, snapshot.rootfs.digest, layers, snapshot.rootfs.binds, snapshot.rootfs.env


@pytest.mark.parametrize("suffix", ["", ".tar", ".tar.gz", ".tgz", ".tar.zst"])
async def test_imported_snapshot_is_the_same_and_starts_the_same(
    store: SnapshotStore, other: SnapshotStore, saved: StoredSnapshot, tmp_path: Path, suffix: str
) -> None:
    """With another state directory, compressed or not."""
    path = tmp_path / f"exported{suffix}"
    export_snapshot(store, saved, path)
    imported = import_snapshot(other, path)
    verify_snapshot(other, imported)
    async with open_supervisor(state_dir=other.state.path, self_test=False) as supervisor:
        async with supervisor.open_sandbox(rootfs=imported.as_rootfs()) as sandbox:
            result = await sandbox.run("cat /etc/new /work/added; stat -c %u:%a /work/suid; ls -A /root")

    assert facts(saved) == facts(imported)
    assert imported == other.load("one")
    assert b"newadded1000:6755\n" == result.stdout
    assert ["one.json"] == os.listdir(other.state.snapshots)


def test_file_is_an_archive_that_tar_reads(file: Path, saved: StoredSnapshot, tmp_path: Path) -> None:
    """The manifest first, and files, links and holes as they are."""
    names = subprocess.run(["tar", "-tf", file], check=True, capture_output=True, text=True).stdout.splitlines()
    member = f"layers/{saved.layers[1].digest[7:]}/work/sparse"
    subprocess.run(["tar", "-C", tmp_path, "-xf", file, member], check=True)

    assert "snapshot.json" == names[0]
    assert (1 << 40, True) == ((tmp_path / member).stat().st_size, (tmp_path / member).stat().st_blocks < 100)
    assert file.stat().st_size < 2_000_000


def test_import_is_repeated_renamed_and_shared(store: SnapshotStore, other: SnapshotStore, file: Path) -> None:
    """The same again is nothing new; under another name it has the same layers."""
    first = import_snapshot(other, file)
    again = import_snapshot(other, file)
    renamed = import_snapshot(other, file, "two", digest=first.digest)

    assert first == again
    assert first.layers == renamed.layers
    assert ["one", "two"] == [each.name for each in other.list_snapshots()]


def test_wrong_digest_and_taken_name_are_refused(other: SnapshotStore, file: Path, tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(SnapshotDamagedError, match=r"it is the snapshot sha256:.*, not sha256:0"):
        import_snapshot(other, file, digest="sha256:" + "0" * 64)
    assert set() == left_of(other)

    kept = save(other, "one", make_upper(tmp_path / "another"))
    before = left_of(other)
    with pytest.raises(UsageError, match="belongs to another snapshot"):
        import_snapshot(other, file)
    assert (before, [kept]) == (left_of(other), other.list_snapshots())


def test_truncated_file_is_refused_wherever_it_ends(other: SnapshotStore, file: Path, tmp_path: Path) -> None:
    """And leaves nothing."""
    content = file.read_bytes().rstrip(b"\0")
    for number in range(0, len(content), max(1, len(content) // 23)):
        (tmp_path / "cut.tar").write_bytes(content[:number])
        with pytest.raises(SnapshotDamagedError, match=r"cut\.tar: "):
            import_snapshot(other, tmp_path / "cut.tar")
        assert set() == left_of(other)


@given(place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_flipped_bit_is_refused_or_makes_no_difference(place: int, bit: int) -> None:
    """Nothing else is stored than what was exported; only a name may differ, which no digest holds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        top = Path(temporary)
        store, other = (SnapshotStore(StateDir.open(top / name)) for name in ("state", "other"))
        saved = save_small(store, top / "layer")
        export_snapshot(store, saved, top / "one.tar")
        content = bytearray((top / "one.tar").read_bytes())
        content[place % len(content)] ^= 1 << bit
        (top / "one.tar").write_bytes(content)
        try:
            imported = import_snapshot(other, top / "one.tar")
        except SandboxError:
            left = [*other.state.layers.iterdir(), *other.state.snapshots.iterdir()]

            assert [] == left
        else:
            verify_snapshot(other, imported)

            assert facts(saved) == facts(imported)


def save_small(store: SnapshotStore, layer: Path) -> StoredSnapshot:
    """Store a small snapshot on a rootfs of its own."""
    below: Layer = store_layer(store.state, lambda top: (top / "d").mkdir())
    (layer / "d").mkdir(parents=True)
    (layer / "d/f").write_text("content")
    os.link(layer / "d/f", layer / "g")
    return save(store, "one", layer, rootfs=Rootfs("base", (below,), (), {"A": "b"}))


XATTRS = st.dictionaries(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12).map("user.{}".format),
    st.binary(max_size=64),
    max_size=3,
)
FILES = st.dictionaries(
    st.text("ab.é\n\t -=%", min_size=1, max_size=80).filter(lambda name: name not in (".", "..")),
    st.tuples(st.binary(max_size=2000), st.integers(0, 0o7777), st.integers(0, 65534), st.integers(0, 2**62), XATTRS),
    max_size=4,
)


@given(FILES)
@settings(max_examples=15, deadline=None)
def test_whatever_files_are_called_and_have_comes_back(
    files: dict[str, tuple[bytes, int, int, int, dict[str, bytes]]],
) -> None:
    """Names, attributes, owners and times of any kind."""
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        store, other = (SnapshotStore(StateDir.open(top / name)) for name in ("state", "other"))
        below = store_layer(store.state, lambda top: (top / "d").mkdir())
        (top / "layer").mkdir()
        for name, (content, mode, owner, mtime_ns, xattrs) in files.items():
            path = top / "layer" / name
            path.write_bytes(content)
            for xattr, value in xattrs.items():
                os.setxattr(path, xattr, value)
            os.chown(path, owner, 65534 - owner)
            path.chmod(mode)
            os.utime(path, ns=(mtime_ns, mtime_ns))
        saved = save(store, "one", top / "layer", rootfs=Rootfs("base", (below,), (), {}))
        export_snapshot(store, saved, top / "one.tgz")

        assert facts(saved) == facts(import_snapshot(other, top / "one.tgz"))


EVIL = {
    "upwards": "{}/../../../../evil",
    "absolute": "/evil",
    "through a link": "{}/out/evil",
    "elsewhere": f"layers/{'0' * 64}/evil",
    "device": "{}/null",
    "foreign link": "{}/shadow",
    "owner": "{}/owner",
    "mark": "{}/mark",
    "twice": "{}/d",
    "too much": "{}/large",
}
"""Names of members that should not be there."""


def rewritten(file: Path, change: str, layer: str) -> bytes:
    """Return an exported file with something in a layer that should not be there."""
    inside = f"layers/{layer}"
    evil = tarfile.TarInfo(EVIL[change].format(inside))
    items = [evil]
    if change == "through a link":
        link = tarfile.TarInfo(f"{inside}/out")
        link.type, link.linkname = tarfile.SYMTYPE, "/"
        items.insert(0, link)
    elif change == "device":
        evil.type, evil.devmajor, evil.devminor = tarfile.CHRTYPE, 1, 3
    elif change == "foreign link":
        evil.type, evil.linkname = tarfile.LNKTYPE, "/etc/shadow"
    elif change == "owner":
        evil.uid = 65535
    elif change == "mark":
        evil.pax_headers = {"SCHILY.xattr.trusted.overlay.redirect": "/"}
    elif change == "twice":
        items = [evil, evil]
    elif change == "too much":
        evil.pax_headers = {"SCHILY.xattr.user.x": "x" * (MAX_EXTENDED_BYTES + 1)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        with tarfile.open(file) as original:
            for member in original:
                archive.addfile(member, original.extractfile(member) if member.isreg() else None)
                if member.name == inside:
                    for item in items:
                        archive.addfile(item, io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize("change", EVIL)
def test_hostile_file_writes_nothing(store: SnapshotStore, other: SnapshotStore, tmp_path: Path, change: str) -> None:
    """Not outside of its layer, nor anything that no sandbox can have."""
    saved = save_small(store, tmp_path / "layer")
    export_snapshot(store, saved, tmp_path / "one.tar")
    (tmp_path / "evil.tar").write_bytes(rewritten(tmp_path / "one.tar", change, saved.layers[0].path.name))

    with pytest.raises(SnapshotDamagedError, match=r"evil\.tar: "):
        import_snapshot(other, tmp_path / "evil.tar")
    assert set() == left_of(other)
    assert not any(place.exists() for place in (Path("/evil"), tmp_path / "evil", other.state.path / "evil"))


def test_damaged_content_is_named_by_its_path(other: SnapshotStore, file: Path, tmp_path: Path) -> None:
    """As in the store."""
    content = file.read_bytes()
    (tmp_path / "bad.tar").write_bytes(content.replace(b"added" + bytes(507), b"ADDED" + bytes(507)))

    with pytest.raises(SnapshotDamagedError, match=r"bad\.tar: 'work/added' of the layer is not what was stored"):
        import_snapshot(other, tmp_path / "bad.tar")
    assert set() == left_of(other)


@pytest.mark.parametrize("bound", [Bounds(max_files=5), Bounds(max_bytes=50_000)])
def test_bounds_are_kept(other: SnapshotStore, file: Path, bound: Bounds) -> None:
    """However small the file is."""
    with pytest.raises(SnapshotDamagedError, match=r"that were allowed|the bound that was set"):
        import_snapshot(other, file, bounds=bound)
    assert set() == left_of(other)


@pytest.mark.parametrize("defended", [True, False])
def test_file_shows_nothing_of_the_host_by_itself(
    other: SnapshotStore, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A bind that no rootfs of this host has is refused. Without the check, its source would be shown."""
    if not defended:
        monkeypatch.setattr("minisandbox.images.snapshot_import.check_binds", lambda *_: None)
    (tmp_path / "evil.tar").write_bytes(file.read_bytes().replace(b'"source": "/usr"', b'"source": "/etc"'))

    with pytest.raises(SandboxError) as caught:
        import_snapshot(other, tmp_path / "evil.tar")
    # Undefended it goes on until the digest of the rootfs, which a forger would have made right.
    assert isinstance(caught.value, UsageError if defended else SnapshotDamagedError)
    assert set() == left_of(other)


def test_full_disk_is_typed_and_leaves_nothing(store: SnapshotStore, tmp_path: Path) -> None:
    """Neither of an import nor of an export, whose old file stays."""
    make_layer(tmp_path / "layer")
    (tmp_path / "layer/large").write_bytes(os.urandom(1_500_000))
    large = save(store, "large", tmp_path / "layer")
    export_snapshot(store, large, tmp_path / "large.tar")
    with small_disk(tmp_path / "disk", "1500k") as disk:
        small = SnapshotStore(StateDir.open(disk / "state"))
        (disk / "old.tar").write_bytes(b"old")
        with pytest.raises(StoreFullError, match="ENOSPC"):
            import_snapshot(small, tmp_path / "large.tar")
        left = left_of(small)
        with pytest.raises(StoreFullError, match="ENOSPC"):
            export_snapshot(store, large, disk / "old.tar")
        kept = (disk / "old.tar").read_bytes(), sorted(os.listdir(disk))

    assert set() == left
    assert (b"old", ["old.tar", "state"]) == kept


def test_damaged_snapshot_is_not_exported(store: SnapshotStore, saved: StoredSnapshot, tmp_path: Path) -> None:
    """It could not be imported, and who knows when that would be noticed."""
    (saved.layers[0].path / "work/added").write_text("ADDED")

    with pytest.raises(SnapshotDamagedError, match="'work/added' of the layer is not what was stored"):
        export_snapshot(store, saved, tmp_path / "out.tar")
    assert not (tmp_path / "out.tar").exists()


def test_path_that_no_archive_can_name_is_an_error(store: SnapshotStore, tmp_path: Path) -> None:
    """It stays in the store, where there is no such bound."""
    here = os.getcwd()
    top = tmp_path / "layer"
    top.mkdir()
    os.chdir(top)
    for _ in range(25):
        os.mkdir("x" * 200)
        os.chdir("x" * 200)
    os.chdir(here)
    saved = save(store, "deep", top)

    with pytest.raises(HostError, match="deeper in the tree than an archive can name"):
        export_snapshot(store, saved, tmp_path / "out.tar")
    assert [] == [path for path in tmp_path.iterdir() if "out" in path.name]
    subprocess.run(["rm", "-rf", top], check=True)
    store.remove("deep")


@pytest.mark.parametrize("content", [b"", b"junk" * 1000, b"\x1f\x8b\x08" + b"x" * 600, b"snapshot.json" + bytes(499)])
def test_junk_is_refused(other: SnapshotStore, tmp_path: Path, content: bytes) -> None:
    """With the name of the file."""
    (tmp_path / "junk").write_bytes(content)

    with pytest.raises(SnapshotDamagedError, match="junk: "):
        import_snapshot(other, tmp_path / "junk")
    with pytest.raises(UsageError, match="cannot open the archive"):
        import_snapshot(other, tmp_path / "missing")


@pytest.mark.slow
def test_import_killed_at_any_step_leaves_all_or_nothing(
    store: SnapshotStore, other: SnapshotStore, tmp_path: Path
) -> None:
    """What is left of its layers is whole, and collected later."""
    saved = save_small(store, tmp_path / "layer")
    export_snapshot(store, saved, tmp_path / "one.tar")
    code = "import_snapshot(SnapshotStore(StateDir.open(Path(sys.argv[2]))), Path(sys.argv[3]))"
    steps = 0
    for _ in crash_at_each_step(code, str(other.state.path), str(tmp_path / "one.tar")):
        steps += 1
        again = SnapshotStore(StateDir.open(other.state.path))
        for snapshot in again.list_snapshots():
            verify_snapshot(again, snapshot)
            again.remove(snapshot.name)

    assert steps >= 10
    with opened(tmp_path / "layer"):
        assert facts(saved) == facts(other.load("one"))
