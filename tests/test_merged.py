"""Several layers seen as one, without a mount: digest, comparison and flattening agree with overlayfs and a model."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minisandbox.images import (
    Change,
    ContentCache,
    Layer,
    Rootfs,
    digest_snapshot,
    digest_tree,
    measure_tree,
    snapshot_record,
)
from minisandbox.images.compare import compared
from minisandbox.images.layer_copy import flatten_layers
from minisandbox.images.merged import MergedWalk
from minisandbox.images.snapshot_record import Recorder
from minisandbox.images.tree import TOP, Step
from tests.snapshots import opened

pytestmark = pytest.mark.requires_root

CLOCK_OF_FILES = 5
"""CLOCK_REALTIME_COARSE of time.h."""

SECOND = 1_600_000_000 * 10**9
NAMES = st.sampled_from(["a", "b", "c", "é"])
IMPOSSIBLE = (errno.EXDEV, errno.EINVAL, errno.ENOTEMPTY, errno.ELOOP, errno.EOPNOTSUPP)
"""The last is what tmpfs says of attributes of users before Linux 6.6."""
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@dataclass(frozen=True)
class Action:
    """One thing that a program does to its tree; what is not possible just then does nothing."""

    what: str
    path: str
    other: str
    number: int

    def apply(self, top: Path) -> None:
        """Do it below `top`."""
        path, other = top / self.path, top / self.other
        try:
            getattr(self, f"_{self.what}")(path, other)
        except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError):
            pass
        except OSError as error:
            if error.errno not in IMPOSSIBLE:
                raise

    def _write(self, path: Path, other: Path) -> None:
        path.write_text(f"content {self.number}")
        os.utime(path, ns=(SECOND, SECOND + self.number % 2))

    def _append(self, path: Path, other: Path) -> None:
        if path.is_file():
            with path.open("a") as file:
                file.write("more")
            os.utime(path, ns=(SECOND, SECOND))

    def _mkdir(self, path: Path, other: Path) -> None:
        path.mkdir()

    def _remove(self, path: Path, other: Path) -> None:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _rename(self, path: Path, other: Path) -> None:
        path.rename(other)

    def _link(self, path: Path, other: Path) -> None:
        if path.is_file():
            os.link(path, other)

    def _symlink(self, path: Path, other: Path) -> None:
        path.symlink_to(self.other)

    def _chmod(self, path: Path, other: Path) -> None:
        if not path.is_symlink():
            path.chmod([0o755, 0o700, 0o4711, 0o644][self.number % 4])

    def _chown(self, path: Path, other: Path) -> None:
        os.chown(path, self.number, self.number + 1, follow_symlinks=False)

    def _xattr(self, path: Path, other: Path) -> None:
        if not path.is_symlink():
            os.setxattr(path, "user.note", b"%d" % self.number)


WHAT = [name[1:] for name in vars(Action) if name.startswith("_") and not name.startswith("__")]
ACTIONS = st.builds(Action, st.sampled_from(WHAT), PATHS, PATHS, st.integers(0, 5))
SESSIONS = st.lists(st.lists(ACTIONS, max_size=12), min_size=2, max_size=4)

Seen = dict[str, tuple[object, ...]]


def look(top: Path) -> Seen:
    """Return what a program sees of a tree: the plain model that the comparison is checked against."""
    seen: Seen = {}
    names: dict[tuple[int, int], str] = {}
    for place in [top, *sorted(top.rglob("*"), key=lambda path: [os.fsencode(part) for part in path.parts])]:
        status = place.lstat()
        content: object = ""
        first = ""
        if place.is_symlink():
            content = os.readlink(place)
        elif place.is_file():
            first = names.setdefault((status.st_dev, status.st_ino), str(place.relative_to(top)))
            whole = status.st_mtime_ns % 10**9 == 0
            content = (place.read_text(), status.st_mtime_ns if whole else None)
        xattrs = tuple(
            (name, os.getxattr(place, name, follow_symlinks=False))
            for name in sorted(os.listxattr(place, follow_symlinks=False))
        )
        is_alone = first in ("", str(place.relative_to(top)))
        facts = (status.st_mode, status.st_uid, status.st_gid, xattrs, content, "" if is_alone else first)
        seen[str(place.relative_to(top))] = facts
    return seen


class Overlays:
    """Layers that overlayfs itself makes, on a tmpfs of this test."""

    def __init__(self, top: Path) -> None:
        self.top, self.count = top, 0

    def run(self, lower: Sequence[Path], steps: Sequence[Action]) -> tuple[Path, Seen]:
        """Run steps in a mount of these layers, top first; return the new layer and what was seen at the end."""
        self.count += 1
        upper, work, mount = (self.top / f"{name}{self.count}" for name in ("u", "w", "m"))
        for place in (upper, work, mount):
            place.mkdir()
        with self.mounted(lower, mount, f",upperdir={upper},workdir={work}"):
            for step in steps:
                step.apply(mount)
            return upper, look(mount)

    def see(self, layers: Sequence[Path]) -> Seen:
        """Return what a mount of these layers shows."""
        mount = self.top / "see"
        mount.mkdir(exist_ok=True)
        empty = self.top / "empty"
        empty.mkdir(exist_ok=True)
        with self.mounted([*layers, empty], mount):
            return look(mount)

    @contextmanager
    def mounted(self, lower: Sequence[Path], mount: Path, more: str = "") -> Iterator[None]:
        """Mount an overlay for the block."""
        options = f"lowerdir={':'.join(map(str, lower))}{more},redirect_dir=off,metacopy=off,index=off"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, mount], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", mount], check=True)


@contextmanager
def overlays() -> Iterator[Overlays]:
    """Make a tmpfs for overlays."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "overlays", place], check=True)
        try:
            yield Overlays(Path(place))
        finally:
            subprocess.run(["umount", place], check=True)


