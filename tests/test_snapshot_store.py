"""Stored snapshots: whole or not there, the same when they are read, and gone with all that only they had."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minisandbox import Supervisor
from minisandbox.errors import (
    HostError,
    SnapshotDamagedError,
    SnapshotNotFoundError,
    StateError,
    StoreFullError,
    UsageError,
    exit_code,
)
from minisandbox.images import (
    Change,
    Progress,
    Rootfs,
    SnapshotStore,
    StateDir,
    build_rootfs,
    digest_snapshot,
    digest_tree,
    gc,
    remove_rootfs,
    snapshot_store,
    store_layer,
    verify_snapshot,
)
from tests.crash import STEPS, crash_at_each_step
from tests.disks import require_attributes, small_disk
from tests.snapshots import left_of, make_layer, make_upper, opened, save

pytestmark = pytest.mark.requires_root

WRITES = STEPS | {f"os.{call}" for call in ("chmod", "chown", "link", "setxattr", "symlink", "truncate", "utime")}
"""Audit events of everything by which a copy is made."""


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """A new state directory."""
    return SnapshotStore(StateDir.open(tmp_path / "state"))


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A layer with one of everything."""
    return make_layer(tmp_path / "layer")


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    """A layer on top of it."""
    return make_upper(tmp_path / "upper")


def test_saved_snapshot_is_what_was_there(store: SnapshotStore, layer: Path, upper: Path) -> None:
    """Every layer of it to the nanosecond, and the digest is that of the layers before."""
    with opened(upper, layer) as fds:
        rootfs = build_rootfs(store.state, "host")
        expected = digest_snapshot(rootfs, fds), [digest_tree(fd) for fd in fds]
    saved = save(store, "one", upper, layer)
    loaded = store.load("one")

    assert saved == loaded
    assert expected == (loaded.digest, [layer.digest for layer in loaded.layers])
    assert rootfs == loaded.rootfs
    verify_snapshot(store, loaded)
    assert (layer / "work/sparse").stat().st_blocks >= (loaded.layers[1].path / "work/sparse").stat().st_blocks


async def test_sandbox_starts_from_a_saved_snapshot(supervisor: Supervisor, layer: Path, upper: Path) -> None:
    """And sees what was written, not what was removed."""
    saved = save(SnapshotStore(supervisor.state), "start", upper, layer)
    async with supervisor.open_sandbox(rootfs=saved.as_rootfs()) as sandbox:
        result = await sandbox.run("cat /etc/new /work/added; ls -A /root; stat -c %u:%a /work/suid; ls /work/deep")

    assert (b"newadded1000:6755\n", 2) == (result.stdout, result.exit_code)


def test_layers_are_shared(store: SnapshotStore, layer: Path, upper: Path) -> None:
    """A chain keeps what it has in common with another once, and the same one twice is one."""
    one = save(store, "one", layer)
    two = save(store, "two", upper, layer)
    again = save(store, "again", upper, layer)

    assert one.layers == two.layers[1:]
    assert (two.digest, two.layers) == (again.digest, again.layers)
    assert 3 == len([name for name in os.listdir(store.state.layers) if "." not in name])  # that of host is one


def test_long_chain_is_stored_as_one_layer(store: SnapshotStore, layer: Path, tmp_path: Path) -> None:
    """It shows the same, and its digest is the same."""
    chain = [layer]
    for number in range(10):
        top = tmp_path / f"top{number}"
        (top / "work").mkdir(parents=True)
        (top / "work/added").write_text(str(number))
        chain.insert(0, top)
    with opened(*chain) as fds:
        expected = digest_snapshot(build_rootfs(store.state, "host"), fds)
    saved = save(store, "long", *chain)
    verify_snapshot(store, saved)

    assert (expected, 1) == (saved.digest, len(saved.layers))
    assert "9" == (saved.layers[0].path / "work/added").read_text()


def test_snapshot_is_found_by_name_digest_and_its_beginning(store: SnapshotStore, layer: Path) -> None:
    """With and without the name of the algorithm; without a name it is called by its digest."""
    with opened(layer) as fds:
        saved = store.save(build_rootfs(store.state, "host"), fds)
    digits = saved.digest.removeprefix("sha256:")

    assert digits[:16] == saved.name
    for reference in (saved.name, saved.digest, digits, digits[:8], "sha256:" + digits[:5]):
        assert saved == store.load(reference)


