"""Where the files that come with the package are: the policies and the rootfs recipes. It never writes there."""

from __future__ import annotations

from pathlib import Path

from minisandbox.errors import HostError

_PACKAGE = Path(__file__).resolve().parent


def data_dir() -> Path:
    """Return the directory that holds `policies/` and `rootfs/`: that of the wheel, else the checkout itself.

    Raises HostError when neither has them, since the installation is damaged then.
    """
    places = (_PACKAGE / "data", _PACKAGE.parent)
    for place in places:
        if (place / "policies").is_dir() and (place / "rootfs").is_dir():
            return place
    raise HostError(f"neither {places[0]} nor {places[1]} holds policies/ and rootfs/; install minisandbox again")
