"""What the whole suite leaves behind: nothing. conftest.py runs this file last."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.census import Census, own_cgroups, take_census

KINDS = ("processes", "mounts", "cgroups", "descriptors", "instances")


@pytest.mark.parametrize("kind", KINDS)
def test_suite_leaves_nothing_behind(
    kind: str, census_before: Census, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """There is exactly as much of each kind after the last test as before the first."""
    after = take_census(tmp_path_factory.getbasetemp())

    assert getattr(census_before, kind) == getattr(after, kind)


def test_census_sees_a_child_process(tmp_path: Path) -> None:
    """A child that was not waited for is counted."""
    before = take_census(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"!")
        child.stdin.flush()
        assert b"!" == child.stdout.read(1)  # it is cat by now, and no copy of us
        after = take_census(tmp_path)
        child.stdin.close()

    assert {f"{child.pid} cat"} == after.processes - before.processes


def test_census_sees_a_descriptor_and_an_instance(tmp_path: Path) -> None:
    """An open file and a directory of an instance are counted, each once."""
    before = take_census(tmp_path)
    instance = tmp_path / "state" / "instances" / "lost"
    instance.mkdir(parents=True)
    left_open = os.open(instance, os.O_RDONLY | os.O_DIRECTORY)
    after = take_census(tmp_path)
    os.close(left_open)

    assert len(before.descriptors) + 1 == len(after.descriptors)
    assert {str(instance)} == after.instances - before.instances


@pytest.mark.requires_root
def test_census_sees_a_mount(tmp_path: Path) -> None:
    """A mount in the namespace of the tests is counted."""
    before = take_census(tmp_path)
    subprocess.run(["mount", "-t", "tmpfs", "left-behind", str(tmp_path)], check=True)
    after = take_census(tmp_path)
    subprocess.run(["umount", str(tmp_path)], check=True)

    (line,) = after.mounts - before.mounts
    assert str(tmp_path) in line


@pytest.mark.requires_root
def test_census_sees_a_control_group_in_every_hierarchy(tmp_path: Path) -> None:
    """A group of ours is counted wherever it was made."""
    before = take_census(tmp_path)
    made = [own / "minisandbox-census" for own in own_cgroups()]
    for group in made:
        group.mkdir()
    after = take_census(tmp_path)
    for group in made:
        group.rmdir()

    assert made
    assert {str(group) for group in made} == after.cgroups - before.cgroups