def rootfs_of(top: Path) -> Rootfs:
    """Return a rootfs of one layer, which need not be stored."""
    return Rootfs("test", (Layer(measure_tree(top).digest, top),), (), {})


def differences(before: Sequence[Path], after: Sequence[Path]) -> dict[str, Change]:
    """Return what the comparison of two stacks of layers finds."""
    with opened(*before) as first, opened(*after) as second:
        pairs = compared(MergedWalk(first), MergedWalk(second), Recorder())
        return {os.fsdecode(path): pair.change for path, pair in pairs if pair.change is not None}


def expected_differences(before: Seen, after: Seen) -> dict[str, Change]:
    """Return what the plain model says."""
    found = dict.fromkeys(before.keys() - after.keys(), Change.REMOVED)
    found |= dict.fromkeys(after.keys() - before.keys(), Change.ADDED)
    return found | {path: Change.CHANGED for path in before.keys() & after.keys() if before[path] != after[path]}


def action(what: str, path: str, other: str = "", number: int = 0) -> Action:
    """Return an action in fewer words."""
    return Action(what, path, other, number)


BEGINNING = [
    action("mkdir", "a"),
    action("mkdir", "a/b"),
    action("write", "a/c", number=2),
    action("write", "a/b/c", number=1),
    action("write", "b"),
    action("link", "b", "c"),
]
"""What every base has, so that there is something to be hidden."""


@given(SESSIONS)
@example([[], [action("remove", "a")], [action("mkdir", "a")]])  # hidden by a whiteout that the directory replaces
@example([[], [action("remove", "a"), action("mkdir", "a")], [action("write", "a/b")]])
@example([[], [action("remove", "a"), action("write", "a")], [action("remove", "a"), action("mkdir", "a")]])
@example([[], [action("write", "a/c", number=2), action("chmod", "a/c", number=3)]])  # the same as before
@example([[], [action("write", "d")], [action("remove", "d")]])
@example([[], [action("write", "a/d"), action("link", "a/d", "d")], [action("remove", "a/d")]])
@settings(max_examples=25, deadline=None)
def test_layers_are_compared_digested_and_flattened_as_overlayfs_shows_them(sessions: list[list[Action]]) -> None:
    """Whatever programs do in a chain of sandboxes: the kernel's own mounts are what all three are checked against."""
    with overlays() as kernel:
        base = kernel.top / "base"
        base.mkdir()
        for step in [*BEGINNING, *sessions[0]]:
            step.apply(base)
        layers, seen = [base], [kernel.see([base])]
        for steps in sessions[1:]:
            upper, after = kernel.run(layers, steps)
            layers.insert(0, upper)
            seen.append(after)
        flat = kernel.top / "flat"
        flat.mkdir()
        with opened(flat, *layers[:-1]) as (flat_fd, *upper_fds):
            flatten_layers(upper_fds, flat_fd)
            digests = {digest_snapshot(rootfs_of(base), fds) for fds in ([flat_fd], upper_fds)}
        flat_seen = kernel.see([flat, base])
        found = differences([base], layers)
        between = differences(layers[1:], layers)

    assert seen[-1] == flat_seen
    assert expected_differences(without_links(seen[0]), without_links(seen[-1])) == without_link_changes(found, seen)
    assert between.keys() <= seen[-1].keys() | seen[-2].keys()
    assert 1 == len(digests)


