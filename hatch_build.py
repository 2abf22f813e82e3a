"""Builds the launcher and puts it, the policies and the rootfs recipes into the wheel. It never touches anything else.

The launcher is one static binary that knows nothing of Python, so one wheel serves every Python of an architecture.
An editable install builds it in place and ships nothing: code and files are then found in the checkout.
"""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LAUNCHER = "minisandbox/launcher/minisandbox-launcher"
HELPER = "minisandbox/launcher/minisandbox-warm.so"
SHIPPED = {"policies": "minisandbox/data/policies", "rootfs": "minisandbox/data/rootfs"}


class LauncherBuildHook(BuildHookInterface[Any]):
    """Adds the compiled launcher to a wheel. Raises RuntimeError when it cannot be built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the launcher, then add it to the files of the wheel and the architecture to its name."""
        build_launcher(Path(self.root))
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].extend((LAUNCHER, HELPER))
        build_data["force_include"].update({str(Path(self.root, source)): inner for source, inner in SHIPPED.items()})


def build_launcher(root: Path) -> None:
    """Run the launcher's Makefile. Raises RuntimeError with what to install when make or the compiler fails."""
    advice = "it needs make, a C compiler and the static C library (Debian: apt-get install gcc libc6-dev make)"
    try:
        subprocess.run(["make", "-s", "-C", str(root / LAUNCHER.rpartition("/")[0])], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"cannot build the launcher: {error}; {advice}") from error
    if not (root / LAUNCHER).is_file():
        raise RuntimeError(f"make succeeded but made no {LAUNCHER}; its Makefile must make it by default")
