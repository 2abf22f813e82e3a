"""Images: layouts and archives of every make, which one is meant, what is shared or damaged, and one that runs."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minisandbox import Supervisor
from minisandbox.errors import HostError, RootfsError, UsageError
from minisandbox.images import Rootfs, StateDir, build_rootfs, import_image, inspect_rootfs, oci, oci_store, verify
from minisandbox.images.busybox import PLACES
from minisandbox.images.recipe import BASE_ENV
from minisandbox.kernel.protocol import LAYERS_MAX
from tests.archives import (
    Compress,
    Item,
    Layout,
    TestImage,
    digest_of,
    directory,
    file,
    pack,
    save,
    squeeze,
    symlink,
    write_layout,
)
from tests.test_compression import HAS_ZSTD
from tests.test_compression import squeeze as squeeze_by

pytestmark = pytest.mark.requires_root

BASE = pack(directory("d"), file("d/base", b"base"))
TOP = pack(file("d/top", b"top"), file("d/.wh.base"))
OTHER = pack(file("other", b"other"))


def files_of(rootfs: Rootfs) -> list[list[str]]:
    """Return the names of all that is no directory, layer by layer, top first."""
    return [
        sorted(str(path.relative_to(layer.path)) for path in layer.path.rglob("*") if not path.is_dir())
        for layer in rootfs.layers
    ]


def as_directory(place: Path, image: TestImage) -> Path:
    """An OCI image layout."""
    write_layout(place / "image", *image.layers)
    return place / "image"


def as_archive(place: Path, image: TestImage) -> Path:
    """An archive of an OCI image layout, as `docker save` writes it today, its members in any order."""
    top = as_directory(place, image)
    saved = [{"Config": "blobs/sha256/missing", "RepoTags": ["v1"], "Layers": []}]
    (top / "manifest.json").write_text(json.dumps(saved))
    paths = sorted(path for path in top.rglob("*") if path.is_file())
    (place / "image.tar").write_bytes(pack(*(file(str(path.relative_to(top)), path.read_bytes()) for path in paths)))
    return place / "image.tar"


def as_old_archive(place: Path, image: TestImage) -> Path:
    """An archive as `docker save` wrote it before."""
    (place / "image.tar").write_bytes(save({"v1": image}))
    return place / "image.tar"


def as_compressed_archive(place: Path, image: TestImage) -> Path:
    """The same by way of gzip(1)."""
    (place / "image.tar.gz").write_bytes(gzip.compress(as_old_archive(place, image).read_bytes()))
    return place / "image.tar.gz"


MAKES = [as_directory, as_archive, as_old_archive, as_compressed_archive]


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_image_of_every_make_is_the_same_rootfs(
    state: StateDir, tmp_path: Path, make: Callable[[Path, TestImage], Path]
) -> None:
    """Its layers, top first, and its environment on top of ours."""
    place = make(tmp_path, TestImage((BASE, TOP), env=("PATH=/bin", "EMPTY=", "A=b=c", "junk")))
    rootfs = import_image(state, place, "image")
    facts = inspect_rootfs(state, "image")

    assert [["d/base", "d/top"], ["d/base"]] == files_of(rootfs)
    assert BASE_ENV | {"PATH": "/bin", **({} if make in MAKES[:2] else {"EMPTY": "", "A": "b=c"})} == rootfs.env
    assert facts.image is not None
    assert ("v1", "/work", ("sh",)) == (facts.image.reference, facts.image.working_dir, facts.image.command)
    assert str(place) == facts.imported_from


COMPRESSIONS: list[Any] = [
    pytest.param(lambda content: content, id="plain"),
    pytest.param(squeeze, id="gzip"),
    pytest.param(
        lambda content: squeeze_by("zstd", content),
        id="zstd",
        marks=pytest.mark.skipif(not HAS_ZSTD, reason="this Python has no module for zstd"),
    ),
]


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_layers_may_be_compressed_in_any_way(state: StateDir, tmp_path: Path, compress: Compress) -> None:
    """What is in them counts."""
    write_layout(tmp_path / "image", BASE, TOP, compress=compress)
    write_layout(tmp_path / "plain", BASE, TOP, compress=lambda content: content)

    assert import_image(state, tmp_path / "image", "a").layers == import_image(state, tmp_path / "plain", "b").layers


def test_images_share_the_layers_that_they_begin_with(state: StateDir, tmp_path: Path) -> None:
    """One directory for both, and so one page cache; the second image does not unpack it again."""
    write_layout(tmp_path / "one", BASE, TOP)
    write_layout(tmp_path / "two", BASE, OTHER)
    steps: list[str] = []
    one = import_image(state, tmp_path / "one", "one")
    two = import_image(state, tmp_path / "two", "two", report=lambda progress: steps.append(progress.step))

    assert one.layers[-1] == two.layers[-1]
    assert 3 == len([name for name in os.listdir(state.layers) if not name.endswith(".json")])
    assert {"unpacking layer 2 of 2"} == set(steps)
    assert [(), ("two",)] == [layer.shared_with for layer in inspect_rootfs(state, "one").layers]
    assert len("base") == inspect_rootfs(state, "one").shared_bytes


def test_importing_the_same_again_unpacks_nothing(state: StateDir, tmp_path: Path) -> None:
    """Under whichever name."""
    write_layout(tmp_path / "image", BASE, TOP)
    one = import_image(state, tmp_path / "image", "one")
    steps: list[str] = []
    for name in ("one", "two"):
        again = import_image(state, tmp_path / "image", name, report=lambda progress: steps.append(progress.step))
        assert (one.layers, one.digest) == (again.layers, again.digest)

    assert [] == steps


def test_layer_in_another_place_of_the_chain_is_unpacked_for_it(state: StateDir, tmp_path: Path) -> None:
    """Directories that it does not describe may be others there."""
    write_layout(tmp_path / "one", pack(directory("d", 0o700)), OTHER, TOP)
    write_layout(tmp_path / "two", pack(directory("d", 0o711)), OTHER, TOP)
    tops = [import_image(state, tmp_path / name, name).layers[0] for name in ("one", "two")]

    assert [0o40700, 0o40711] == [(top.path / "d").stat().st_mode for top in tops]


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """A layout of three images, two with tags."""
    layout = Layout(tmp_path / "several")
    layout.add(TestImage((BASE,)), "v1")
    layout.add(TestImage((BASE, TOP)), "docker.io/library/tool:v2")
    layout.add(TestImage((OTHER,)))
    return tmp_path / "several"


@pytest.mark.parametrize(
    ("reference", "layers"),
    [("v1", 1), ("docker.io/library/tool:v2", 2), ("tool:v2", 2), ("digest", 1)],
)
def test_image_is_chosen_by_tag_or_digest(state: StateDir, several: Path, reference: str, layers: int) -> None:
    """The name without the default registry will do."""
    if reference == "digest":
        reference = json.loads((several / "index.json").read_text())["manifests"][2]["digest"]

    assert layers == len(import_image(state, several, "image", reference=reference).layers)


@pytest.mark.parametrize("reference", [None, "v3", "sha256:" + "0" * 64, "", "tool"])
def test_image_that_is_not_there_lists_those_that_are(state: StateDir, several: Path, reference: str | None) -> None:
    """As does one that is not chosen where there are several."""
    with pytest.raises(
        UsageError, match=r"choose by tag or digest, there are: v1, docker\.io/library/tool:v2, sha256:"
    ):
        import_image(state, several, "image", reference=reference)


def test_old_archive_of_several_images_needs_a_tag(state: StateDir, tmp_path: Path) -> None:
    """A name without a tag means the latest, and layers that occur twice are links."""
    images = {"tool:latest": TestImage((BASE, TOP)), "tool:v1": TestImage((BASE,), env=("V=1",))}
    (tmp_path / "a.tar").write_bytes(save(images))
    latest = import_image(state, tmp_path / "a.tar", "latest", reference="tool")
    first = import_image(state, tmp_path / "a.tar", "first", reference="tool:v1")

    with pytest.raises(
        UsageError, match="more than one image; choose by tag or digest, there are: tool:latest, tool:v1"
    ):
        import_image(state, tmp_path / "a.tar", "image")
    assert "1" == first.env["V"]
    assert latest.layers[-1:] == first.layers


def test_image_for_several_processors_gives_that_of_this_host(state: StateDir, tmp_path: Path) -> None:
    """The index in the index says which is which; attestations are no image."""
    layout = Layout(tmp_path / "image")
    ours = TestImage((BASE,))
    descriptors = [
        {
            **layout.manifest(TestImage((OTHER,), architecture="s390x")),
            "platform": {"os": "linux", "architecture": "s390x"},
        },
        {**layout.manifest(ours), "platform": {"os": "linux", "architecture": ours.architecture}},
        {**layout.manifest(TestImage((OTHER,))), "platform": {"os": "unknown", "architecture": "unknown"}},
    ]
    index = layout.blob(json.dumps({"schemaVersion": 2, "manifests": descriptors}).encode(), "index.v1+json")
    layout.manifests = [index]
    layout.write_index()
    assert [["d/base"]] == files_of(import_image(state, layout.top, "image"))

    layout.manifests = [layout.blob(json.dumps({"manifests": descriptors[:1]}).encode(), "index.v1+json")]
    layout.write_index()
    with pytest.raises(HostError, match=rf"this image is for linux/s390x; this host is linux/{ours.architecture}"):
        import_image(state, layout.top, "image")


@pytest.mark.parametrize("image", [TestImage((BASE,), architecture="s390x"), TestImage((BASE,), os="windows")])
def test_image_for_another_machine_is_refused(state: StateDir, tmp_path: Path, image: TestImage) -> None:
    """Its programs would not run."""
    layout = Layout(tmp_path / "image")
    layout.add(image)

    with pytest.raises(HostError, match=f"this image is for {image.os}/{image.architecture}; this host is linux/"):
        import_image(state, layout.top, "image")


def test_long_chain_is_merged_into_fewer_layers(state: StateDir, tmp_path: Path) -> None:
    """The lower ones stay as they are, to be shared; with room for what comes on top, the launcher takes them all."""
    layers = [pack(file("n", b"%d" % number), file(f"f{number}"), file(f".wh.f{number - 3}")) for number in range(60)]
    write_layout(tmp_path / "long", *layers)
    write_layout(tmp_path / "short", *layers[:20])
    long = import_image(state, tmp_path / "long", "long")
    short = import_image(state, tmp_path / "short", "short")

    assert oci.LAYERS_MAX == len(long.layers) <= LAYERS_MAX - 8
    assert short.layers == long.layers[-20:]
    assert b"59" == (long.layers[0].path / "n").read_bytes()
    assert {f"f{number}" for number in (57, 58, 59)} == {
        path.name for path in long.layers[0].path.glob("f*") if path.is_file()
    }


def damage(path: Path) -> None:
    """Change one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Cut a file in half."""
    os.truncate(path, path.stat().st_size // 2)


def swap(path: Path) -> None:
    """Put another layer in its place."""
    path.write_bytes(squeeze(OTHER))


def link(path: Path) -> None:
    """Put a link to a file of the host in its place."""
    path.unlink()
    path.symlink_to("/etc/passwd")


def fifo(path: Path) -> None:
    """Put a FIFO in its place, which nobody writes."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("what", ["layer", "config", "manifest"])
