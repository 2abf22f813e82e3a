"""The launcher program: C sources, and the built binary beside them (in the wheel, and after `make` in a checkout)."""

from __future__ import annotations

from pathlib import Path

from minisandbox.errors import HostError


def binary_path() -> Path:
    """Return the path of the launcher binary. Raises HostError when it was not built."""
    return _built("minisandbox-launcher")


def helper_path() -> Path:
    """Return the path of what a warm Python loads (helper.c). Raises HostError when it was not built."""
    return _built("minisandbox-warm.so")


def stub_path() -> Path:
    """Return the path of what a warm Python executes."""
    return Path(__file__).with_name("stub.py")


def _built(name: str) -> Path:
    path = Path(__file__).with_name(name)
    if not path.is_file():
        raise HostError(f"the launcher was not built: {path} is missing; run `make install` in the checkout")
    return path
