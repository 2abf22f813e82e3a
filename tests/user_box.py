"""A process of an ordinary user that opens sandboxes, with what this host gives it or what a test takes away.

As root the tests start it: it imports everything, then becomes a user whom nobody else is, and runs a program.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PR_SET_DUMPABLE = 4
FIRST_SUBORDINATE, SUBORDINATES = 1_000_000, 65536

IMPORT = f"import sys; sys.path.append({str(ROOT / 'tests')!r}); import user_box\n"
"""Imports this module where a package that is installed may be called `tests`, too."""

_PROGRAM = """
import sys
from pathlib import Path
import trio, minisandbox, minisandbox.cli.main, minisandbox.runtime.doctor, rich.console, rich.text, encodings.idna
user_box.become(int(sys.argv[1]))
if sys.argv[2]:
    user_box.have_subordinates(Path(sys.argv[2]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserBox:
    """What the process is given."""

    home: Path
    uid: int
    degrade: tuple[str, ...] = ()
    mappers: Path | None = None
    """A directory with newuidmap and newgidmap; without it there is a single id."""
    group: Path | None = None
    """A control group delegated to the user."""
    options: dict[str, Any] = field(default_factory=dict)

    def start(self, program: str, arguments: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run a program of Python as the user, to its end."""
        words = [str(self.uid), str(self.mappers or ""), *arguments]
        joined = f"open({str(self.group / 'cgroup.procs')!r}, 'w').write('0')\n" if self.group else ""
        return subprocess.run(
            [sys.executable, "-c", joined + IMPORT + _PROGRAM + program, *words],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(self.home), "LANG": "C.UTF-8"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def program(self, body: str) -> str:
        """Return a program that opens `supervisor` and a sandbox `box`, and prints what the body returns."""
        indented = "\n".join(f"            {line}" for line in body.strip().splitlines())
        return f"""
import json
async def main():
    with trio.fail_after(60):
        async with minisandbox.open_supervisor(
            state_dir=Path({str(self.home / "state")!r}),
            self_test=False,
            degrade={[str(name) for name in self.degrade]!r},
        ) as supervisor, supervisor.open_sandbox(**{self.options!r}) as box:
{indented}
print(json.dumps(trio.run(main)))
"""

    def run(self, body: str) -> Any:
        """Run `program` as the user, and return what the body returned."""
        ended = self.start(self.program(body))
        assert 0 == ended.returncode, ended.stderr
        return json.loads(ended.stdout)


def become(uid: int) -> None:
    """Become a user who is nobody else, with no right of root left, and let him look at himself."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def have_subordinates(mappers: Path) -> None:
    """Let this process find a range of subordinate ids, and the programs that map them."""
    from minisandbox.kernel import host, outer

    given = (host.IdRange(first=FIRST_SUBORDINATE, count=SUBORDINATES),)
    host.PLACES = (mappers,)  # type: ignore[assignment]
    outer.read_subordinate_ids = lambda: (given, given)  # type: ignore[attr-defined]
