"""Trees of instances on the real kernel: made whole or not at all, closed and swept without a trace."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox.errors import CgroupError, HostError, UsageError
from minisandbox.kernel.cgroup import CgroupKind, CgroupLayout, CgroupTree, detect_layout
from minisandbox.kernel.cgroup_layout import SUPERVISOR_LEAF
from minisandbox.spec import Limits
from tests.cgroup_lab import WARDEN, Start, layout, new_instance, slot, spawn_program, start, tree

__all__ = ["layout", "slot", "spawn_program", "start", "tree"]  # fixtures, which tests ask for by name

CRASHED = """
import os, sys
from pathlib import Path
import msgspec
from minisandbox.kernel.cgroup import CgroupTree, detect_layout
layout = detect_layout()
if sys.argv[1] == "v1":
    layout = msgspec.structs.replace(layout, unified=None, unified_controllers=frozenset())
tree = CgroupTree.create(layout, sys.argv[2])
tree.open_slot(1).open_run(0)
if os.fork() == 0:
    for own in (layout.unified, *layout.v1.values()):
        leaf = own and own / f"minisandbox-{sys.argv[2]}" / "s1" / "r1"
        for group in (leaf, leaf and leaf.parent):
            if group and group.is_dir() and not any(path.is_dir() for path in group.iterdir()):
                (group / "cgroup.procs").write_text("0")
    os.execvp("sh", ["sh", "-c", "echo up; exec sleep 100"])
os.read(0, 1)
"""
"""Makes a tree with a process in it, and ends without closing it once its stdin says so."""


def groups_of(layout: CgroupLayout, instance: str) -> list[Path]:
    """Return every directory of an instance, in all hierarchies."""
    own = {path for path in (layout.unified, *layout.v1.values()) if path}
    roots = [path / f"minisandbox-{instance}" for path in own]
    return [Path(directory) for root in roots for directory, _, _ in os.walk(root)]


def entries(layout: CgroupLayout) -> set[Path]:
    """Return what is in our own groups, but for the trees of other instances that come and go."""
    own = {path for path in (layout.unified, *layout.v1.values()) if path}
    return {entry for path in own for entry in path.iterdir() if not entry.name.startswith("minisandbox-")}


@pytest.mark.parametrize(
    "name", ["", "0123abc", "0123456789abcdef0", "0123ABCD", "../../0123", "0123abcd/", "0123abcd\n"]
)
def test_bad_instance_name_is_refused(layout: CgroupLayout, name: str) -> None:
    """Only 8 to 16 hexadecimal digits name an instance, so that no name leads elsewhere; nothing is made."""
    before = entries(layout)
    with pytest.raises(UsageError, match="8 to 16 hexadecimal digits"):
        CgroupTree.create(layout, name)

    assert before == entries(layout)


def test_second_tree_of_an_instance_fails(tree: CgroupTree, layout: CgroupLayout) -> None:
    """An instance has one tree; the attempt to make another leaves the first as it was."""
    tree.open_slot(1)
    before = groups_of(layout, tree.instance)
    with pytest.raises(CgroupError, match="already"):
        CgroupTree.create(layout, tree.instance)

    assert before == groups_of(layout, tree.instance)


def test_second_slot_of_a_number_fails(tree: CgroupTree, layout: CgroupLayout) -> None:
    """A slot has one set of groups; the attempt to make another leaves the first as it was."""
    first = tree.open_slot(1)
    before = groups_of(layout, tree.instance)
    with pytest.raises(CgroupError, match="s1: File exists"):
        tree.open_slot(1)

    assert before == groups_of(layout, tree.instance)
    assert first.is_clean()


def test_tree_is_made_whole_or_not_at_all(layout: CgroupLayout) -> None:
    """When one hierarchy refuses, what was made in the others is gone."""
    instance = new_instance()
    in_the_way = layout.v1.get("cpu", layout.unified)
    assert in_the_way is not None
    obstacle = in_the_way / f"minisandbox-{instance}"
    obstacle.mkdir()
    try:
        with pytest.raises(CgroupError, match="already"):
            CgroupTree.create(layout, instance)
        assert [obstacle] == groups_of(layout, instance)
    finally:
        obstacle.rmdir()


def test_close_kills_everything_and_leaves_nothing(layout: CgroupLayout, tree: CgroupTree, start: Start) -> None:
    """Inits, commands, background processes, spare leaves and open slots are gone from every hierarchy."""
    before = entries(layout)
    slots = [tree.open_slot(number) for number in range(3)]
    for each in slots:
        each.configure(Limits(memory_bytes=64 << 20, processes=20))
        each.prepare_spare(WARDEN)
    runs = [each.open_run(WARDEN) for each in slots]
    script = "trap '' TERM; (setsid sleep 100 &); echo up; sleep 100"
    processes = [start(run, "sh", "-c", script, uid=WARDEN, until=b"up\n") for run in runs]
    descriptors = len(os.listdir("/proc/self/fd"))
    for run in runs:
        run.close_fds()

    assert [] == tree.close()
    assert [] == tree.close()
    assert [] == groups_of(layout, tree.instance)
    assert before == entries(layout)
    assert descriptors > len(os.listdir("/proc/self/fd"))
    assert 0 not in [process.wait(timeout=10) for process in processes]


@pytest.mark.requires_root
def test_close_names_what_it_cannot_remove(layout: CgroupLayout, tmp_path: Path) -> None:
    """A group that the kernel will not remove is named, the rest is gone, and it can be removed later."""
    tree = CgroupTree.create(layout, new_instance())
    tree.open_slot(1)
    tree.open_slot(2)
    stuck = (layout.unified or layout.v1["pids"]) / f"minisandbox-{tree.instance}" / "s2"
    subprocess.run(["mount", "--bind", tmp_path, stuck], check=True)
    try:
        left = tree.close()
    finally:
        subprocess.run(["umount", stuck], check=True)

    assert [stuck, stuck.parent] == [Path(path) for path in left]
    assert [tree.instance] == CgroupTree.sweep(layout, lambda name: name != tree.instance)
    assert [] == groups_of(layout, tree.instance)


@pytest.fixture
def crashed(layout: CgroupLayout) -> Iterator[tuple[str, int]]:
    """The instance of a supervisor that died without closing its tree, and a pidfd of a process in that tree."""
    instance = new_instance()
    kind = "v1" if layout.unified is None else "own"
    with subprocess.Popen(
        [sys.executable, "-c", CRASHED, kind, instance], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        assert b"up\n" == supervisor.stdout.readline()
        (own,) = [path for path in groups_of(layout, instance) if path.name == "r1" and "cpuacct" not in str(path)][:1]
        pidfd = os.pidfd_open(int((own / "cgroup.procs").read_text()))
        # It holds its tree as long as it lives.
        assert [] == CgroupTree.sweep(layout, lambda name: name != instance)
        supervisor.stdin.close()
        supervisor.wait(timeout=10)
    yield instance, pidfd
    os.close(pidfd)
    CgroupTree.sweep(layout, lambda name: name != instance)


def test_sweep_removes_only_what_is_dead(layout: CgroupLayout, tree: CgroupTree, crashed: tuple[str, int]) -> None:
    """The tree of a dead instance goes with its processes; one that is alive by either sign stays."""
    instance, pidfd = crashed
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    kept = groups_of(layout, tree.instance)
    dead = groups_of(layout, instance)
    alive = [
        *CgroupTree.sweep(layout, lambda name: True),
        *CgroupTree.sweep(layout, lambda name: name != tree.instance),
    ]
    untouched, running = groups_of(layout, instance), ended.poll(0)
    swept = CgroupTree.sweep(layout, lambda name: name not in (instance, tree.instance))

    assert [] == alive
    assert (dead, []) == (untouched, running)
    assert [instance] == swept
    assert [] == groups_of(layout, instance)
    assert kept == groups_of(layout, tree.instance)
    assert [pidfd] == [fd for fd, _ in ended.poll(5000)]


def test_instances_are_those_that_have_a_tree(layout: CgroupLayout, tree: CgroupTree) -> None:
    """Every tree is listed by its instance, and nothing else is."""
    assert tree.instance in CgroupTree.instances(layout)
    tree.close()
    assert tree.instance not in CgroupTree.instances(layout)


OWN_GROUP = """
import os, sys
from pathlib import Path
from minisandbox.errors import HostError
from minisandbox.kernel.cgroup import CgroupTree, detect_layout
def own(): return Path("/proc/self/cgroup").read_text().strip().rsplit("/", 1)[1]
print(own())
try:
    tree = CgroupTree.create(detect_layout(), sys.argv[1])
