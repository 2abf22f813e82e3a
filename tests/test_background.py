"""Tasks of ours that serve beside a block."""

from __future__ import annotations

import subprocess
import sys

CRASH = """
import trio
from minisandbox.runtime.background import background

async def crash():
    raise FileNotFoundError("gone")

async def main():
    async with background(crash):
        await trio.sleep_forever()

trio.run(main)
"""


def test_a_crash_is_reported_and_ends_the_block() -> None:
    """It is a bug of ours, which must not look as if something hung."""
    run = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, timeout=30)

    assert 1 == run.returncode
    assert "FileNotFoundError: gone" in run.stderr
    assert "TrioInternalError" in run.stderr
