"""The kind `python`: chosen wheels for a Python, installed by the host's pip as one layer on top of another rootfs.

Only wheels are installed, so no code of a package runs on the host. Where they come from is up to the settings of that
pip, or is a directory of wheels, and then nothing is fetched.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import partial
from pathlib import Path

import msgspec

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
        """Return the layers of the base with one on top. Raises HostError without a Python, UsageError for no package."""
        check_absolute("interpreter", self.interpreter)
        for package in self.packages:
            if not package or package.startswith("-") or "\0" in package:
                raise UsageError(f"{package!r} is no package that pip could install")
        if not self.packages:
            raise UsageError("a recipe of the kind python without packages; name some, or use the base alone")
        base = site.load(str(site.find(self.base)) if "/" in self.base or self.base.endswith(".toml") else self.base)
        if isinstance(base.recipe, PythonRecipe):
            raise UsageError(f"the base {self.base} is of the kind python too; put all packages into one recipe")
        below = base.recipe.plan(msgspec_site(site, base.file.parent))
        wheels = site.find(self.wheels) if self.wheels is not None else None
        interpreter = site.host_root / self.interpreter.lstrip("/")
        facts = [_describe(interpreter), directory_key(wheels, Bounds()) if wheels else "", *sorted(self.packages)]
        key = "sha256:" + hashlib.sha256(repr(("python 1", self.interpreter, facts)).encode()).hexdigest()
        env = {**BASE_ENV, **below.env, **base.recipe.env}
        env |= {"PATH": f"{PREFIX}/bin:{env['PATH']}", "PYTHONPATH": PREFIX}
        layer = LayerPlan(key, partial(_fill, self.packages, interpreter, wheels))
        return Plan(layers=(layer, *below.layers), binds=below.binds, env=env, image=below.image)
