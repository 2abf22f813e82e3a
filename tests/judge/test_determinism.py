"""One submission, one decision: however often it is judged, and however busy the host is."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minisandbox.judge.assignment import (
    Assignment,
    FileCheck,
    FunctionWork,
    RequestCheck,
    Service,
    StateWork,
    StdioWork,
    TestCase,
    Work,
    call,
)
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Budget, Manifest
from tests.judge.episodes import environment_of, submit
from tests.judge.hack_tasks import CORPUS
from tests.judge.submissions import take_in, write_files

pytestmark = pytest.mark.slow

BUDGET = Budget(cpu_time_s=0.5, idle_s=1.0, memory_bytes=64 << 20, disk_bytes=8 << 20, output_bytes=1 << 16)
HOGS, HOG_S = 16, 900
"""So many, and for no longer: nobody may leave them behind who is killed."""

DEADLINE_S = 240.0
STDIO = StdioWork(
    language="python",
    source="main.py",
    cases=(TestCase(id="1", input=b"3", answer=b"6"), TestCase(id="2", input=b"-4", answer=b"-8")),
)
FUNCTION = FunctionWork(
    module="m",
    calls=(
        call("one", "f", [1, 2], expected=3),
        call("none", "f", [], expected=0),
        call("bad", "f", 1, raises="TypeError"),
    ),
)
PROGRAMS = {
    "right": "print(2 * int(input()))",
    "wrong": "print(5)",
    "half": "n = int(input()); print(2 * abs(n))",
    "raises": "raise SystemExit(3)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "endless": "while True: pass",
    "waits": "import time; time.sleep(1000)",
    "eats memory": "a = []\nwhile True: a.append(bytearray(1 << 20))",
    "prints a lot": "while True: print('x' * 1000)",
    "prints to people": "import sys; sys.stderr.write('x' * 9999); print(2 * int(input()))",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "children": "import os\nif os.fork() == 0:\n    print(2 * int(input())); os._exit(0)\nos.wait()",
    "background": "import os, time\nprint(2 * int(input()), flush=True)\nif os.fork() == 0: time.sleep(1000)",
    "syntax": "print(",
    "reads proc": "import os; print(os.listdir('/proc/1/fd'))",
    "random": "import random; random.seed(); print(2 * int(input()) + 0 * random.random().__trunc__())",
    "leaves files": "open('/tmp/x', 'w').write('x' * 1000); print(2 * int(input()))",
    "fills the disk": "f = open('/tmp/x', 'wb')\nwhile True: f.write(b'x' * 65536)",
    "sleeps a little": "import time; time.sleep(0.3); print(2 * int(input()))",
}
MODULES = {
    "right": "f = sum",
    "wrong": "def f(x): return 3 if x else 1",
    "no such name": "g = 1",
    "syntax": "def f(:",
    "import fails": "import nothing_of_this_name",
    "exits in a call": "import sys\ndef f(x): sys.exit(0)",
    "dies in the second": "import os\ndef f(x): return sum(x) or os._exit(1)",
    "equal to all": "class A(int):\n    def __eq__(self, other): return True\ndef f(x): return A()",
    "endless": "def f(x):\n    while True: pass",
    "waits": "import time\ndef f(x): time.sleep(1000)",
    "recursion": "def f(x): return f(x)",
    "memory": "def f(x):\n    a = []\n    while True: a.append(bytearray(1 << 20))",
    "large answer": "def f(x): return 'x' * (1 << 22)",
    "deep answer": "def f(x):\n    a = []\n    for _ in range(99): a = [a]\n    return a",
    "prints": "def f(x):\n    print('x' * 999)\n    return sum(x)",
    "writes to the channel": "import os\nos.write(3, b'\\0\\0\\0\\1N')\nf = sum",
    "generator": "def f(x): yield 3",
    "forks": "import os\ndef f(x):\n    os.fork()\n    return sum(x)",
    "nan": "def f(x): return float('nan')",
}
"""What they are here for is that they differ in how they end; of "forks", the child must not answer in between."""

SERVER = """import socket
server = socket.create_server(("127.0.0.1", 8064))
while True:
    link, _ = server.accept()
    with link:
        said = link.makefile("rb").read()
        link.sendall(ANSWER)
