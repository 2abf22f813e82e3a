"""`minisandbox rootfs import|inspect|remove|gc`: what they print, as text and as JSON, and their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from minisandbox.cli import images
from minisandbox.cli.main import Parser
from minisandbox.errors import RootfsError, UsageError, exit_code
from minisandbox.images import StateDir, list_rootfs
from tests.archives import Item, Layout, TestImage, file, pack, write_layout

BASE, TOP = pack(file("base", b"base")), pack(file("top", bytes(3000)), Item("pipe", b"6"))


class Rootfs:
    """The four actions on one state directory."""

    def __init__(self, state: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self._state, self._capture = state, capfdbinary

    def __call__(self, *words: str | Path) -> str:
        """Run one and return what it printed; it says nothing on stderr."""
        parser = Parser(prog="minisandbox rootfs")
        images.add_actions(parser.add_subparsers(required=True))
        options = parser.parse_args([*map(str, words), "--state-dir", str(self._state)])
        code = options.serve(options)
        said = self._capture.readouterr()

        assert (0, b"") == (code, said.err)
        return said.out.decode()

    def json(self, *words: str | Path) -> dict[str, Any]:
        """Run one and return the object that it printed."""
        return msgspec.json.decode(self(*words, "--json"), type=dict[str, Any])


@pytest.fixture
def rootfs(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Rootfs:
    """The actions on a new state directory."""
    return Rootfs(tmp_path / "state", capfdbinary)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An OCI image layout."""
    return write_layout(tmp_path / "image", BASE, TOP).top


@pytest.mark.usefixtures("state_dir")
def test_image_is_imported_inspected_removed_and_collected(rootfs: Rootfs, image: Path, tmp_path: Path) -> None:
    """Each says in a line or two what came of it."""
    imported = rootfs("import", image, "mine")
    shown = rootfs("inspect", "mine")
    removed = rootfs("remove", "mine")
    collected = rootfs("gc")

    assert imported.startswith("mine: sha256:") and imported.endswith("; 2 layers, 2.934 KiB; left out: 1 of FIFO\n")
    for line in (f"made of {image}; left out: 1 of FIFO", "2.934 KiB in layers, 0 bytes of it shared", "PATH=/bin"):
        assert line in shown.splitlines()
    assert "image v1 sha256:" in shown
    assert ("", "removed 2 layers, 2.934 KiB\n") == (removed, collected)
    assert [] == list_rootfs(StateDir.open(tmp_path / "state"))


@pytest.mark.usefixtures("state_dir")
def test_json_has_all_of_it(rootfs: Rootfs, image: Path, tmp_path: Path) -> None:
    """With units in the keys."""
    write_layout(tmp_path / "other", BASE)
    imported = rootfs.json("import", image, "mine")
    rootfs("import", tmp_path / "other", "other")
    shown = rootfs.json("inspect", "mine")
    removed = rootfs.json("remove", "mine", "other")
    collected = rootfs.json("gc")

    assert imported.pop("wall_time_s") > 0
    assert {**imported, "shared_bytes": 4, "layers": shown["layers"]} == shown
    assert [[], ["other"]] == [layer["shared_with"] for layer in shown["layers"]]
    assert ("mine", str(image), 3004, 4) == tuple(
        shown[key] for key in ("name", "imported_from", "content_bytes", "shared_bytes")
    )
    assert {"removed": ["mine", "other"]} == removed
    assert {layer["digest"] for layer in shown["layers"]} == {layer["digest"] for layer in collected["removed"]}
    assert 3004 == collected["freed_bytes"]


def test_reference_chooses_an_image(rootfs: Rootfs, tmp_path: Path) -> None:
    """Without one the error says which there are."""
    layout = Layout(tmp_path / "image")
    layout.add(TestImage((BASE,)), "v1")
    layout.add(TestImage((TOP,)), "v2")

    assert "1 layers, 4 bytes" in rootfs("import", layout.top, "mine", "--reference", "v1")
    with pytest.raises(UsageError, match="choose by tag or digest, there are: v1, v2"):
        rootfs("import", layout.top, "mine")


@pytest.mark.parametrize("bound", [("--max-bytes", "8K"), ("--max-files", "1")])
def test_bounds_are_options(rootfs: Rootfs, image: Path, bound: tuple[str, str]) -> None:
    """More than is allowed is an error with a code of its own."""
    with pytest.raises(RootfsError, match=r"bound that was set|that were allowed") as caught:
        rootfs("import", image, "mine", *bound)

    assert 65 == exit_code(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ("import", "missing", "mine"),
        ("import", "image", "host"),
        ("import", "image", "mine", "--max-bytes", "many"),
        ("import", "image", "mine", "--max-files", "0"),
        ("import", "image"),
        ("inspect", "mine"),
        ("remove", "mine"),
        ("remove",),
        ("gc", "mine"),
    ],
)
def test_mistake_is_an_error_of_the_caller(
    rootfs: Rootfs, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """One line, and nothing is changed."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError) as caught:
        rootfs(*words)

    assert 64 == exit_code(caught.value)


def test_help_of_each_action_has_examples() -> None:
    """With the line that runs what was imported."""
    parser = Parser(prog="minisandbox rootfs")
    actions = parser.add_subparsers(required=True)
    images.add_actions(actions)

    assert {"import", "inspect", "remove", "gc"} == set(actions.choices)
    for action in actions.choices.values():
        assert "minisandbox run --rootfs" in action.format_help()