def without_links(seen: Seen) -> Seen:
    """Return what is seen but which names are one file."""
    return {path: facts[:-1] for path, facts in seen.items()}


def without_link_changes(found: dict[str, Change], seen: list[Seen]) -> dict[str, Change]:
    """Return the changes but those of names that only became, or ceased to be, one file."""
    before, after = without_links(seen[0]), without_links(seen[-1])
    return {
        path: change
        for path, change in found.items()
        if change is not Change.CHANGED or before[path] != after[path] or seen[0][path][-1] == seen[-1][path][-1]
    }


@given(st.lists(ACTIONS, max_size=12), st.permutations(["x", "y", "z"]))
@settings(max_examples=30, deadline=None)
def test_digest_does_not_depend_on_how_a_tree_came_about(steps: list[Action], names: list[str]) -> None:
    """Other order, other inodes, more layers, work undone again: the same tree has the same digest."""
    with overlays() as kernel:
        base = kernel.top / "base"
        (base / "a").mkdir(parents=True)
        (base / "a" / "b").write_text("old")
        write = {name: Action("write", f"a/{name}", "", number * 2) for number, name in enumerate("xyz")}
        once, _ = kernel.run([base], [*steps, Action("mkdir", "a", "", 0), *(write[name] for name in "xyz")])
        again, _ = kernel.run([base], [*steps, Action("mkdir", "a", "", 0), Action("write", "a/tmp", "", 0)])
        undone = [*(write[name] for name in names), Action("remove", "a/tmp", "", 0)]
        above, _ = kernel.run([again, base], undone)
        with opened(once, above, again) as (once_fd, above_fd, again_fd):
            digests = [digest_snapshot(rootfs_of(base), fds) for fds in ([once_fd], [above_fd, again_fd])]

    assert digests[0] == digests[1]


def plain(top: Path) -> Path:
    """Make a small tree."""
    (top / "d").mkdir(parents=True)
    top.chmod(0o755)
    (top / "d" / "f").write_text("content")
    os.utime(top / "d" / "f", ns=(SECOND, SECOND + 1))
    (top / "l").symlink_to("d/f")
    return top


CAPABILITY = bytes.fromhex("0100000200200000" + "00" * 12)
"""cap_net_raw+ep as an extended attribute (capabilities(7))."""

CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda top: (top / "d/f").write_text("CONTENT"),
    "mode": lambda top: (top / "d/f").chmod(0o600),
    "setuid": lambda top: (top / "d/f").chmod(0o4644),
    "mode of a directory": lambda top: (top / "d").chmod(0o700),
    "uid": lambda top: os.chown(top / "d/f", 1, 0),
    "gid of a link": lambda top: os.chown(top / "l", 0, 1, follow_symlinks=False),
    "time that was set": lambda top: os.utime(top / "d/f", ns=(SECOND, SECOND)),
    "xattr": lambda top: os.setxattr(top / "d/f", "user.x", b"y"),
    "xattr of a directory": lambda top: os.setxattr(top, "user.x", b"y"),
    "capability": lambda top: os.setxattr(top / "d/f", "security.capability", CAPABILITY),
    "target": lambda top: os.replace(linked(top / "n", "d/g"), top / "l"),
    "type": lambda top: os.replace(written(top / "n", "d/f"), top / "l"),
    "name": lambda top: (top / "l").rename(top / "m"),
    "hard link": lambda top: os.link(top / "d/f", top / "n"),
    "whiteout": lambda top: os.mknod(top / "base", stat.S_IFCHR, 0),
    "fifo": lambda top: os.mkfifo(top / "p"),
}


