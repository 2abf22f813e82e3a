"""The state directory on the real file system: what it refuses, what survives a crash, who counts as alive."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minisandbox.errors import StateError, UsageError
from minisandbox.images import StateDir, tree
from tests.crash import crash_at_each_step, start_child
from tests.disks import small_disk

DEPTH = 1500
"""Deeper than Python recurses, and than a path may be long."""


@pytest.fixture
def full_soon(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    with small_disk(tmp_path / "disk", "256k") as place:
        yield place


def test_new_state_directory_has_its_layout_and_modes(tmp_path: Path) -> None:
    """Layers, locks and unfinished work are the owner's alone, whatever the umask is."""
    before = os.umask(0o077)
    try:
        StateDir.open(tmp_path / "a" / "state")
    finally:
        os.umask(before)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*") if path.is_dir()}
    assert {
        "state": 0o755,
        "layers": 0o700,
        "rootfs": 0o755,
        "instances": 0o700,
        "tmp": 0o700,
        "snapshots": 0o700,
    } == modes


def test_state_directory_keeps_its_identity(state: StateDir) -> None:
    """Opening it again gives the same."""
    again = StateDir.open(state.path)

    assert state == again


def test_state_directory_may_be_a_link_to_a_larger_disk(tmp_path: Path) -> None:
    """A symbolic link to a directory is followed once, when it is opened."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")

    opened = StateDir.open(tmp_path / "link")

    assert tmp_path / "disk" == opened.path


def test_first_opens_at_once_agree(tmp_path: Path) -> None:
    """Whoever comes first makes the directory, the others use it."""
    with ThreadPoolExecutor(8) as pool:
        opened = set(pool.map(StateDir.open, [tmp_path / "state"] * 8))

    assert 1 == len(opened)


@pytest.mark.slow
def test_first_open_killed_at_any_step_can_be_repeated(tmp_path: Path) -> None:
    """However far it came, the next open succeeds and finds nothing half done."""
    steps = 0
    for step in crash_at_each_step("StateDir.open(Path(sys.argv[2]) / sys.argv[1])", str(tmp_path)):
        state = StateDir.open(tmp_path / str(step))
        steps += 1
        assert [] == os.listdir(state.path / "tmp")
        assert StateDir.open(state.path) == state

    assert steps >= 6


def test_format_of_another_version_is_refused_with_advice(state: StateDir) -> None:
    """The message says both versions and what to do, and nothing is changed."""
    (state.path / "format").write_text('{"format": 2, "id": "00000000", "new": true}')

    with pytest.raises(StateError, match=r"has format 2 and this version reads format 1; use the version that made it"):
        StateDir.open(state.path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "id": "../x"}', "\xff"])
def test_damaged_format_is_refused(state: StateDir, content: str) -> None:
    """A format file that cannot be read is an error, not a new directory."""
    (state.path / "format").write_text(content, encoding="latin-1")

    with pytest.raises(StateError, match="is damaged"):
        StateDir.open(state.path)


def test_directory_of_somebody_else_s_files_is_refused(tmp_path: Path) -> None:
    """A directory that holds other files is left as it is."""
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(StateError, match="holds other files"):
        StateDir.open(tmp_path)

    assert ["thesis.tex"] == os.listdir(tmp_path)


def test_directory_that_others_may_write_is_refused(state: StateDir) -> None:
    """Another user could replace a layer there."""
    state.path.chmod(0o775)

    with pytest.raises(StateError, match="chmod go-w"):
        StateDir.open(state.path)


@pytest.mark.requires_root
def test_directory_of_another_user_is_refused(state: StateDir) -> None:
    """Root does not trust the state of a user, who could replace a layer."""
    os.chown(state.path, 1000, 1000)

    with pytest.raises(StateError, match="belongs to uid 1000"):
        StateDir.open(state.path)


@pytest.mark.parametrize("path", ["state", "/tmp/../state", "/tmp/state\0"])
def test_path_that_is_not_absolute_and_short_is_refused(path: str) -> None:
    """No path is guessed at."""
    with pytest.raises(UsageError, match="state directory"):
        StateDir.open(Path(path))


@pytest.mark.requires_root
def test_ordinary_user_must_name_a_directory() -> None:
    """The default is in the home of a user, who may have none."""
    os.seteuid(65534)
    try:
        with pytest.raises(UsageError, match="give one of your own"):
            StateDir.open()
    finally:
        os.seteuid(0)


def test_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    """The message names the error and what to do."""
    (tmp_path / "state").touch()

    with pytest.raises(StateError, match=r"\[EEXIST\].*choose another state directory"):
        StateDir.open(tmp_path / "state")


def test_reader_of_a_file_that_is_replaced_keeps_the_old_one(state: StateDir) -> None:
    """At no moment is a file there that is neither the old nor the new."""
    state.write_file(state.rootfs / "a.json", b"old")
    with open(state.rootfs / "a.json", "rb") as reader:
        state.write_file(state.rootfs / "a.json", b"new")
        kept = reader.read()

    assert (b"old", b"new") == (kept, (state.rootfs / "a.json").read_bytes())


@pytest.mark.requires_root
def test_full_disk_is_reported_and_leaves_the_old_file(full_soon: Path) -> None:
    """A file that does not fit leaves the one before in place and nothing beside it."""
    state = StateDir.open(full_soon / "state")
    state.write_file(state.rootfs / "a.json", b"old")

    with pytest.raises(
        StateError, match=r"cannot write .*a.json: No space left on device \[ENOSPC\].*free some"
    ) as caught:
        state.write_file(state.rootfs / "a.json", bytes(1 << 20))

    assert isinstance(caught.value.__cause__, OSError)
    assert errno.ENOSPC == caught.value.__cause__.errno
    assert b"old" == (state.rootfs / "a.json").read_bytes()
    assert [] == os.listdir(state.path / "tmp")


@pytest.mark.requires_root
def test_read_only_disk_is_reported(full_soon: Path) -> None:
    """Writing to a read-only file system is an error that says so."""
    state = StateDir.open(full_soon / "state")
    subprocess.run(["mount", "-o", "remount,ro", full_soon], check=True)

    with pytest.raises(StateError, match=r"\[EROFS\].*remount"):
        state.write_file(state.rootfs / "a.json", b"new")
    with pytest.raises(StateError, match=r"\[EROFS\].*remount"):
        state.open_instance()
    with pytest.raises(StateError, match=r"\[EROFS\].*remount"):
        StateDir.open(full_soon / "other")


def test_instance_lives_until_it_is_closed(state: StateDir) -> None:
    """Its lock proves it, also to those who open the directory meanwhile, and its file goes with it."""
    with state.open_instance() as instance:
        alive = state.is_alive(instance.id)
        alive_to_others = StateDir.open(state.path).is_alive(instance.id)

    assert (True, True) == (alive, alive_to_others)
    assert not state.is_alive(instance.id)
    assert -1 == instance.fd
    assert [] == os.listdir(state.path / "instances")


def test_instance_lives_as_long_as_a_child_shares_its_lock(state: StateDir) -> None:
    """Closing our share does not end it while a child has one."""
    instance = state.open_instance()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[instance.fd]) as child:
        instance.close()
        StateDir.open(state.path)
        alive_with_child = state.is_alive(instance.id)
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    alive_after = state.is_alive(instance.id)
    StateDir.open(state.path)

    assert (True, False) == (alive_with_child, alive_after)
    assert [] == os.listdir(state.path / "instances")


def test_instance_of_a_killed_process_is_dead_and_removed_at_the_next_open(state: StateDir) -> None:
    """SIGKILL takes the lock with it."""
    code = "lock = StateDir.open(Path(sys.argv[1])).open_instance(); print(lock.id, flush=True); input()"
    with start_child(code, str(state.path)) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        alive_before = state.is_alive(name)
        child.kill()
        child.wait()
    alive_after = state.is_alive(name)
    StateDir.open(state.path)

    assert (True, False) == (alive_before, alive_after)
    assert [] == os.listdir(state.path / "instances")


@pytest.mark.parametrize("name", ["", "..", "x", "0" * 16, "../format"])
def test_instance_that_is_not_of_this_directory_counts_as_alive(state: StateDir, name: str) -> None:
    """Only what is proved dead may be swept, and another directory's locks prove nothing here."""
    assert state.is_alive(name)


