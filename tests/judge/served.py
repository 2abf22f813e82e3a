"""A judge as a process of its own, under a user whom nobody else is, as root starts it for the tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minisandbox.judge.privilege import User, group_name
from minisandbox.kernel.cgroup import detect_layout
from tests.judge.submissions import write_files
from tests.user_box import IMPORT

ROOT = Path(__file__).parents[2]
READY_S = 60
LIMITS = ("memory-limit", "processes-limit", "cpus-limit")
"""What a host whose controllers are v1 cannot enforce for an ordinary user."""

_PROGRAM = """
from pathlib import Path
if sys.argv[1]:
    user_box.have_subordinates(Path(sys.argv[1]))
from minisandbox.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A judge that listens."""

    pid: int
    uid: int
    place: Path
    socket: Path


@contextlib.contextmanager
def serving(place: Path, uid: int, mappers: Path, tasks: dict[str, dict[str, str]]) -> Iterator[Served]:
    """Start a judge with these tasks for the block; nothing of it stays but its files."""
    user = User(uid, uid, str(uid))
    judge_dir, socket = place / "judge", place / "socket"
    shelf = judge_dir / "tasks"
    shelf.mkdir(parents=True)
    for name, files in tasks.items():
        write_files(shelf / name, files)
    for path in (judge_dir, *judge_dir.rglob("*")):
        os.chown(path, uid, uid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    layout = detect_layout()
    degrade = [] if layout.unified_controllers >= {"memory", "pids", "cpu"} else LIMITS
    words = ["judge", "serve", "--user", str(uid), "--socket", str(socket), "--judge-dir", str(judge_dir)]
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORT + _PROGRAM, mappers, *words, *(f"--degrade={name}" for name in degrade)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"},
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        lines = [process.stderr.readline(), process.stderr.readline()]
        assert "ready" in lines[-1], [*lines, process.stderr.read()]
        yield Served(process.pid, uid, judge_dir, socket)
    finally:
        process.terminate()
        process.communicate(timeout=READY_S)
        if layout.unified is not None:
            for name in ("minisandbox-supervisor", ""):
                with contextlib.suppress(FileNotFoundError):
                    (layout.unified / group_name(user) / name).rmdir()
