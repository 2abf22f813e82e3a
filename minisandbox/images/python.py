"""The kind `python`: chosen wheels for a Python, installed by the host's pip as one layer on top of another rootfs.

Only wheels are installed, so no code of a package runs on the host. Where they come from is up to the settings of that
pip, or is a directory of wheels, and then nothing is fetched.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import partial
from pathlib import Path

from minisandbox.binds import check_absolute
from minisandbox.errors import HostError, UsageError
from minisandbox.images.directory import directory_key
from minisandbox.images.recipe import BASE_ENV, Building, LayerPlan, Plan, Recipe, Site
from minisandbox.images.stream import Bounds

PREFIX = "/opt/python"
"""Where the packages are inside: their modules there, their programs in its bin."""

_DESCRIBE = "import sys; print(sys.implementation.cache_tag, *sys.version_info[:3])"
_ADVICE = "install it with pip (Debian, Ubuntu: apt-get install python3-pip), or set interpreter to another Python"


class PythonRecipe(Recipe, frozen=True, kw_only=True, tag="python"):
    """A rootfs with Python packages."""

    packages: tuple[str, ...]
    """What to install, as pip names it: "numpy", "numpy==2.1.3"."""
    base: str = "host"
    """The rootfs below: the name of a recipe, or the path of one. It must have the same Python as `interpreter`."""
    interpreter: str = "/usr/bin/python3"
    """A Python of the host that has pip: it runs the installation and is named in the first line of programs."""
    wheels: str | None = None
    """A directory of wheels to install from, instead of where the host's pip looks."""

    def plan(self, site: Site) -> Plan:
        """Return the layers of the base and one on top.

        Raises HostError without a Python, UsageError for no package or a wrong name.
        """
        check_absolute("interpreter", self.interpreter)
        for package in self.packages:
            if not package or package.startswith("-") or "\0" in package:
                raise UsageError(f"{package!r} is no package that pip could install")
        if not self.packages:
            raise UsageError("a recipe of the kind python without packages; name some, or use the base alone")
        base = site.load(str(site.find(self.base)) if "/" in self.base or self.base.endswith(".toml") else self.base)
        if isinstance(base.recipe, PythonRecipe):
            raise UsageError(f"the base {self.base} is of the kind python too; put all packages into one recipe")
        below = base.recipe.plan(Site(site.host_root, base.file.parent, site.load))
        wheels = site.find(self.wheels) if self.wheels is not None else None
        interpreter = site.host_root / self.interpreter.lstrip("/")
        facts = [_describe(interpreter), directory_key(wheels, Bounds()) if wheels else "", *sorted(self.packages)]
        key = "sha256:" + hashlib.sha256(repr(("python 1", self.interpreter, facts)).encode()).hexdigest()
        env = {**BASE_ENV, **below.env, **base.recipe.env}
        env |= {"PATH": f"{PREFIX}/bin:{env['PATH']}", "PYTHONPATH": PREFIX}
        layer = LayerPlan(key, partial(_fill, self.packages, interpreter, wheels))
        return Plan(layers=(layer, *below.layers), binds=below.binds, env=env, image=below.image)


def _describe(interpreter: Path) -> str:
    """Return kind and version of a Python. Raises HostError when it does not run."""
    return _run([interpreter, "-I", "-c", _DESCRIBE], f"{interpreter} is no Python that runs")


def _fill(packages: tuple[str, ...], interpreter: Path, wheels: Path | None, building: Building) -> None:
    building.meter.begin(f"installing {len(packages)} Python packages")
    target = building.top / PREFIX[1:]
    target.mkdir(parents=True)
    sources: list[str | Path] = ["--no-index", "--find-links", wheels] if wheels is not None else []
    pip: list[str | Path] = [interpreter, "-I", "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
    pip += ["--disable-pip-version-check", "--no-warn-script-location", "--root-user-action=ignore"]
    pip += ["--only-binary=:all:", "--ignore-installed", "--target", target]
    _run([*pip, *sources, "--", *packages], "pip could not install the packages")
    # Here, as most users inside could not keep what they compile; with the paths of inside, and no times.
    command: list[str | Path] = [interpreter, "-I", "-m", "compileall", "-q", "-s", building.top, "-p", "/", target]
    command += ["--invalidation-mode", "unchecked-hash"]
    # It fails for a package that has a file for another Python in it, which is nobody's concern.
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run(command: list[str | Path], failure: str) -> str:
    try:
        ran = subprocess.run(command, cwd="/", umask=0o022, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise HostError(f"{failure}: {error.strerror}; {_ADVICE}") from error
    if ran.returncode != 0:
        said = "; ".join(line for line in ran.stderr.splitlines()[-5:] if line.strip())
        advice = f"; {_ADVICE}" if "No module named pip" in said else ""
        raise HostError(f"{failure} ({ran.returncode}): {said}{advice}")
    return ran.stdout.strip()