def test_unfinished_work_of_the_living_is_kept(state: StateDir) -> None:
    """However old it is, since its lock is held."""
    with state.open_scratch() as scratch:
        (scratch / "file").touch()
        os.utime(scratch, (0, 0))
        StateDir.open(state.path)

        assert (scratch / "file").exists()

    assert not scratch.exists()


def test_unfinished_work_of_the_dead_is_removed_at_the_next_open(state: StateDir) -> None:
    """However young it is, and however deep what it holds."""
    code = (
        "with StateDir.open(Path(sys.argv[1])).open_scratch() as scratch:\n"
        "    import os; os.chdir(scratch)\n"
        f"    for _ in range({DEPTH}): os.mkdir('x' * 200); os.chdir('x' * 200)\n"
        "    print(flush=True); input()"
    )
    with start_child(code, str(state.path)) as child:
        assert child.stdout is not None
        child.stdout.readline()
        there_before = os.listdir(state.path / "tmp")
        child.kill()
        child.wait()
    try:
        StateDir.open(state.path)
        there_after = os.listdir(state.path / "tmp")
    finally:
        # pytest cannot remove a tree this deep, should it still be there.
        subprocess.run(["rm", "-rf", state.path], check=True)

    assert (1, []) == (len(there_before), there_after)


def test_removal_follows_no_link(tmp_path: Path) -> None:
    """A link in a tree is removed, and what it leads to stays."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree" / "link").symlink_to("../kept")

    tree.remove_tree(tmp_path / "tree")

    assert ["kept"] == os.listdir(tmp_path)
    assert (tmp_path / "kept" / "file").exists()


@pytest.mark.requires_root
@pytest.mark.parametrize("defended", [True, False])
def test_removal_enters_no_mount(
    state: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """What a dead builder left mounted is not emptied. Without telling mounts apart it would be."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    inner = state.path / "tmp" / ("0" * 16) / "mounted"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "--bind", precious, inner], check=True)
    if not defended:
        monkeypatch.setattr(tree, "mount_id", lambda fd: 0)
    try:
        # Undefended it ends with EBUSY, when the mount point itself is removed.
        with pytest.raises(StateError, match="EXDEV.*unmount" if defended else "EBUSY"):
            StateDir.open(state.path)
    finally:
        subprocess.run(["umount", inner], check=True)

    assert defended is (precious / "file").exists()
