"""Removing what nobody uses: never a layer that a rootfs names, a sandbox has, or a builder is about to name."""

from __future__ import annotations

import fcntl
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from minisandbox import Supervisor, open_supervisor
from minisandbox.errors import StateError, UsageError
from minisandbox.images import (
    Layer,
    Removed,
    Rootfs,
    StateDir,
    build_rootfs,
    find_layer,
    garbage,
    gc,
    hold_layer,
    import_image,
    list_rootfs,
    remove_rootfs,
    store_layer,
    verify,
)
from minisandbox.images.lock import take_lock_if_free
from tests.archives import file, pack, write_layout
from tests.crash import crash_at_each_step, start_child

BASE, TOP, OTHER = pack(file("base", b"base")), pack(file("top", b"t")), pack(file("other", b"other"))


@pytest.fixture
def one(state: StateDir, tmp_path: Path) -> Rootfs:
    """A rootfs of two layers, the lower of which is that of `two` as well."""
    write_layout(tmp_path / "one", BASE, TOP)
    return import_image(state, tmp_path / "one", "one")


@pytest.fixture
def two(state: StateDir, one: Rootfs, tmp_path: Path) -> Rootfs:
    """Another rootfs."""
    write_layout(tmp_path / "two", BASE, OTHER)
    return import_image(state, tmp_path / "two", "two")


def layer_names(state: StateDir) -> set[str]:
    """Return the names of all that is stored of layers."""
    return set(os.listdir(state.layers))


def expected_names(*rootfs: Rootfs) -> set[str]:
    """Return the names of what these need."""
    names = {layer.path.name for each in rootfs for layer in each.layers}
    return names | {f"{name}.json" for name in names}


def test_removed_rootfs_is_forgotten_and_its_layers_stay(state: StateDir, one: Rootfs, two: Rootfs) -> None:
    """Until they are collected; nothing else of it is left."""
    remove_rootfs(state, "one")

    assert [two] == list_rootfs(state)
    assert {"two.json", "two.lock"} == set(os.listdir(state.rootfs))
    assert expected_names(one, two) == layer_names(state)


@pytest.mark.parametrize("name", ["missing", "", "..", "one.json", "../rootfs/one", "a\0"])
def test_only_what_is_there_can_be_removed(state: StateDir, one: Rootfs, name: str) -> None:
    """A name is never a path."""
    with pytest.raises(UsageError, match="there is no rootfs"):
        remove_rootfs(state, name)

    assert [one] == list_rootfs(state)


def test_layers_that_no_rootfs_names_are_removed(state: StateDir, one: Rootfs, two: Rootfs) -> None:
    """A shared one stays as long as one of those that share it."""
    nothing = gc(state)
    remove_rootfs(state, "one")
    first = gc(state)
    remove_rootfs(state, "two")
    second = gc(state)

    assert [] == nothing
    assert [Removed(one.layers[0].digest, 1)] == first
    assert {layer.digest for layer in two.layers} == {removed.digest for removed in second}
    assert set() == layer_names(state)
    assert [] == os.listdir(state.path / "tmp")


def test_rootfs_that_is_left_is_whole(state: StateDir, one: Rootfs, two: Rootfs) -> None:
    """And one of a recipe with it."""
    host = build_rootfs(state, "host")
    remove_rootfs(state, "one")
    gc(state)

    for layer in (*two.layers, *host.layers):
        verify(layer)
    assert expected_names(two, host) == layer_names(state)


def test_replaced_rootfs_frees_its_layers(state: StateDir, one: Rootfs, tmp_path: Path) -> None:
    """The name has another one now."""
    (tmp_path / "a.tar").write_bytes(OTHER)
    new = import_image(state, tmp_path / "a.tar", "one")
    gc(state)

    assert expected_names(new) == layer_names(state)


def test_halves_of_layers_are_removed_too(state: StateDir, one: Rootfs) -> None:
    """A tree without its sidecar, a sidecar without its tree; what has no name of a layer is left alone."""
    lone = store_layer(state, lambda top: (top / "x").touch())
    shutil.rmtree(lone.path)
    (state.layers / ("0" * 64)).mkdir()
    (state.layers / "notes").touch()

    assert {lone.digest, "sha256:" + "0" * 64} == {removed.digest for removed in gc(state)}
    assert expected_names(one) | {"notes"} == layer_names(state)


def test_damaged_manifest_stops_the_collection(state: StateDir, one: Rootfs, two: Rootfs) -> None:
    """What it uses is not known then."""
    (state.rootfs / "one.json").write_text("{")

    with pytest.raises(StateError, match="is damaged"):
        gc(state)
    assert expected_names(one, two) == layer_names(state)