@pytest.mark.parametrize("name", ["missing", "", "..", "one.json", "../snapshots/one", "a\0", "sha256:", "0" * 64])
def test_unknown_snapshot_is_an_error_of_the_caller(store: SnapshotStore, layer: Path, name: str) -> None:
    """A name is never a path."""
    save(store, "one", layer)

    for call in (store.load, store.remove):
        with pytest.raises(SnapshotNotFoundError, match="there is no snapshot") as caught:
            call(name)
    assert 64 == exit_code(caught.value)


def test_digest_of_several_says_which(store: SnapshotStore, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of one snapshot are no such case."""
    save(store, "one", layer)
    save(store, "same", layer)
    monkeypatch.setattr(snapshot_store, "digest_snapshot", lambda *_: store.load("one").digest[:20] + "0" * 51)
    save(store, "two", layer)

    assert "one" == store.load(store.load("one").digest).name
    with pytest.raises(SnapshotNotFoundError, match=r"begin with .*: one, same, two"):
        store.load(store.load("one").digest[:15])


@pytest.mark.parametrize("name", ["a/b", "../a", "-a", "x" * 65, " "])
def test_bad_name_is_refused(store: SnapshotStore, layer: Path, name: str) -> None:
    """Nothing is stored."""
    with pytest.raises(UsageError, match="cannot name a snapshot"):
        save(store, name, layer)

    assert set() == left_of(store)


def test_name_is_not_taken_from_another(store: SnapshotStore, layer: Path, upper: Path) -> None:
    """The one that has it stays."""
    one = save(store, "one", layer)

    with pytest.raises(UsageError, match="belongs to another snapshot"):
        save(store, "one", upper, layer)
    assert [one] == store.list_snapshots()


def test_rootfs_of_another_state_directory_is_refused(store: SnapshotStore, layer: Path, tmp_path: Path) -> None:
    """The snapshot would lie on nothing."""
    elsewhere = build_rootfs(StateDir.open(tmp_path / "other"), "host")

    with pytest.raises(UsageError, match="not of the state directory"):
        save(store, "one", layer, rootfs=elsewhere)


def test_difference_is_like_that_of_git(store: SnapshotStore, layer: Path, upper: Path) -> None:
    """To the rootfs, and between two; whiteouts and marks are no files."""
    one, two = save(store, "one", layer), save(store, "two", upper, layer)
    to_rootfs = {(os.fsdecode(each.path), each.change) for each in store.diff(one.rootfs, one)}
    between = [(each.path, each.change, each.is_directory) for each in store.diff(one, two)]

    assert {("etc/new", Change.ADDED), ("etc/passwd", Change.REMOVED), ("work/deep/same", Change.ADDED)} <= to_rootfs
    assert [
        (b"work/added", Change.ADDED, False),
        (b"work/deep", Change.REMOVED, True),
        (b"work/deep/same", Change.REMOVED, False),
    ] == between
    assert [] == list(store.diff(two, two))


def test_removed_snapshot_frees_what_only_it_had(store: SnapshotStore, layer: Path, upper: Path) -> None:
    """What others have too stays, and so does the rootfs that one lies on, whoever forgets that."""
    one, two = save(store, "one", layer), save(store, "two", upper, layer)
    remove_rootfs(store.state, "host")
    kept = gc(store.state)
    first = store.remove("two")
    verify_snapshot(store, one)
    second = store.remove("one")

    assert [] == kept
    assert [two.layers[0].digest] == [layer.digest for layer in first]
    assert {layer.digest for layer in one.as_rootfs().layers} == {layer.digest for layer in second}
    assert [] == [*os.listdir(store.state.layers), *os.listdir(store.state.snapshots)]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "content": (lambda top: (top / "etc/new").write_text("NEW"), "'etc/new' of the layer is not what was stored"),
    "mode": (lambda top: (top / "work/suid").chmod(0o755), "'work/deep/same' of the layer is not what was stored"),
    "time": (lambda top: os.utime(top / "work/fifo"), "'work/fifo' of the layer is not what was stored"),
    "gone": (lambda top: (top / "work/fifo").unlink(), "'work/fifo' of the layer is gone"),
    "last gone": (lambda top: (top / "work/suid").unlink(), "'work/suid' of the layer is gone"),
    "new": (lambda top: (top / "work/g").touch(), "'work/g' of the layer does not belong there"),
    "directory gone": (lambda top: shutil.rmtree(top / "work"), "'work' of the layer is gone"),
    "mark": (lambda top: os.removexattr(top / "root", "trusted.overlay.opaque"), "'root' of the layer is not what"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(store: SnapshotStore, layer: Path, what: str) -> None:
    """By the path of the first file that is not as it was."""
    saved = save(store, "one", layer)
    damage, message = DAMAGE[what]
    damage(saved.layers[0].path)

    with pytest.raises(SnapshotDamagedError, match=message) as caught:
        verify_snapshot(store, saved)
    assert (65, saved.layers[0].path) == (exit_code(caught.value), caught.value.file)


def test_damaged_index_manifest_and_rootfs_are_told_apart(store: SnapshotStore, layer: Path) -> None:
    """Each by its own file."""
    saved = save(store, "one", layer)
    index = saved.layers[0].path.with_name(saved.layers[0].path.name + ".index")
    manifest = store.state.snapshots / "one.json"
    base = saved.rootfs.layers[0].path
    whole = {file: file.read_bytes() for file in (index, manifest)}
    found = {}
    for file, content in ((index, b"x"), (manifest, b"{"), (base / "etc/group", b"x")):
        file.write_bytes(content)
        with pytest.raises(SnapshotDamagedError) as caught:
            verify_snapshot(store, store.load("one"))
        found[file] = caught.value.file
        if file in whole:
            file.write_bytes(whole[file])

    assert {index: index, manifest: manifest, base / "etc/group": base} == found


def test_changed_manifest_is_noticed(store: SnapshotStore, layer: Path, upper: Path) -> None:
    """A digest that what it names does not have, another environment, a layer that is gone."""
    saved = save(store, "one", upper, layer)
    manifest = store.state.snapshots / "one.json"
    text = manifest.read_text()
    for old, new in (
        (saved.digest, "sha256:" + "0" * 64),
        ('"HOME": "/root"', '"HOME": "/tmp"'),
        (saved.layers[0].digest, "sha256:" + "0" * 64),
    ):
        manifest.write_text(text.replace(old, new))
        with pytest.raises(SnapshotDamagedError):
            verify_snapshot(store, store.load("one"))


def test_damaged_manifest_stops_the_collection(store: SnapshotStore, layer: Path) -> None:
    """What it uses is not known then."""
    save(store, "one", layer)
    (store.state.snapshots / "one.json").write_text("{")
    before = sorted(os.listdir(store.state.layers))

    with pytest.raises(SnapshotDamagedError):
        gc(store.state)
    assert before == sorted(os.listdir(store.state.layers))


def test_progress_is_told(store: SnapshotStore, layer: Path) -> None:
    """Of long work, with the step that it is in."""
    told: list[Progress] = []
    with opened(layer) as fds:
        store.save(build_rootfs(store.state, "host"), fds, "one", report=told.append)

    assert ["digesting", "copying"] == [progress.step for progress in told][:2]


def test_device_is_no_part_of_a_snapshot(store: SnapshotStore, layer: Path) -> None:
    """No sandbox can make one; nothing is left of the snapshot."""
    os.mknod(layer / "null", 0o20666, os.makedev(1, 3))

    with pytest.raises(HostError, match="'null' is a device"):
        save(store, "one", layer)
    assert set() == left_of(store)


@pytest.mark.parametrize("free_kib", [8, 64, 160])
def test_full_disk_is_typed_and_loses_nothing(layer: Path, tmp_path: Path, free_kib: int) -> None:
    """What was stored before is whole, nothing is half there, and after some room is made the same call works."""
    with small_disk(tmp_path / "disk", "1500k") as disk:
        require_attributes(disk)
        store = SnapshotStore(StateDir.open(disk / "state"))
        one = save(store, "one", make_upper(tmp_path / "upper"))
        statvfs = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(statvfs.f_bavail * statvfs.f_frsize - (free_kib << 10)))
        before = left_of(store)
        (layer / "work/large").write_bytes(os.urandom(300_000))
        with pytest.raises(StoreFullError, match=r"\[ENOSPC\].*free some space") as caught:
            save(store, "two", layer)
        after = left_of(store)
        verify_snapshot(store, one)
        (disk / "ballast").unlink()
        verify_snapshot(store, save(store, "two", layer))

    assert before == after
    assert isinstance(caught.value, StateError)
    assert caught.value.retryable


@pytest.mark.slow
def test_save_killed_at_any_step_leaves_all_or_nothing(store: SnapshotStore, layer: Path, upper: Path) -> None:
    """The store opens clean, with the snapshot or without, and saving it again gives the same."""
    kept = save(store, "kept", upper)
    code = """
state = StateDir.open(Path(sys.argv[2]))
fds = [os.open(place, os.O_RDONLY) for place in sys.argv[3:]]
SnapshotStore(state).save(build_rootfs(state, "host"), fds, "one")
"""
    whole, steps = 0, 0
    for _ in crash_at_each_step(code, str(store.state.path), str(upper), str(layer), steps=WRITES):
        steps += 1
        again = SnapshotStore(StateDir.open(store.state.path))
        names = [snapshot.name for snapshot in again.list_snapshots()]
        assert names in (["kept"], ["kept", "one"])
        for snapshot in again.list_snapshots():
            verify_snapshot(again, snapshot)
        assert [] == os.listdir(store.state.path / "tmp")
        if "one" in names:
            whole += 1
            again.remove("one")
        gc(store.state)
        stored = {layer.path.name for layer in kept.as_rootfs().layers}
        assert stored == {name for name in os.listdir(store.state.layers) if "." not in name}

    assert steps >= 40
    assert whole >= 1
    verify_snapshot(store, store.load("one"))


@pytest.mark.slow
def test_removal_killed_at_any_step_can_be_repeated(store: SnapshotStore, layer: Path, upper: Path) -> None:
    """What is left is whole, or is collected later."""
    kept = save(store, "kept", upper)
    code = "SnapshotStore(StateDir.open(Path(sys.argv[2]))).remove('one')"
    save(store, "one", upper, layer)
    for _ in crash_at_each_step(code, str(store.state.path)):
        again = SnapshotStore(StateDir.open(store.state.path))
        if any(manifest.name == "one.json" for manifest in store.state.snapshots.iterdir()):
            verify_snapshot(again, again.load("one"))
        verify_snapshot(again, kept)
        save(again, "one", upper, layer)
    gc(store.state)

    assert {"kept.json"} == set(os.listdir(store.state.snapshots))
    assert 2 == len([name for name in os.listdir(store.state.layers) if "." not in name])


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Be an ordinary user for the block."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def user_tree(top: Path, uid: int, *, owner: int) -> None:
    """Make a layer of a sandbox without root: the user's own ids are root's in there."""
    (top / "d").mkdir(parents=True)
    (top / "d/f").write_text("content")
    os.mknod(top / "d/gone", 0o20000, os.makedev(0, 0))
    os.setxattr(top / "d", "user.overlay.opaque", b"y")
    for place in (top, top / "d", top / "d/f", top / "d/gone"):
        os.chown(place, uid, uid)
    os.chown(top / "d/f", owner, owner)


@pytest.mark.parametrize("owner", [1234, 77])
def test_ordinary_user_saves_what_is_his(owner: int) -> None:
    """His ids count as root's; what belongs to others inside is an error that says so, never changed in silence."""
    uid = 1234
    with tempfile.TemporaryDirectory() as temporary:
        os.chmod(temporary, 0o777)
        top = Path(temporary, "layer")
        user_tree(top, uid, owner=owner)
        with as_user(uid), opened(top) as fds:
            store = SnapshotStore(StateDir.open(Path(temporary, "state")))
            below = store_layer(store.state, lambda top: (top / "d").mkdir(0o755))
            rootfs = Rootfs("base", (below,), (), {})
            if owner != uid:
                with pytest.raises(HostError, match="cannot keep that 'f' belongs to uid 77"):
                    store.save(rootfs, fds, "one")
                return
            saved = store.save(rootfs, fds, "one")
            verify_snapshot(store, saved)
            found = [(each.path, each.change) for each in store.diff(saved.rootfs, saved)]
        stored = saved.layers[0].path / "d"

        assert [(b"d/f", Change.ADDED)] == found
        assert (uid, b"y") == ((stored / "f").stat().st_uid, os.getxattr(stored, "user.overlay.opaque"))
