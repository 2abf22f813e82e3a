"""Functions that are called over data: what is right passes, and nothing else that a module could do."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.judge.assignment import FunctionWork, call
from minisandbox.judge.comparing import is_same
from minisandbox.judge.evidence import Code
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from tests.judge.submissions import decision, judged

WORK = FunctionWork(
    module="solution",
    calls=(
        call("small", "double", 3, expected=6),
        call("list", "double", [1], expected=[1, 1]),
        call("error", "double", None, raises="TypeError"),
    ),
)
RIGHT = "def double(x):\n    return x + x\n"


async def test_a_right_function_is_accepted(judge: Judge, tmp_path: Path) -> None:
    """What it prints is none of our business, and judging it again decides the same."""
    noisy = "import sys\nprint('PASSED ' * 10000)\nprint('x' * 500000, file=sys.stderr)\n" + RIGHT
    first = await judged(judge, tmp_path / "a", {"solution.py": noisy}, WORK)
    again = await judge.replay(first.episode)

    assert (Outcome.AC, 3) == (first.verdict.decision.verdict, first.verdict.decision.passed)
    assert again.same


CHEATS = {
    "equal to everything": (
        "class E(int):\n __eq__ = lambda s, o: True\n __hash__ = None\ndef double(x): return E(5)\n",
        Outcome.WA,
    ),
    "leaves at import": ("import os\nos._exit(0)\n", Outcome.RTE),
    "leaves at a call": ("import os\ndef double(x): os._exit(0)\n", Outcome.RTE),
    "exits": ("raise SystemExit(0)\n", Outcome.RTE),
    "executes another program": ("import os\nos.execv('/bin/true', ['true'])\n", Outcome.RTE),
    "looks for what is expected": (
        "import sys, gc\ndef double(x):\n"
        " frame = sys._getframe()\n"
        " while frame:\n"
        "  for name, value in frame.f_locals.items():\n"
        "   if name in ('expected', 'want', 'answer'): return value\n"
        "  frame = frame.f_back\n"
        " return None\n",
        Outcome.WA,
    ),
    "answers with the wrong type": ("def double(x):\n    return float(x * 2) if x == 3 else x + x\n", Outcome.WA),
    "says what it was not asked": (
        "import os\nfrom frames import frame\nfor fd in range(3, 9):\n try: os.write(fd, frame(['returned', 6]) * 9)\n"
        " except OSError: pass\ndef double(x): return 6\n",
        Outcome.RTE,
    ),
    "answers the last call twice": (
        "import os\nfrom frames import frame\ndef double(x):\n"
        " for fd in range(3, 9) if x is None else ():\n"
        "  try: os.write(fd, frame(['raised', ['TypeError'], '']))\n  except OSError: pass\n"
        " return x + x\n",
        Outcome.RTE,
    ),
    "writes no frame": (
        "import os\nfor fd in range(3, 9):\n try: os.write(fd, b'\\xff' * 99)\n except OSError: pass\n",
        Outcome.RTE,
    ),
    "is no Python": ("def double(:\n", Outcome.RTE),
    "is patched in place": (
        "import frames, math, importlib\nframes.encode = lambda v, d=0: b'T'\ndef double(x): return 7\n",
        Outcome.RTE,
    ),
    "never returns": ("def double(x):\n while True: pass\n", Outcome.TLE),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_is_not_accepted(judge: Judge, tmp_path: Path, name: str) -> None:
    """Whatever it does to its own process, no answer of it is a pass."""
    source, expected = CHEATS[name]
    made = await decision(judge, tmp_path / "a", {"solution.py": source}, WORK)

    assert (expected, 0.0) == (made.verdict, made.score)


async def test_an_object_is_evidence(judge: Judge, tmp_path: Path) -> None:
    """What is not plain data is told."""
    made = await decision(judge, tmp_path / "a", {"solution.py": "def double(x): return object()\n"}, WORK)

    assert [Code.E14_NOT_PLAIN_DATA.name] == [item.code for item in made.evidence]


async def test_waiting_is_ended_by_the_guard(judge: Judge, tmp_path: Path) -> None:
    """A module that sleeps uses no CPU time, and gets no more than the guard allows."""
    made = await decision(judge, tmp_path / "a", {"solution.py": "import time\ntime.sleep(99)\n"}, WORK)

    assert Outcome.ILE is made.verdict


def test_equal_values_are_of_equal_types() -> None:
    """All the way down."""
    assert is_same([1, (2.0, "x")], [1, (2.0, "x")], None)
    assert is_same({"a": {1, 2}}, {"a": {2, 1}}, None)
    assert is_same(0.1 + 0.2, 0.3, 1e-9)
    assert is_same(float("nan"), float("nan"), None)
    for got, want in [(True, 1), (1.0, 1), ([1], (1,)), ({1: "a"}, {True: "a"}), ({1}, {True}), ("1", 1), (b"a", "a")]:
        assert not is_same(got, want, 1e-6)
    assert not is_same(0.1 + 0.2, 0.3, None)
    assert not is_same(float("inf"), 1.0, 1e9)