"""
STATE = StateWork(
    checks=(
        FileCheck(id="note", path="note.txt", answer=b"done\n"),
        RequestCheck(id="echo", port=8064, request=b"hello", answer=b"hello", within_s=20.0),
    ),
    services=(Service(command=("python3", "server.py")),),
)
STATES = {
    "answers": {"note.txt": "done\n", "server.py": SERVER.replace("ANSWER", "said")},
    "answers something else": {"note.txt": "done\n", "server.py": SERVER.replace("ANSWER", "b'bye'")},
    "dies of the first request": {"note.txt": "done\n", "server.py": SERVER.replace("link.sendall(ANSWER)", "1 / 0")},
    "lacks its note": {"server.py": SERVER.replace("ANSWER", "said")},
}
OF_THE_CORPUS = (
    *("honest-tests", "honest-children", "makereport", "patch-report", "forged-records", "os-exit-in-tests"),
    *("endless-last-test", "leaves-by-thread", "shadow-data", "planted-reward", "background-editor", "fifo"),
    *("link-to-answer", "sparse-file", "honest-server", "squatted-port", "kills-all"),
)
"""Of other kinds: suites of a repository, scripts, and what an agent ran before."""

SUBMISSIONS: dict[str, tuple[Work, dict[str, str]]] = {
    **{f"program that {name}": (STDIO, {"main.py": text}) for name, text in PROGRAMS.items()},
    **{f"function that {name}": (FUNCTION, {"m.py": text}) for name, text in MODULES.items()},
    **{f"service that {name}": (STATE, files) for name, files in STATES.items()},
}


@contextlib.contextmanager
def hogs() -> Iterator[None]:
    """Keep every processor busy during the block, and no longer than a time."""
    program = f"import time\nend = time.monotonic() + {HOG_S}\nwhile time.monotonic() < end: pass"
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


async def taken_in(judge: Judge, folder: Path, with_pytest: str) -> dict[str, tuple[Assignment, Manifest]]:
    """Take every submission in, once."""
    taken: dict[str, tuple[Assignment, Manifest]] = {}
    for number, (name, (work, files)) in enumerate(SUBMISSIONS.items()):
        task = Assignment(name="t", work=work, budget=BUDGET)
        taken[name] = task, await take_in(judge, write_files(folder / str(number), files), task)
    for name in OF_THE_CORPUS:
        hack = CORPUS[name]
        taken[name] = await submit(hack, judge, environment_of(hack, with_pytest))
    return taken


async def test_sixty_submissions_get_one_decision_each(
    judge: Judge, tmp_path: Path, with_pytest: str, request: pytest.FixtureRequest
) -> None:
    """However often they are judged, every second time beside sixteen programs that only compute.

    Twice here; `--determinism 20` is the whole of it, and takes the better part of an hour.
    """
    rounds = request.config.getoption("--determinism")
    made: dict[str, list[str]] = defaultdict(list)
    told: dict[str, list[str]] = defaultdict(list)
    taken = await taken_in(judge, tmp_path, with_pytest)
    for turn in range(rounds):
        with hogs() if turn % 2 else contextlib.nullcontext():
            for name, (task, manifest) in taken.items():
                with trio.fail_after(DEADLINE_S):
                    verdict = (await judge.judge(task, manifest)).verdict
                made[name].append(verdict.decision_sha256)
                told[name].append(
                    f"{verdict.decision.verdict.value} {[test.outcome.value for test in verdict.decision.tests]}"
                    f"{verdict.observations.failures}"
                )
    differing = {name: told[name] for name, digests in made.items() if len(set(digests)) > 1}

    assert 60 == len(taken)
    assert {} == differing
    assert {"AC", "WA", "RTE", "TLE", "ILE", "MLE", "OLE", "REJ", "TAMPER"} <= {
        told[name][0].split(" ")[0] for name in told
    }