@pytest.mark.parametrize("how", [damage, truncate, swap, link, fifo, Path.unlink], ids=lambda how: how.__name__)
def test_damaged_image_is_refused_by_name(
    state: StateDir, tmp_path: Path, what: str, how: Callable[[Path], None]
) -> None:
    """It says which blob of which image, and nothing is left."""
    layout = write_layout(tmp_path / "image", pack(file("f", os.urandom(10_000))))
    manifest = layout.manifests[0]["digest"]
    content = json.loads(layout.blob_file(manifest).read_bytes())
    digest = {"manifest": manifest, "config": content["config"]["digest"], "layer": content["layers"][0]["digest"]}[
        what
    ]
    how(layout.blob_file(digest))

    with pytest.raises(RootfsError) as caught:
        import_image(state, layout.top, "image")

    assert str(caught.value).startswith(f"{layout.top}: ")
    assert digest.removeprefix("sha256:") in str(caught.value)
    assert [] == [*os.listdir(state.layers), *os.listdir(state.path / "tmp"), *state.rootfs.glob("*.json")]


def test_layer_that_unpacks_to_something_else_is_refused(state: StateDir, tmp_path: Path) -> None:
    """Though its blob is what the manifest says."""
    layout = Layout(tmp_path / "image")
    config = layout.blob(TestImage((BASE,)).config(), "config.v1+json")
    layers = [layout.blob(squeeze(OTHER), "layer.v1.tar+gzip")]
    layout.manifests = [layout.blob(json.dumps({"config": config, "layers": layers}).encode(), "manifest.v1+json")]
    layout.write_index()

    with pytest.raises(RootfsError, match=f"unpacked, its digest is {digest_of(OTHER)} and not {digest_of(BASE)}"):
        import_image(state, layout.top, "image")