def linked(place: Path, target: str) -> Path:
    """Make a symbolic link."""
    place.symlink_to(target)
    return place


def written(place: Path, content: str) -> Path:
    """Make a file."""
    place.write_text(content)
    return place


@pytest.mark.parametrize("what", CHANGES)
def test_any_change_changes_both_digests(tmp_path: Path, what: str) -> None:
    """Of the snapshot and of the layer."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "base").write_text("base")
    with opened(plain(tmp_path / "one"), plain(tmp_path / "two")) as fds:
        os.utime(tmp_path / "one/d/f", ns=(SECOND, SECOND + 1))
        before = digest_snapshot(rootfs_of(base), fds[1:])
        CHANGES[what](tmp_path / "two")
        if what not in ("time that was set", "hard link"):
            os.utime(tmp_path / "two/d/f", ns=(SECOND, SECOND + 1))
        after = digest_snapshot(rootfs_of(base), fds[1:])
        layers = [digest_tree(fd) for fd in fds]

    assert before != after
    assert layers[0] != layers[1]


def test_links_are_told_from_copies(tmp_path: Path) -> None:
    """Two names of one file are not two files of the same content."""
    base = tmp_path / "base"
    base.mkdir()
    for name in ("linked", "copied"):
        plain(tmp_path / name)
    os.link(tmp_path / "linked/d/f", tmp_path / "linked/g")
    shutil.copy2(tmp_path / "copied/d/f", tmp_path / "copied/g")
    with opened(tmp_path / "linked", tmp_path / "copied") as fds:
        digests = {digest_snapshot(rootfs_of(base), [fd]) for fd in fds}

    assert 2 == len(digests)


def test_time_at_which_a_file_was_written_does_not_count(tmp_path: Path) -> None:
    """Of a snapshot; a layer is stored with every nanosecond."""
    base = tmp_path / "base"
    base.mkdir()
    with opened(plain(tmp_path / "one"), plain(tmp_path / "two")) as fds:
        for number, name in enumerate(("one", "two"), 1):
            for place in ("d", "d/f", "l", ""):
                os.utime(tmp_path / name / place, ns=(SECOND, SECOND + number), follow_symlinks=False)
        snapshots = {digest_snapshot(rootfs_of(base), [fd]) for fd in fds}
        layers = {digest_tree(fd) for fd in fds}

    assert (1, 2) == (len(snapshots), len(layers))


def test_marks_that_name_inodes_of_this_machine_do_not_count(tmp_path: Path) -> None:
    """Nor do they get into a copy."""
    plain(tmp_path / "one")
    (tmp_path / "copy").mkdir()
    with opened(tmp_path / "one", tmp_path / "copy") as (one, copy):
        before = digest_tree(one)
        for mark in ("origin", "impure", "nlink", "uuid"):
            os.setxattr(tmp_path / "one/d", f"trusted.overlay.{mark}", b"y")
        flatten_layers([one], copy)
        after = {digest_tree(one), digest_tree(copy)}

    assert {before} == after
    assert [] == os.listxattr(tmp_path / "copy/d")


@pytest.mark.parametrize("mark", ["redirect", "metacopy"])
def test_layer_that_leans_on_others_is_refused(tmp_path: Path, mark: str) -> None:
    """Its files are not whole."""
    os.setxattr(plain(tmp_path / "one") / "d", f"trusted.overlay.{mark}", b"/x")
    with opened(tmp_path / "one") as (fd,):
        with pytest.raises(Exception, match=rf"'d' has the mark {mark} of overlayfs"):
            digest_tree(fd)


def test_file_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    """And one that did is, even if its size and time of modification are the same."""
    cache, base = ContentCache(), tmp_path / "base"
    base.mkdir()
    for number in range(5):
        (plain(tmp_path / "one") if not number else tmp_path / "one").joinpath(str(number)).write_text("x")
    with opened(tmp_path / "one") as fds:
        first, read = digest_snapshot(rootfs_of(base), fds, cache), cache.read_files
        second, read_again = digest_snapshot(rootfs_of(base), fds, cache), cache.read_files
        before = (tmp_path / "one/3").stat()
        while time.clock_gettime_ns(CLOCK_OF_FILES) <= before.st_ctime_ns:
            time.sleep(0.001)  # that clock goes on in ticks; what is sealed was written before anybody reads it
        (tmp_path / "one/3").write_text("y")
        os.utime(tmp_path / "one/3", ns=(before.st_atime_ns, before.st_mtime_ns))
        third, read_at_last = digest_snapshot(rootfs_of(base), fds, cache), cache.read_files

    assert (6, 6, 7) == (read, read_again, read_at_last)
    assert first == second != third


def test_cache_forgets_what_is_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a supervisor that lives for months does not grow."""
    monkeypatch.setattr(snapshot_record, "CACHED_FILES", 4)
    cache, base = ContentCache(), tmp_path / "base"
    base.mkdir()
    plain(tmp_path / "one")
    for number in range(8):
        (tmp_path / "one" / f"{number}").write_text("x")
    with opened(tmp_path / "one") as fds:
        digests = {digest_snapshot(rootfs_of(base), fds, cache) for _ in range(2)}

    assert (1, True) == (len(digests), 9 < cache.read_files <= 18)


