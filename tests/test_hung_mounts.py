"""A file system that does not answer: what needs it fails in time, and nobody else waits for it.

The file system is a real one (fuse(4)) whose server never says a word, in a mount namespace of a child of ours.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import minisandbox
from tests.facts import HAS_FUSE

pytestmark = pytest.mark.requires_root

CHECKOUT = Path(minisandbox.__file__).parents[1]

CHILD = """
import ctypes, json, os, sys, time
from pathlib import Path
import trio
import minisandbox
from minisandbox.runtime import handles

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
libc = ctypes.CDLL(None, use_errno=True)
state_dir, place, inner, writable = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "writable"
handles.OPEN_DEADLINE_S = 1.0

def must(done):
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

must(libc.unshare(CLONE_NEWNS))
must(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
server = os.open("/dev/fuse", os.O_RDWR)
must(libc.mount(b"hung", str(place).encode(), b"fuse", 0, f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()))

async def main():
    outcome = {"errors": [], "slowest_s": 0.0}
    async with minisandbox.open_supervisor(state_dir=state_dir, self_test=False, max_parked=0) as supervisor:
        async with supervisor.open_sandbox():
            pass
        bind = minisandbox.Bind(source=place / inner, target="/mnt", writable=writable)

        async def hang():
            try:
                async with supervisor.open_sandbox(binds=[bind]) as sandbox:
                    outcome["errors"].append("opened")
            except minisandbox.SandboxError as error:
                outcome["errors"].append(f"{type(error).__name__}: {error}")

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(hang)
            for _ in range(20):
                begun = time.monotonic()
                async with supervisor.open_sandbox() as sandbox:
                    assert (await sandbox.run(["true"])).ok
                outcome["slowest_s"] = max(outcome["slowest_s"], time.monotonic() - begun)
        outcome["left"] = [supervisor.live, len(supervisor.quarantined), supervisor.queue.books.booked.sandboxes]
        os.close(server)  # the kernel gives up what still waits for an answer
    print(json.dumps(outcome))

trio.run(main)
"""


class Outcome(msgspec.Struct):
    """What the child reports."""

    errors: list[str]
    slowest_s: float
    left: list[int]


@pytest.mark.skipif(not HAS_FUSE, reason="this host has no /dev/fuse")
@pytest.mark.parametrize("writable", ["read-only", "writable"])
def test_a_bind_from_a_file_system_that_hangs_fails_in_time(state_dir: Path, tmp_path: Path, writable: str) -> None:
    """Three of them, while others open, run and close as ever; nothing is left, and the child ends."""
    words = [sys.executable, "-c", CHILD, str(state_dir), str(tmp_path), "below/it", writable]
    done = subprocess.run(words, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
    outcome = msgspec.json.decode(done.stdout, type=Outcome)

    assert [0, 0, 0] == outcome.left
    assert 3 == len(outcome.errors)
    assert all("DeadlineError" in error and "does not answer" in error for error in outcome.errors)
    assert outcome.slowest_s < 1.0
