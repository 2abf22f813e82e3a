"""`minisandbox snapshot ...` and `run --snapshot`: what they print, as text and as JSON, and their exit codes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minisandbox.images import SnapshotStore, StateDir, StoredSnapshot
from tests.cli import json_of, minisandbox
from tests.facts import HAS_TIME_NAMESPACES, NO_TIME_NAMESPACES
from tests.kernel import HAS_MAPPED_MEMORY
from tests.snapshots import make_layer, make_upper, save

pytestmark = pytest.mark.requires_root


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with two snapshots that no test of this file changes."""
    top = tmp_path_factory.mktemp("snapshots")
    store = SnapshotStore(StateDir.open(top / "state"))
    lower, upper = make_layer(top / "layer"), make_upper(top / "upper")
    save(store, "before", lower)
    save(store, "after", upper, lower)
    return top / "state"


def load(state: Path, name: str) -> StoredSnapshot:
    """Return a snapshot."""
    return SnapshotStore(StateDir.open(state)).load(name)


def test_list_shows_all(state: Path) -> None:
    """Sorted by name."""
    listed = minisandbox(state, "snapshot", "list")
    fields = json_of(minisandbox(state, "snapshot", "list", "--json"))["snapshots"]

    assert ["after", "before"] == [line.split()[0].decode() for line in listed.stdout.splitlines()[1:]]
    assert [load(state, name).digest for name in ("after", "before")] == [each["digest"] for each in fields]
    assert {"name", "digest", "rootfs", "rootfs_digest", "layers", "files", "content_bytes"} == fields[0].keys()


def test_diff_is_like_that_of_git(state: Path) -> None:
    """A letter and a path on each line; whether there are any is an exit code when asked for."""
    found = minisandbox(state, "snapshot", "diff", "before", load(state, "after").digest[:20])
    to_rootfs = minisandbox(state, "snapshot", "diff", "after")
    codes = [
        minisandbox(state, "snapshot", "diff", *words, "--exit-code").returncode
        for words in (("after", "after"), ("before", "after"))
    ]
    fields = json_of(minisandbox(state, "snapshot", "diff", "before", "after", "--json"))["differences"]

    assert b"A\twork/added\nD\twork/deep/\nD\twork/deep/same\n" == found.stdout
    assert {b"D\tetc/passwd", b"A\twork/\\n\\udcfe \xc3\xa9".replace(b"\\udcfe", b"\\\\xfe")} <= set(
        to_rootfs.stdout.splitlines()
    )
    assert [0, 1] == codes
    assert {"path": "work/added", "change": "added", "is_directory": False} == fields[0]


def test_run_begins_with_a_snapshot(state: Path) -> None:
    """Instead of a rootfs; not with both."""
    run = minisandbox(state, "run", "--snapshot", "after", "--", "cat", "/etc/new", "/work/added")
    both = minisandbox(state, "run", "--snapshot", "after", "--rootfs", "host", "--", "true")
    missing = json_of(minisandbox(state, "run", "--json", "--snapshot", "missing", "--", "true"))

    assert (0, b"newadded") == (run.returncode, run.stdout)
    assert (125, True) == (both.returncode, b"not both" in both.stderr)
    assert "SnapshotNotFoundError" == missing["error"]["kind"]


@pytest.mark.skipif(not HAS_MAPPED_MEMORY, reason=f"snapshots need Linux 6.3, this is {os.uname().release}")
def test_save_keeps_what_a_command_left(tmp_path: Path) -> None:
    """And runs the next one on it; what is left running does not keep it from that."""
    state = tmp_path / "state"
    script = "echo out; echo one > /one; sleep 300 > /dev/null 2>&1 &"
    first = minisandbox(state, "snapshot", "save", "first", "--rootfs", "host", "--", "sh", "-c", script)
    words = ("snapshot", "save", "second", "--snapshot", "first", "--json", "--", "sh", "-c", "cat /one; echo 2 > /two")
    second = json_of(minisandbox(state, *words))
    digest = load(state, "second").digest
    diff = minisandbox(state, "snapshot", "diff", "first", "second")
    run = minisandbox(state, "run", "--snapshot", "second", "--", "cat", "/one", "/two")

    assert (0, b"out\n") == (first.returncode, first.stdout)
    assert b"first: sha256:" in first.stderr
    assert ("one\n", {"name": "second", "digest": digest}) == (second["stdout"], second["snapshot"])
    assert b"A\ttwo\n" == diff.stdout
    assert b"one\n2\n" == run.stdout


