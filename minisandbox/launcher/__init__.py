"""The launcher program: C sources, and the built binary beside them (in the wheel, and after `make` in a checkout)."""

from __future__ import annotations

from pathlib import Path

from minisandbox.errors import HostError


def binary_path() -> Path:
    """Return the path of the launcher binary. Raises HostError when it was not built."""
    path = Path(__file__).with_name("minisandbox-launcher")
    if not path.is_file():
        raise HostError(f"the launcher was not built: {path} is missing; run `make install` in the checkout")
    return path