def test_layer_of_an_old_archive_is_compared_too(state: StateDir, tmp_path: Path) -> None:
    """There its configuration alone says what it is."""
    archive = bytearray(save({"v1": TestImage((BASE,))}))
    archive[archive.index(b"base", 1024)] ^= 1
    (tmp_path / "a.tar").write_bytes(archive)

    with pytest.raises(RootfsError, match=r"a\.tar: layer [0-9a-f]{64}/layer\.tar: "):
        import_image(state, tmp_path / "a.tar", "image")


WRONG: list[tuple[str, str]] = [
    ('{"manifests": 1}', "index.json is damaged: "),
    ("{", "index.json is damaged: "),
    ("[" * 100_000, "index.json is damaged: "),
    ('{"manifests": [{"digest": "sha256:../../../etc/passwd", "size": 1}]}', "is no digest of a kind that is known"),
    ('{"manifests": [{"digest": "md5:d41d8cd98f00b204e9800998ecf8427e", "size": 1}]}', "is no digest of a kind"),
    (json.dumps({"manifests": [{"digest": "sha256:" + "0" * 64, "size": 1}]}), "cannot be read: No such file"),
    (" " * (5 << 20), "index.json has 5242880 bytes"),
]


@pytest.mark.parametrize(("index", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_index_is_refused_by_name(state: StateDir, tmp_path: Path, index: str, message: str) -> None:
    """And no digest is ever a way out of the directory."""
    layout = write_layout(tmp_path / "image", BASE)
    (layout.top / "index.json").write_text(index)

    with pytest.raises(RootfsError, match=f"^{layout.top}: .*{message}"):
        import_image(state, layout.top, "image")


@pytest.mark.parametrize("defended", [True, False])
@pytest.mark.parametrize("name", ["../canary", "a/../../canary", "missing/.."])
def test_name_in_an_unpacked_archive_is_no_way_out(
    state: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, defended: bool
) -> None:
    """The manifest says where its files are. Taken as it is, that would be a file of the host."""
    (tmp_path / "canary").write_bytes(BASE)
    (tmp_path / "image" / "a").mkdir(parents=True)
    (tmp_path / "image" / "repositories").touch()
    (tmp_path / "image" / "config").write_bytes(TestImage((BASE,)).config())
    (tmp_path / "image" / "manifest.json").write_text(json.dumps([{"Config": "config", "Layers": [name]}]))
    if not defended:
        monkeypatch.setattr(oci_store, "split_path", lambda path: tuple(path.split(b"/")))
    try:
        import_image(state, tmp_path / "image", "image")
    except RootfsError as error:
        assert defended or "missing" in name
        assert '".." in it' in str(error) or not defended
    else:
        assert not defended


def test_layers_and_diff_ids_must_be_as_many(state: StateDir, tmp_path: Path) -> None:
    """A layer that nobody vouches for is not left out silently."""
    layout = Layout(tmp_path / "image")
    config = layout.blob(TestImage((BASE, TOP)).config(), "config.v1+json")
    content = {"config": config, "layers": [layout.blob(BASE, "layer.v1.tar")]}
    layout.manifests = [layout.blob(json.dumps(content).encode(), "manifest.v1+json")]
    layout.write_index()

    with pytest.raises(RootfsError, match="it has 1 layers and 2 diff ids"):
        import_image(state, layout.top, "image")


def test_archive_that_changes_while_it_is_read_is_refused(state: StateDir, tmp_path: Path) -> None:
    """A `docker save` that is not done yet."""
    place = as_old_archive(tmp_path, TestImage((BASE, TOP)))

    def touch(_: object) -> None:
        os.utime(place, ns=(1, 1))

    with pytest.raises(RootfsError, match="changed while it was read"):
        import_image(state, place, "image", report=touch)


def test_entry_of_a_layer_that_is_refused_is_named(state: StateDir, tmp_path: Path) -> None:
    """Image, layer and member."""
    layer = pack(file("f", uid=70_000))
    write_layout(tmp_path / "image", BASE, layer)

    with pytest.raises(RootfsError, match=rf"layer {digest_of(squeeze(layer))}: member 'f': it belongs to uid 70000"):
        import_image(state, tmp_path / "image", "image")
    assert [] == list(state.rootfs.glob("*.json"))


def test_recipe_of_an_image_builds_it(state: StateDir, tmp_path: Path) -> None:
    """Its path is relative to the recipe's file, its environment comes on top, and nothing is built twice."""
    write_layout(tmp_path / "image", BASE, TOP, tag="v1")
    recipe = tmp_path / "mine.toml"
    recipe.write_text('format = 1\nkind = "oci"\npath = "image"\nreference = "v1"\n[env]\nMINE = "1"\n')
    rootfs = build_rootfs(state, recipe)

    assert {"PATH": "/bin", "MINE": "1"} == {name: rootfs.env[name] for name in ("PATH", "MINE")}
    shutil.rmtree(tmp_path / "image" / "blobs")
    with pytest.raises(RootfsError, match="cannot be read: No such file"):
        build_rootfs(state, recipe, rebuild=True)
    assert rootfs.layers[0].path.is_dir()


def busybox_items() -> list[Item]:
    """Return a small Unix."""
    program = next(Path("/", place) for place in PLACES if Path("/", place).is_file()).read_bytes()
    names = "sh find sort id stat cat".split()
    return [file("bin/busybox", program, mode=0o755), *(symlink(f"bin/{name}", "busybox") for name in names)]


@pytest.mark.skipif(not any(Path("/", place).is_file() for place in PLACES), reason="this host has no busybox")
async def test_sandbox_on_an_image_sees_the_merged_tree(supervisor: Supervisor, tmp_path: Path) -> None:
    """Whiteouts, opaque directories and owners as they are meant; what it writes stays out of the layers."""
    base = [
        *busybox_items(),
        file("etc/passwd", b"root:x:0:0::/:/bin/sh\n"),
        *(file(f"d/{name}", b"base") for name in ("kept", "gone", "changed")),
        *(file(f"opaque/{name}") for name in "ab"),
        file("again/old"),
        file("owned", uid=65534, gid=7),
    ]
    top = [
        file("d/.wh.gone"),
        file("d/changed", b"top"),
        file("opaque/.wh..wh..opq"),
        file("opaque/c"),
        file(".wh.again"),
    ]
    write_layout(tmp_path / "image", pack(*base), pack(*top), pack(directory("again"), file("again/new")))
    rootfs = import_image(supervisor.state, tmp_path / "image", "merged-tree")
    script = "cat d/changed; stat -c ' %u %g' owned; find d opaque again | sort; echo x >d/kept; echo $PATH; cat d/kept"
    async with supervisor.open_sandbox(rootfs="merged-tree") as sandbox:
        result = await sandbox.run(script, user="root")

    expected = "top 65534 7\nagain\nagain/new\nd\nd/changed\nd/kept\nopaque\nopaque/c\n/bin\nx\n"
    assert (expected, b"") == (result.stdout.decode(), result.stderr)
    for layer in rootfs.layers:
        verify(layer)
