"""What our own programs in sandboxes are started with: a root file system, our package, and how it is imported there.

They are the processes that read what strangers wrote: the ingest process and the driver. In their sandboxes is nothing
but a Python and this package, which they import without the package's own dependencies.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import msgspec
import trio

import minisandbox
from minisandbox.binds import Bind
from minisandbox.images.prefix import with_prefix
from minisandbox.images.rootfs import Rootfs
from minisandbox.policy import Addresses, Policy, load_policy
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.spec import Limits

PACKAGE = "/judge/minisandbox"
_PYTHON = os.path.join(sys.base_prefix, "bin", "python3")
_IMPORTABLE = (
    "import sys, types; package = types.ModuleType('minisandbox'); package.__path__ = ['" + PACKAGE + "'];"
    " sys.modules['minisandbox'] = package; from minisandbox.judge.{module} import main"
)


async def toolbox(supervisor: Supervisor) -> Rootfs:
    """Return the rootfs of our own tools: the host's, with the Python that runs this, if its user can reach it."""
    host = await supervisor.find_rootfs("host")
    shown = Path(sys.base_prefix).is_relative_to("/usr")
    if shown or not os.access(_PYTHON, os.X_OK):
        return host
    return await trio.to_thread.run_sync(with_prefix, supervisor.state, host, Path(sys.base_prefix))


def package_bind() -> Bind:
    """Return the bind that shows our package."""
    return Bind(source=Path(minisandbox.__file__).parent, target=PACKAGE)


def python() -> str:
    """Return the Python of the toolbox."""
    return _PYTHON if os.access(_PYTHON, os.X_OK) else "python3"


def importing(module: str) -> str:
    """Return code that imports one of our programs, without the package's own, which would want what is not there."""
    return _IMPORTABLE.format(module=module)


def command(module: str) -> list[str]:
    """Return the command that runs one of our programs."""
    return [python(), "-I", "-S", "-B", "-c", importing(module) + "; main()"]


@functools.cache
def cell_policy() -> Policy:
    """Return the policy of all that is started here: that of programs which are only run to be judged, without limits.

    Limits are left to budgets.
    """
    return msgspec.structs.replace(
        load_policy("strict"), addresses=Addresses.FIXED, limits=Limits(disk_inodes=65_536, open_files=256)
    )