@pytest.mark.parametrize("defended", [True, False])
async def test_layers_of_an_open_sandbox_are_kept(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """As long as the supervisor may mount them again. Without looking for its lock they would be gone."""
    state = StateDir.open(tmp_path / "state")
    if not defended:
        monkeypatch.setattr(garbage, "take_lock_if_free", lambda path: os.open(path, os.O_RDONLY))
    async with open_supervisor(state_dir=state.path) as supervisor:
        rootfs = build_rootfs(state, "host")
        async with supervisor.open_sandbox(rootfs="host") as sandbox:
            remove_rootfs(state, "host")
            removed = gc(state)
            seen = defended and (await sandbox.run("ls /etc/passwd")).ok
        kept = find_layer(state, rootfs.layers[0].digest) is not None
        removed_later = gc(state)
    removed_at_last = gc(state)

    assert (defended, defended) == (kept, seen)
    assert ([], []) == (removed, removed_later) or not defended
    assert 1 == len([*removed, *removed_later, *removed_at_last])


async def test_sandbox_on_a_layer_that_was_removed_says_so(supervisor: Supervisor, tmp_path: Path) -> None:
    """A rootfs that the caller still has in hand."""
    (tmp_path / "a.tar").write_bytes(OTHER)
    rootfs = import_image(supervisor.state, tmp_path / "a.tar", "to-be-removed")
    remove_rootfs(supervisor.state, "to-be-removed")
    gc(supervisor.state)

    with pytest.raises(
        StateError, match=rf"the layer {rootfs.layers[0].digest} was removed meanwhile; make its rootfs"
    ):
        async with supervisor.open_sandbox(rootfs=rootfs):
            pass


def test_layer_is_held_by_other_processes_too(state: StateDir, one: Rootfs) -> None:
    """Until they end, however they do."""
    remove_rootfs(state, "one")
    code = (
        "state = StateDir.open(Path(sys.argv[1])); layer = find_layer(state, sys.argv[2]);"
        "fd = hold_layer(layer); print(flush=True); input()"
    )
    with start_child(code, str(state.path), one.layers[0].digest) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while_held = {removed.digest for removed in gc(state)}
        child.kill()
    after = {removed.digest for removed in gc(state)}

    assert ({one.layers[1].digest}, {one.layers[0].digest}) == (while_held, after)


def test_hold_that_comes_too_late_is_noticed(state: StateDir, one: Rootfs) -> None:
    """Whoever waits for the lock while the layer is moved away gets an error, not the layer."""
    layer = one.layers[0]
    lock_fd = take_lock_if_free(layer.path)
    assert lock_fd is not None
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold_layer, layer)
        inode = f":{layer.path.stat().st_ino} "
        while not any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()):
            assert not holding.done()  # it waits for the lock now, as proc_locks(5) shows
        os.rename(layer.path, state.path / "tmp" / "away")
        layer.path.mkdir()
        os.close(lock_fd)
        with pytest.raises(StateError, match="was removed meanwhile"):
            os.close(holding.result())
    shutil.rmtree(state.path / "tmp" / "away")


def test_layer_between_its_storing_and_its_manifest_is_kept(state: StateDir, tmp_path: Path) -> None:
    """A collection waits for those who build, and they do not wait for it."""
    write_layout(tmp_path / "one", BASE, TOP)
    started: list[Future[list[Removed]]] = []

    def collect(_: object) -> None:
        if not started:
            started.append(pool.submit(gc, state))

    with ThreadPoolExecutor(1) as pool:
        rootfs = import_image(state, tmp_path / "one", "one", report=collect)
        removed = started[0].result()

    assert [] == removed
    assert expected_names(rootfs) == layer_names(state)


def test_collection_excludes_builders_by_its_lock(state: StateDir, one: Rootfs) -> None:
    """That is what the test before relies on."""
    remove_rootfs(state, "one")
    shared_fd = take_lock_if_free(state.rootfs, fcntl.LOCK_SH)
    assert shared_fd is not None
    with ThreadPoolExecutor(1) as pool:
        collecting = pool.submit(gc, state)
        # A builder that begins now is let in; the collection is not.
        second_fd = take_lock_if_free(state.rootfs, fcntl.LOCK_SH)
        done = collecting.done()
        for fd in (shared_fd, second_fd):
            assert fd is not None
            os.close(fd)
        removed = collecting.result()

    assert (False, 2) == (done, len(removed))


@pytest.mark.slow
def test_collection_killed_at_any_step_can_be_repeated(state: StateDir, tmp_path: Path) -> None:
    """Whatever was half removed is gone after the next one, and what is used is whole."""
    write_layout(tmp_path / "one", BASE, TOP)
    kept = build_rootfs(state, "host")
    code = "state = StateDir.open(Path(sys.argv[2])); gc(state)"
    setup = "import_image(state, Path(sys.argv[3]), 'one'); remove_rootfs(state, 'one')"
    steps = 0
    for _ in crash_at_each_step(code.replace("gc(", f"{setup}; gc("), str(state.path), str(tmp_path / "one")):
        steps += 1
        StateDir.open(state.path)
        if (state.rootfs / "one.json").exists():
            remove_rootfs(state, "one")
        gc(state)
        assert expected_names(kept) == layer_names(state)
        assert [] == os.listdir(state.path / "tmp")

    assert steps >= 10
    verify(kept.layers[0])


def test_removed_and_built_at_once_is_there_or_not(state: StateDir, tmp_path: Path) -> None:
    """Never in part, and whoever builds last has it."""
    write_layout(tmp_path / "one", BASE, TOP)

    def turn(number: int) -> None:
        import_image(state, tmp_path / "one", f"one{number % 2}")
        try:
            remove_rootfs(state, f"one{number % 2}")
        except UsageError:
            pass  # another one was faster
        gc(state)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(turn, range(40)))
    rootfs = import_image(state, tmp_path / "one", "one")

    for layer in rootfs.layers:
        verify(layer)
    gc(state)
    assert expected_names(rootfs) <= layer_names(state)
    assert isinstance(rootfs.layers[0], Layer)