def test_deep_trees_are_walked_flattened_and_digested_with_few_descriptors(tmp_path: Path) -> None:
    """Deeper than a path may be long and than Python recurses; two layers of it, merged."""
    with overlays() as kernel:
        for name in ("one", "two"):
            make_deep(kernel.top / name, 1500)
        (kernel.top / "flat").mkdir()
        before = len(os.listdir("/proc/self/fd"))
        with opened(*(kernel.top / name for name in ("one", "two", "flat"))) as (one, two, flat):
            with MergedWalk([one, two]) as walk:
                most = max(len(os.listdir("/proc/self/fd")) for found in walk if found.step is Step.ENTER)
            flatten_layers([one, two], flat)
            digests = {digest_tree(one), digest_tree(flat)}

    assert 1 == len(digests)
    assert most - before <= 6


def make_deep(top: Path, levels: int) -> None:
    """Make a chain of directories."""
    here = os.getcwd()
    top.mkdir()
    os.chdir(top)
    try:
        for _ in range(levels):
            os.mkdir("x" * 200)
            os.utime(".", ns=(SECOND, SECOND))
            os.chdir("x" * 200)
        os.utime(".", ns=(SECOND, SECOND))
    finally:
        os.chdir(here)


def test_something_mounted_inside_is_no_part_of_a_layer(tmp_path: Path) -> None:
    """What is mounted there now would be digested but not stored."""
    mounted = plain(tmp_path / "one") / "d"
    subprocess.run(["mount", "--bind", tmp_path, mounted], check=True)
    try:
        with opened(tmp_path / "one") as fds, MergedWalk(fds) as walk:
            with pytest.raises(OSError, match="mounted inside"):
                list(walk)
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_sparse_file_stays_sparse(tmp_path: Path) -> None:
    """An exbibyte of nothing is copied at once."""
    with overlays() as kernel:
        for name in ("one", "flat"):
            (kernel.top / name).mkdir()
        with open(kernel.top / "one/f", "wb") as file:
            os.ftruncate(file.fileno(), 1 << 60)
            os.pwrite(file.fileno(), b"x", 1 << 59)
        with opened(kernel.top / "one", kernel.top / "flat") as (one, flat):
            flatten_layers([one], flat)
        status = (kernel.top / "flat/f").stat()

    assert (1 << 60, True) == (status.st_size, status.st_blocks < 100)


def test_top_is_called_by_its_name(tmp_path: Path) -> None:
    """A change of the top directory itself is one of "."."""
    plain(tmp_path / "one")
    plain(tmp_path / "two").chmod(0o700)

    assert {os.fsdecode(TOP): Change.CHANGED} == differences([tmp_path / "one"], [tmp_path / "two"])
