"""The launcher for 64-bit Arm: built without a warning by a cross compiler, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from minisandbox.launcher import binary_path

COMPILER = "aarch64-linux-gnu-gcc"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not installed on this host")
def test_launcher_builds_for_aarch64_without_a_warning(tmp_path: Path) -> None:
    """Nothing in it assumes x86 outside of one table of system calls."""
    copy = shutil.copytree(Path(binary_path()).parent, tmp_path / "launcher")
    subprocess.run(["make", "-s", "-C", copy, "clean"], check=True)
    built = subprocess.run(
        ["make", "-s", "-C", copy, f"CC={COMPILER}", "WERROR=-Werror"], capture_output=True, text=True, check=False
    )
    header = (copy / "minisandbox-launcher").read_bytes()[:20] if built.returncode == 0 else b""

    assert (0, "") == (built.returncode, built.stderr)
    assert b"\xb7\x00" == header[18:20]  # EM_AARCH64 (elf(5), e_machine)
