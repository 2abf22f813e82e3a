"""Set-up names what the host lacks, and changes nothing then."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = ("bash", "dirname", "make")
"""What a host without a compiler still has."""


@pytest.fixture
def poor_path(tmp_path: Path) -> Path:
    """A directory for PATH with neither compiler, Python nor package manager in it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in NEEDED:
        found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        assert found is not None
        (programs / name).symlink_to(found)
    return programs


def set_up(path: Path, venv: Path) -> subprocess.CompletedProcess[str]:
    """Run the set-up of the command alone with nothing else on PATH."""
    bash = str(path / "bash")
    script = [bash, str(ROOT / "tools" / "setup.sh"), str(venv), "base"]
    return subprocess.run(script, env={"PATH": str(path)}, capture_output=True, text=True)


def test_missing_compiler_and_python_are_named(poor_path: Path, tmp_path: Path) -> None:
    """Every missing package is in the one message, and no environment is made."""
    venv = tmp_path / "venv"

    run = set_up(poor_path, venv)

    assert (1, "") == (run.returncode, run.stdout)
    assert "setup: this host lacks: gcc libc6-dev python3 python3-venv\n" in run.stderr
    assert not venv.exists()


def test_python_that_is_too_old_is_named(poor_path: Path, tmp_path: Path) -> None:
    """A host with all but a recent Python hears which one it needs and where to get it."""
    compiler = shutil.which("cc")
    assert compiler is not None
    for name, text in {
        "python3": "#!/usr/bin/env bash\nexit 1\n",
        "cc": f'#!{poor_path}/bash\nPATH=/usr/bin:/bin {compiler} "$@"\n',
    }.items():
        (poor_path / name).write_text(text)
        (poor_path / name).chmod(0o755)
    venv = tmp_path / "venv"

    run = set_up(poor_path, venv)

    assert (1, "") == (run.returncode, run.stdout)
    assert "no Python from 3.11 on" in run.stderr
    assert not venv.exists()