def test_failed_command_saves_nothing(tmp_path: Path) -> None:
    """Its exit code is the command's."""
    state = tmp_path / "state"
    failed = minisandbox(state, "snapshot", "save", "bad", "--", "sh", "-c", "touch /x; exit 3")
    as_json = json_of(minisandbox(state, "snapshot", "save", "bad", "--json", "--", "sh", "-c", "exit 3"))

    assert (3, b"minisandbox: the command failed, so nothing is stored\n") == (failed.returncode, failed.stderr)
    assert (3, None) == (as_json["exit_code"], as_json["snapshot"])
    assert [] == os.listdir(state / "snapshots")


def test_export_and_import_go_together(state: Path, tmp_path: Path) -> None:
    """With another state directory and another name, and remove takes all of it away."""
    file, other = tmp_path / "after.tar.gz", tmp_path / "other"
    exported = minisandbox(state, "snapshot", "export", "after", file)
    imported = json_of(minisandbox(other, "snapshot", "import", file, "mine", "--json"))
    wrong = minisandbox(other, "snapshot", "import", file, "other", "--digest", "sha256:0")
    verified = minisandbox(other, "snapshot", "verify")
    removed = json_of(minisandbox(other, "snapshot", "remove", "mine", "--json"))
    digest = load(state, "after").digest

    assert (f"after: {digest} in {file}, ".encode(), 0) == (
        exported.stdout[: len(exported.stdout.rpartition(b", ")[0]) + 2],
        0,
    )
    assert ("mine", digest) == (imported["name"], imported["digest"])
    assert (65, True) == (wrong.returncode, b"not sha256:0" in wrong.stderr)
    assert f"mine: {digest} is whole\n".encode() == verified.stdout
    assert (["mine"], 2) == (removed["removed"], len(removed["layers"]))
    assert [] == os.listdir(other / "snapshots")


def test_damage_has_an_exit_code_and_a_path(tmp_path: Path) -> None:
    """As JSON too."""
    store = SnapshotStore(StateDir.open(tmp_path / "state"))
    saved = save(store, "one", make_layer(tmp_path / "layer"))
    (saved.layers[0].path / "etc/new").write_text("NEW")
    found = minisandbox(store.state.path, "snapshot", "verify", "one")
    error = json_of(minisandbox(store.state.path, "snapshot", "verify", "one", "--json"))["error"]

    assert (65, True) == (found.returncode, b"'etc/new' of the layer is not what was stored" in found.stderr)
    assert ("SnapshotDamagedError", str(saved.layers[0].path)) == (error["kind"], error["file"])


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "missing"),
        ("export", "missing", "/tmp/x"),
        ("import", "/nonexistent"),
        ("remove",),
        ("save", "x"),
        ("nothing",),
        (),
    ],
)
def test_mistake_is_an_error_of_the_caller(state: Path, words: tuple[str, ...]) -> None:
    """One line on stderr."""
    run = minisandbox(state, "snapshot", *words)

    assert (64, 1) == (run.returncode, run.stderr.count(b"\n"))


@pytest.mark.skipif(not HAS_TIME_NAMESPACES, reason=NO_TIME_NAMESPACES)
def test_deterministic_starts_show_the_same(state: Path) -> None:
    """What two runs print of clocks, ids and addresses is equal; without the option it is not."""
    sees = (
        "sh",
        "-c",
        "cat /etc/machine-id /proc/sys/kernel/random/boot_id; cut -c1-2 /proc/uptime; env; stat -c %y /",
    )
    runs = [minisandbox(state, "run", "--deterministic", *more, "--", *sees) for more in ((), ("--disk", "8M"))]
    other = minisandbox(state, "run", "--", *sees)

    assert runs[0].stdout == runs[1].stdout != other.stdout
    assert (0, 0, 0) == (runs[0].returncode, runs[1].returncode, other.returncode)
    assert b"PYTHONHASHSEED=0" in runs[0].stdout


def test_files_lie_where_they_were_asked_to(state: Path) -> None:
    """A disk has no limits, and a policy that has some is refused, unless that was agreed to."""
    place = ("sh", "-c", "stat -f -c %T /dev/shm")
    refused = minisandbox(state, "run", "--disk-in", "state", "--", *place)
    free = minisandbox(state, "run", "--disk-in", "state", "--disk", "none", "--inodes", "none", "--", *place)
    agreed = json_of(minisandbox(state, "run", "--disk-in", "state", "--degrade", "disk-limit", "--json", "--", *place))

    assert (125, True) == (refused.returncode, b"disk-limit" in refused.stderr)
    assert (0, False) == (free.returncode, b"tmpfs" in free.stdout)
    assert ["disk-limit"] == agreed["degraded"]
