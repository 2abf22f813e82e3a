"""The wheel holds all that a user needs, and nothing that only a developer does."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAUNCHER = "minisandbox/launcher/minisandbox-launcher"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel of this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory], cwd=ROOT, check=True)
    (path,) = directory.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_wheel_is_for_one_architecture_and_any_python(wheel: zipfile.ZipFile) -> None:
    """The launcher is a program of this architecture that knows nothing of Python."""
    assert wheel.filename is not None
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")

    assert wheel.filename.endswith(f"-py3-none-{platform}.whl")


def test_wheel_holds_an_executable_static_launcher(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The launcher keeps its mode, and needs no library of the host."""
    mode = wheel.getinfo(LAUNCHER).external_attr >> 16
    launcher = Path(wheel.extract(LAUNCHER, tmp_path))
    segments = subprocess.run(["readelf", "-lW", launcher], capture_output=True, text=True, check=True).stdout

    assert 0o111 == mode & 0o111
    assert "LOAD" in segments
    assert "INTERP" not in segments


def test_wheel_holds_every_policy_and_recipe(wheel: zipfile.ZipFile) -> None:
    """What the checkout has in policies/ and rootfs/ is where minisandbox.data looks for it."""
    shipped = {path for folder in ("policies", "rootfs") for path in (ROOT / folder).rglob("*") if path.is_file()}

    assert shipped
    assert {f"minisandbox/data/{path.relative_to(ROOT)}" for path in shipped} <= set(wheel.namelist())


def test_wheel_holds_no_source_of_the_launcher_and_no_tests(wheel: zipfile.ZipFile) -> None:
    """Nothing is installed that is used only to build or to test."""
    elsewhere = [name for name in wheel.namelist() if not re.match(r"minisandbox(-[^/]*\.dist-info)?/", name)]
    built_from = [name for name in wheel.namelist() if name.endswith((".c", ".h", "Makefile"))]

    assert [] == elsewhere
    assert [] == built_from
