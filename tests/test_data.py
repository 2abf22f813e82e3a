"""The files that come with the package are found in a checkout and in a wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import minisandbox
from minisandbox.data import data_dir

FILES = ("policies/default.toml", "policies/default.json", "rootfs/host.toml")


def test_checkout_has_its_files_at_the_top() -> None:
    """Those of the repository are used, with nothing installed."""
    place = data_dir()

    assert Path(minisandbox.__file__).parents[1] == place
    assert [True] * len(FILES) == [(place / file).is_file() for file in FILES]


@pytest.mark.parametrize("home", [".", "minisandbox/data"])
def test_place_depends_on_how_it_was_installed(tmp_path: Path, home: str) -> None:
    """The wheel's own directory comes first, then the one above the package."""
    for directory in ("policies", "rootfs"):
        (tmp_path / directory).mkdir()
        (tmp_path / home / directory).mkdir(parents=True, exist_ok=True)

    assert f"{(tmp_path / home).resolve()}\n" == ask(tmp_path).stdout


def test_damaged_installation_says_so(tmp_path: Path) -> None:
    """With only half of the files, the error names both places and what to do."""
    (tmp_path / "policies").mkdir()

    run = ask(tmp_path)

    assert 1 == run.returncode
    assert "HostError" in run.stderr
    assert f"{tmp_path} holds policies/ and rootfs/; install minisandbox again" in run.stderr


def ask(root: Path) -> subprocess.CompletedProcess[str]:
    """Ask a package with nothing but the module in it, installed below `root`, where its files are."""
    package = root / "minisandbox"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    for module in ("data.py", "errors.py"):
        shutil.copy(Path(minisandbox.__file__).with_name(module), package)
    code = "from minisandbox.data import data_dir; print(data_dir())"
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
