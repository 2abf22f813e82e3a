"""Fixtures of the tests of control groups: each layout that this host can show, a tree, and a way to start commands."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from minisandbox.errors import HostError
from minisandbox.kernel.cgroup import CgroupKind, CgroupLayout, CgroupTree, RunCgroup, SlotCgroup, detect_layout
from minisandbox.kernel.host import read_host_facts

WARDEN = 70001
"""A uid, and the gid of the same number, that nobody else has."""

Start = Callable[..., "subprocess.Popen[bytes]"]


def layout_named(name: str) -> CgroupLayout:
    """Return the layout of this host, or the v1 part of it; skip with the reason when the host has no such thing."""
    if os.geteuid() != 0:
        pytest.skip("needs root: groups are given to another uid")
    if not read_host_facts().cgroup_writable:
        pytest.skip("no control group can be made below ours on this host")
    found = detect_layout()
    if name == "v1":
        if not {"memory", "pids", "cpuacct"} <= found.v1.keys():
            pytest.skip(f"no v1 hierarchies of memory, pids and cpuacct: the layout is {found.kind}")
        return msgspec.structs.replace(found, unified=None, unified_controllers=frozenset())
    if found.kind != name:
        pytest.skip(f"the layout of this host is {found.kind}, not {name}")
    if name == CgroupKind.V2 and not {"memory", "pids"} <= found.unified_controllers:
        pytest.skip("the unified tree lacks the controllers memory and pids in our own group")
    return found


def new_instance() -> str:
    """Return an instance name that nobody else has."""
    return secrets.token_hex(6)


@pytest.fixture(params=["v2", "hybrid", "v1"])
def layout(request: pytest.FixtureRequest) -> CgroupLayout:
    """Each arrangement of hierarchies; on a hybrid host, pure v1 is the same without the unified tree."""
    return layout_named(request.param)


@pytest.fixture
def tree(layout: CgroupLayout) -> Iterator[CgroupTree]:
    """An open tree; nothing of it stays."""
    try:
        opened = CgroupTree.create(layout, new_instance(), warden_gid=WARDEN)
    except HostError as error:
        pytest.skip(str(error))
    yield opened
    assert [] == opened.close()


@pytest.fixture
def slot(tree: CgroupTree) -> SlotCgroup:
    """An open slot without limits."""
    return tree.open_slot(1)


@pytest.fixture(scope="session")
def spawn_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of cgroup_spawn.c."""
    program = tmp_path_factory.mktemp("cgroup") / "cgroup_spawn"
    program.parent.chmod(0o755)
    source = Path(__file__).with_name("cgroup_spawn.c")
    subprocess.run(["cc", "-static", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return program


@pytest.fixture
def start(spawn_program: Path, tree: CgroupTree) -> Iterator[Start]:
    """Start a command in the leaf of a run by an init of a tree, as root or as another uid; its stdout is a pipe.

    With `until`, return once it has printed that line. What is left ends with the test.
    """
    started: list[tuple[RunCgroup, subprocess.Popen[bytes]]] = []

    def start_in(
        run: RunCgroup, *command: str, uid: int = 0, inits: CgroupTree = tree, until: bytes = b""
    ) -> subprocess.Popen[bytes]:
        fds = [fd for fd in (inits.inits_fd, *inits.inits_tasks_fds, run.dir_fd, *run.tasks_fds) if fd >= 0]
        init = [str(inits.inits_fd), _joined(inits.inits_tasks_fds), str(uid)]
        words = [str(spawn_program), *init, str(run.dir_fd), _joined(run.tasks_fds), "--", *command]
        process = subprocess.Popen(words, pass_fds=fds, stdout=subprocess.PIPE)
        started.append((run, process))
        assert process.stdout is not None
        while until and process.stdout.readline() != until:
            pass
        return process

    yield start_in
    for run, process in started:
        if process.poll() is None:
            run.kill()
        process.communicate(timeout=10)
        run.close_fds()


def _joined(fds: tuple[int, ...]) -> str:
    return ",".join(map(str, fds))