except HostError as error:
    print(error)
else:
    print(own()); print(tree.close()); print(own())
"""


@pytest.mark.parametrize("crowded", [False, True])
def test_supervisor_makes_room_in_its_own_group(layout: CgroupLayout, tree: CgroupTree, crowded: bool) -> None:
    """On v2, a supervisor alone in its group moves to a leaf and back; beside others it says what to do instead."""
    if layout.kind != CgroupKind.V2:
        pytest.skip(f"the layout is {layout.kind}: only v2 forbids processes beside groups with controllers")
    assert layout.unified is not None
    own = layout.unified / f"minisandbox-{tree.instance}" / "own"
    own.mkdir()
    beside = "(setsid sleep 100 > /dev/null 2>&1 &); " if crowded else ""
    script = f'echo 0 > {own}/cgroup.procs; {beside}exec "$@"'
    words = ["sh", "-c", script, "sh", sys.executable, "-c", OWN_GROUP, new_instance()]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()

    if crowded:
        assert ["own"] == said[:1]
        assert "holds 1 processes beside this one" in said[1] and "systemd-run" in said[1]
    else:
        assert ["own", SUPERVISOR_LEAF, "[]", "own"] == said
        assert [] == [path for path in own.iterdir() if path.is_dir()]


def test_group_that_is_not_ours_is_an_error(layout: CgroupLayout) -> None:
    """Where groups cannot be made, the error says what to do."""
    found = detect_layout()
    if found.unified is None:
        pytest.skip("no unified tree on this host")
    with pytest.raises(HostError, match=r"Delegate=yes"):
        CgroupTree.create(CgroupLayout(unified=Path("/proc/self")), new_instance())


def test_covered_hierarchy_is_an_error(tmp_path: Path) -> None:
    """A mount that is listed may be out of sight below another one."""
    with pytest.raises(HostError, match=r"cannot look into our own control group .*/covered"):
        CgroupTree.instances(CgroupLayout(v1={"pids": tmp_path / "covered"}))
