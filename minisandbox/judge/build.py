"""Which judge this is: its version, and the digest of its own sources, so that a verdict names who decided."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@functools.cache
def judge_version() -> str:
    """Return the version of the package and the digest of the judge's sources."""
    try:
        number = version("minisandbox")
    except PackageNotFoundError:
        number = "0"
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(here)}\0{len(content)}\0".encode() + content)
    return f"{number}+sha256:{digest.hexdigest()}"
