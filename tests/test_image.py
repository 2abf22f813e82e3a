"""Importing under a name: which names, what replaces what, what is known afterwards, and what a crash leaves."""

from __future__ import annotations

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minisandbox.errors import RootfsError, UsageError
from minisandbox.images import (
    Progress,
    StateDir,
    build_rootfs,
    find_layer,
    import_image,
    inspect_rootfs,
    list_rootfs,
    read_manifest,
    verify,
)
from minisandbox.images.image import RootfsFacts
from tests.archives import Layout, TestImage, directory, file, pack, write_layout
from tests.crash import crash_at_each_step, start_child

BASE = pack(directory("d"), *(file(f"d/{number}", b"%d" % number) for number in range(5)))
TOP = pack(file("d/.wh.1"), file("d/2", b"new"), file("e/f"))

IMPORT = "import_image(StateDir.open(Path(sys.argv[{0}])), Path(sys.argv[{0} + 1]), 'image')"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A tar archive of a few files."""
    (tmp_path / "a.tar").write_bytes(BASE)
    return tmp_path / "a.tar"


@pytest.mark.requires_root
def test_imported_rootfs_is_there_by_its_name(state: StateDir, archive: Path) -> None:
    """Like one of a recipe."""
    rootfs = import_image(state, archive, "mine")

    assert rootfs == build_rootfs(state, "mine")
    assert [rootfs] == list_rootfs(state)
    verify(rootfs.layers[0])


@pytest.mark.requires_root
def test_import_is_not_built_again(state: StateDir, archive: Path) -> None:
    """There is no recipe that says how."""
    import_image(state, archive, "mine")

    with pytest.raises(UsageError, match="mine was imported, so there is no recipe of it; import it again"):
        build_rootfs(state, "mine", rebuild=True)


@pytest.mark.requires_root
@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 65, "host", "debian", "mine.toml", "a\0", "ä"])
def test_name_that_cannot_be_is_refused(state: StateDir, archive: Path, name: str) -> None:
    """A path, the name of a recipe, or what would be taken for one."""
    with pytest.raises(UsageError, match="name"):
        import_image(state, archive, name)

    assert [] == os.listdir(state.rootfs)


@pytest.mark.requires_root
def test_rootfs_of_a_recipe_is_not_replaced(state: StateDir, archive: Path, tmp_path: Path) -> None:
    """Whoever uses it by its recipe would get something else."""
    (tmp_path / "mine.toml").write_text('format = 1\nkind = "tar"\npath = "a.tar"\n')
    built = build_rootfs(state, tmp_path / "mine.toml")

    with pytest.raises(UsageError, match="belongs to a rootfs that was built from a recipe"):
        import_image(state, archive, built.name)


@pytest.mark.requires_root
def test_new_import_takes_the_name_of_the_old_one(state: StateDir, archive: Path) -> None:
    """But not when it fails."""
    first = import_image(state, archive, "mine")
    archive.write_bytes(BASE[:2000])
    with pytest.raises(RootfsError, match="ends too early"):
        import_image(state, archive, "mine")
    kept = build_rootfs(state, "mine")
    archive.write_bytes(pack(file("new")))
    second = import_image(state, archive, "mine")

    assert first == kept
    assert [second] == list_rootfs(state)
    assert first.digest != second.digest


@pytest.mark.requires_root
def test_damaged_import_is_mended_by_importing_anew(state: StateDir, archive: Path) -> None:
    """`rebuild` unpacks it whatever is there."""
    (layer,) = import_image(state, archive, "mine").layers
    (layer.path / "d/1").write_bytes(b"damage")
    import_image(state, archive, "mine")
    with pytest.raises(RootfsError, match="damaged"):
        verify(layer)

    import_image(state, archive, "mine", rebuild=True)

    verify(layer)


@pytest.mark.requires_root
def test_import_whose_layers_are_gone_says_what_to_import(state: StateDir, archive: Path) -> None:
    """And that helps."""
    (layer,) = import_image(state, archive, "mine").layers
    subprocess.run(["rm", "-r", layer.path], check=True)

    for call in (build_rootfs, inspect_rootfs):
        with pytest.raises(RootfsError, match=r"its layers are gone; .*import"):
            call(state, "mine")
    assert find_layer(state, import_image(state, archive, "mine").layers[0].digest)


@pytest.mark.requires_root
def test_reference_is_for_images_alone(state: StateDir, archive: Path, tmp_path: Path) -> None:
    """A tar archive has no tags."""
    for path in (archive, tmp_path):
        with pytest.raises(UsageError, match="is no image with tags and digests"):
            import_image(state, path, "mine", reference="v1")


@pytest.mark.requires_root
def test_tree_that_only_looks_like_an_image_is_a_tree(state: StateDir, tmp_path: Path) -> None:
    """A root file system may have a manifest.json of its own."""
    (tmp_path / "a.tar").write_bytes(pack(file("manifest.json", b"[]"), file("bin/sh")))
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text("{}")

    for path in ("a.tar", "web"):
        (layer,) = import_image(state, tmp_path / path, "mine").layers
        assert (layer.path / "manifest.json").exists()


@pytest.mark.requires_root
def test_everything_about_a_rootfs_is_told(state: StateDir, tmp_path: Path) -> None:
    """Digests, sizes, environment, what was shared and what was left out."""
    layout = write_layout(tmp_path / "one", BASE, TOP)
    write_layout(tmp_path / "two", BASE)
    one = import_image(state, tmp_path / "one", "one")
    import_image(state, tmp_path / "two", "two")
    facts = inspect_rootfs(state, "one")

    assert (one.digest, one.env, one.binds) == (facts.digest, facts.env, facts.binds)
    assert [layer.digest for layer in one.layers] == [layer.digest for layer in facts.layers]
    assert [(6, 3), (7, 5)] == [(layer.files, layer.content_bytes) for layer in facts.layers]
    assert [(), ("two",)] == [layer.shared_with for layer in facts.layers]
    assert (8, 5) == (facts.content_bytes, facts.shared_bytes)
    assert facts.image is not None
    assert layout.manifests[0]["digest"] == facts.image.digest


@pytest.mark.requires_root
def test_facts_of_a_recipe_s_rootfs_are_told_too(state: StateDir) -> None:
    """With the host directories that it shows."""
    rootfs = build_rootfs(state, "host")
    facts = inspect_rootfs(state, "host")

    assert (None, rootfs.binds, None) == (facts.imported_from, facts.binds, facts.image)
    assert read_manifest(rootfs.layers[0]).files == facts.layers[0].files
    assert RootfsFacts is type(facts)


@pytest.mark.parametrize("name", ["missing", "", "../state", "a\0b"])
def test_facts_of_nothing_are_an_error_of_the_caller(state: StateDir, name: str) -> None:
    """Whatever is asked for."""
    with pytest.raises(UsageError, match="there is no rootfs"):
        inspect_rootfs(state, name)


@pytest.mark.requires_root
def test_progress_is_told_step_by_step(state: StateDir, tmp_path: Path) -> None:
    """How much there is, and that it is done."""
    (tmp_path / "big.tar").write_bytes(pack(*(file(f"{number}", bytes(1000)) for number in range(5_000))))
    told: list[Progress] = []

    import_image(state, tmp_path / "big.tar", "big", report=told.append)

    assert {"unpacking big.tar"} == {progress.step for progress in told}
    assert {(tmp_path / "big.tar").stat().st_size} == {progress.total_bytes for progress in told}
    assert told == sorted(told, key=lambda progress: (progress.files, progress.done_bytes))
    assert 0 < told[len(told) // 2].files <= 5_000


@pytest.mark.requires_root
def test_what_an_ordinary_user_imports_is_his() -> None:
    """Whoever owned it in the archive: nothing of it is given to anybody else."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        place.chmod(0o777)
        (place / "a.tar").write_bytes(pack(file("etc/its", b"1", uid=7, gid=8)))
        os.seteuid(65534)
        try:
            imported = import_image(StateDir.open(place / "state"), place / "a.tar", "mine")
        finally:
            os.seteuid(0)
        owners = {path.lstat().st_uid for layer in imported.layers for path in layer.path.rglob("*")}

    assert {65534} == owners


