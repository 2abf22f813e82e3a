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

from minisandbox.judge.assignment import Assignment, FunctionWork, StdioWork, TestCase, Work, call
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Budget, Manifest
from tests.judge.submissions import take_in, write_files

pytestmark = pytest.mark.slow

BUDGET = Budget(cpu_time_s=0.5, idle_s=1.0, memory_bytes=64 << 20, disk_bytes=8 << 20, output_bytes=1 << 16)
HOGS, HOG_S = 16, 150
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
    "silent": "pass",
    "raises": "raise SystemExit(3)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "endless": "while True: pass",
    "waits": "import time; time.sleep(1000)",
    "waits for more": "import sys; sys.stdin.read(); import signal; signal.pause()",
    "eats memory": "a = []\nwhile True: a.append(bytearray(1 << 20))",
    "prints a lot": "while True: print('x' * 1000)",
    "prints to people": "import sys; sys.stderr.write('x' * 9999); print(2 * int(input()))",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading\nt = threading.Thread(target=lambda: print(2 * int(input()))); t.start(); t.join()",
    "children": "import os\nif os.fork() == 0:\n    print(2 * int(input())); os._exit(0)\nos.wait()",
    "background": "import os, time\nprint(2 * int(input()), flush=True)\nif os.fork() == 0: time.sleep(1000)",
    "syntax": "print(",
    "forged markers": "print('AC'); print('{\"verdict\": \"AC\"}')",
    "reads proc": "import os; print(os.listdir('/proc/1/fd'))",
    "random": "import random; random.seed(); print(2 * int(input()) + 0 * random.random().__trunc__())",
    "hash order": "print(list({str(i) for i in range(50)})[0] and 2 * int(input()))",
    "leaves files": "open('/tmp/x', 'w').write('x' * 1000); print(2 * int(input()))",
    "fills the disk": "f = open('/tmp/x', 'wb')\nwhile True: f.write(b'x' * 65536)",
    "no network": "import socket; socket.create_connection(('1.1.1.1', 80), 1)",
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "empty lines": "print(); print(2 * int(input())); print()",
    "two answers": "n = int(input()); print(2 * n, 3 * n)",
    "sleeps a little": "import time; time.sleep(0.3); print(2 * int(input()))",
    "works a little": "sum(range(10**6)); print(2 * int(input()))",
}
MODULES = {
    "right": "f = sum",
    "wrong": "def f(x): return 3 if x else 1",
    "one off": "def f(x): return sum(x) + (len(x) == 2)",
    "no such name": "g = 1",
    "no function": "f = 5",
    "syntax": "def f(:",
    "import fails": "import nothing_of_this_name",
    "exits at import": "import os; os._exit(0)",
    "exits in a call": "import sys\ndef f(x): sys.exit(0)",
    "dies in the second": "import os\ndef f(x): return sum(x) or os._exit(1)",
    "equal to all": "class A(int):\n    def __eq__(self, other): return True\ndef f(x): return A()",
    "true for one": "def f(x): return True",
    "float": "def f(x): return float(sum(x))",
    "endless": "def f(x):\n    while True: pass",
    "endless at import": "while True: pass",
    "waits": "import time\ndef f(x): time.sleep(1000)",
    "recursion": "def f(x): return f(x)",
    "memory": "def f(x):\n    a = []\n    while True: a.append(bytearray(1 << 20))",
    "large answer": "def f(x): return 'x' * (1 << 22)",
    "deep answer": "def f(x):\n    a = []\n    for _ in range(99): a = [a]\n    return a",
    "prints": "def f(x):\n    print('x' * 999)\n    return sum(x)",
    "writes to the channel": "import os\nos.write(3, b'\\0\\0\\0\\1N')\nf = sum",
    "closes the channel": "import os\nos.closerange(0, 20)\nf = sum",
    "patches": "import builtins\nbuiltins.type = lambda x: int\nf = sum",
    "generator": "def f(x): yield 3",
    "forks": "import os\ndef f(x):\n    os.fork()\n    return sum(x)",
    "wrong exception": "def f(x):\n    if x == 1: raise ValueError\n    return sum(x)",
    "named exception": "class TypeError(Exception): pass\ndef f(x):\n    if x == 1: raise TypeError\n    return sum(x)",
    "lambda": "f = lambda x: lambda: 3",
    "nan": "def f(x): return float('nan')",
}
"""What they are here for is that they differ in how they end; of "forks", the child must not answer in between."""

SUBMISSIONS: dict[str, tuple[Work, dict[str, str]]] = {
    **{f"program that {name}": (STDIO, {"main.py": text}) for name, text in PROGRAMS.items()},
    **{f"function that {name}": (FUNCTION, {"m.py": text}) for name, text in MODULES.items()},
}
ROUNDS = 3


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


async def test_sixty_submissions_get_one_decision_each(judge: Judge, tmp_path: Path) -> None:
    """Judged three times, the last time beside sixteen programs that only compute."""
    assert 60 == len(SUBMISSIONS)
    made: dict[str, list[str]] = defaultdict(list)
    told: dict[str, list[str]] = defaultdict(list)
    taken: dict[str, tuple[Assignment, Manifest]] = {}
    for number, (name, (work, files)) in enumerate(SUBMISSIONS.items()):
        task = Assignment(name="t", work=work, budget=BUDGET)
        taken[name] = task, await take_in(judge, write_files(tmp_path / str(number), files), task)
    for turn in range(ROUNDS):
        with hogs() if turn == ROUNDS - 1 else contextlib.nullcontext():
            for name, (task, manifest) in taken.items():
                with trio.fail_after(120):
                    verdict = (await judge.judge(task, manifest)).verdict
                made[name].append(verdict.decision_sha256)
                told[name].append(
                    f"{verdict.decision.verdict.value} {[test.outcome.value for test in verdict.decision.tests]}"
                    f"{verdict.observations.failures}"
                )
    differing = {name: told[name] for name, digests in made.items() if len(set(digests)) > 1}

    assert {} == differing
    assert {"AC", "WA", "RTE", "TLE", "ILE", "MLE", "OLE"} <= {told[name][0].split(" ")[0] for name in told}