@pytest.mark.slow
@pytest.mark.requires_root
@pytest.mark.parametrize("make", ["image", "tar"])
def test_import_killed_at_any_step_leaves_nothing_half(state: StateDir, tmp_path: Path, make: str) -> None:
    """After the next open there is the whole rootfs or none, no layer that is not whole, and nothing else."""
    write_layout(tmp_path / "image", BASE, TOP)
    (tmp_path / "tar").write_bytes(BASE)
    steps = 0
    # Its last step before the end is the removal of its scratch directory.
    moves = frozenset({"os.mkdir", "os.rename", "os.rmdir", "os.link", "os.symlink"})
    for _ in crash_at_each_step(IMPORT.format(2), str(state.path), str(tmp_path / make), steps=moves):
        steps += 1
        StateDir.open(state.path)
        assert [] == os.listdir(state.path / "tmp")
        for rootfs in list_rootfs(state):
            for layer in rootfs.layers:
                verify(layer)
        for name in os.listdir(state.layers):
            layer_found = find_layer(state, f"sha256:{name.removesuffix('.json')}")
            if layer_found is not None:
                verify(layer_found)

    assert steps >= 8
    for layer in build_rootfs(state, "image").layers:
        verify(layer)


@pytest.mark.requires_root
def test_imports_at_once_of_one_image_are_one(state: StateDir, tmp_path: Path) -> None:
    """Threads and processes: one unpacks, the others wait for it and take what it made."""
    write_layout(tmp_path / "image", BASE, TOP)
    code = "input(); print(" + IMPORT.format(1) + ".digest)"
    children = [start_child(code, str(state.path), str(tmp_path / "image")) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(child.communicate, "\n") for child in children]
        made = {r.digest for r in pool.map(lambda _: import_image(state, tmp_path / "image", "image"), range(4))}
    made |= {future.result()[0].strip() for future in waiting}

    assert {build_rootfs(state, "image").digest} == made
    assert 4 == len(os.listdir(state.layers))
    assert [] == os.listdir(state.path / "tmp")


@pytest.mark.requires_root
def test_images_of_the_same_layers_at_once_share_them(state: StateDir, tmp_path: Path) -> None:
    """Whoever is first."""
    for number in range(4):
        layout = Layout(tmp_path / str(number))
        layout.add(TestImage((BASE, TOP), env=(f"N={number}",)))
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: import_image(state, tmp_path / str(n), f"image{n}"), range(4)))

    assert 1 == len({rootfs.layers for rootfs in made})
    assert 4 == len({rootfs.digest for rootfs in made})
