"""A judge that keeps Pythons warm decides as one that starts them, and gives nothing to one submission of another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import minisandbox
from minisandbox.judge.assignment import Assignment, Environment, FunctionWork, call
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from minisandbox.judge.warm import Warm, open_warm
from minisandbox.runtime.template_pool import MOST_TEMPLATES
from tests.facts import IS_USER_MODE_LINUX
from tests.judge.submissions import BUDGET, decision, judged, take_in, write_files
from tests.judge.test_function import CHEATS, RIGHT, WORK
from tests.judge.timed_tasks import TASK


@pytest.fixture
async def warm(supervisor: minisandbox.Supervisor) -> AsyncIterator[Warm]:
    """What is kept warm, for this test."""
    async with open_warm(supervisor, often=1) as made:
        yield made


async def test_warm_and_cold_decide_the_same(judge: Judge, warm: Warm, tmp_path: Path) -> None:
    """To the byte, of what passes and of what does not, and judging it again cold is the same."""
    warmed = replace(judge, warm=warm)
    right = await judged(warmed, tmp_path / "right", {"solution.py": RIGHT}, WORK)
    wrong = await judged(warmed, tmp_path / "wrong", {"solution.py": "def double(x): return x\n"}, WORK)

    assert (Outcome.AC, Outcome.WA) == (right.verdict.decision.verdict, wrong.verdict.decision.verdict)
    assert (await judge.replay(right.episode)).same
    assert (await judge.replay(wrong.episode)).same


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_gains_nothing_by_a_warm_python(judge: Judge, warm: Warm, tmp_path: Path, name: str) -> None:
    """It gets what it gets from a new one."""
    source, expected = CHEATS[name]
    made = await decision(replace(judge, warm=warm), tmp_path / "a", {"solution.py": source}, WORK)

    assert (expected, 0.0) == (made.verdict, made.score)


async def test_nothing_is_left_for_the_next_fork(judge: Judge, warm: Warm, tmp_path: Path) -> None:
    """Neither modules nor files nor variables, of whoever was judged before."""
    work = FunctionWork(module="solution", calls=(call("seen", "seen", expected=[]),))
    source = """import os, pathlib, sys, builtins, frames
traces = [hasattr(builtins, "left"), hasattr(frames, "left"), os.path.exists("/tmp/left"), "LEFT" in os.environ]
builtins.left = frames.left = True
pathlib.Path("/tmp/left").touch()
os.environ["LEFT"] = "1"

def seen():
    return [name for name, there in zip(("builtins", "frames", "files", "variables"), traces) if there]
"""
    warmed = replace(judge, warm=warm)
    made = [await decision(warmed, tmp_path / name, {"solution.py": source}, work) for name in ("a", "b", "c")]

    assert [Outcome.AC] * 3 == [each.verdict for each in made]


async def test_an_environment_has_its_own_variables(judge: Judge, warm: Warm, tmp_path: Path) -> None:
    """Also such as a Python reads when it starts, and never again."""
    work = FunctionWork(module="solution", calls=(call("hash", "told", expected=None),))
    environment = Environment(variables={"PLACE": "here", "PYTHONHASHSEED": "7"})
    assignment = Assignment(name="test", work=work, budget=BUDGET, environment=environment)
    source = "import os\ndef told(): raise ValueError(f\"{hash('a')} {os.environ['PLACE']}\")\n"
    manifest = await take_in(judge, write_files(tmp_path / "a", {"solution.py": source}), assignment)
    verdicts = [(await each.judge(assignment, manifest)).verdict for each in (judge, replace(judge, warm=warm))]
    notes = [verdict.observations.cells[0].notes for verdict in verdicts]

    assert notes[0] == notes[1]
    assert "here" in notes[0][0]


@pytest.mark.skipif(IS_USER_MODE_LINUX, reason="user-mode Linux counts CPU time in ticks")
async def test_speed_is_measured_in_warm_pythons(judge: Judge, warm: Warm, tmp_path: Path) -> None:
    """As in new ones."""
    fast = "def ranked(numbers):\n    return sorted(numbers, reverse=True)\n"
    made = await decision(replace(judge, warm=warm), tmp_path / "a", {"solution.py": fast}, TASK)

    assert Outcome.AC is made.verdict


async def test_where_there_is_no_python_cells_say_so(judge: Judge, warm: Warm, tmp_path: Path) -> None:
    """A template that cannot be made is none, and no failure of its own."""
    rootfs = await judge.supervisor.find_rootfs("busybox")

    assert await warm.shim(rootfs, {}) is None
    assert await warm.shim(rootfs, {}) is None


LAYOUT = (
    "import ctypes\ndef told(): raise ValueError([id(None), id(object), ctypes.addressof(ctypes.CDLL(None).puts)])\n"
)


@pytest.mark.parametrize("is_warm", [False, True])
async def test_addresses_are_the_same_in_all_cells(judge: Judge, tmp_path: Path, is_warm: bool) -> None:
    """What depends on them is repeated, also by a judge that was started anew."""
    work = FunctionWork(module="solution", calls=(call("layout", "told", expected=None),))
    notes = set()
    for name in ("a", "b"):
        async with open_warm(judge.supervisor, often=1) as warm:
            made = await judged(
                replace(judge, warm=warm if is_warm else None), tmp_path / name, {"solution.py": LAYOUT}, work
            )
        notes.add(made.verdict.observations.cells[0].notes)

    assert 1 == len(notes)
    assert "layout: [" in str(notes)


async def test_only_what_is_often_asked_for_is_kept_warm(judge: Judge, supervisor: minisandbox.Supervisor) -> None:
    """Not what is asked for a few times, and no more than there is room for."""
    rootfs = await judge.supervisor.find_rootfs("host")
    async with open_warm(supervisor, often=2) as warm:
        made = [await warm.shim(rootfs, {"N": str(number // 2)}) for number in range(2 * MOST_TEMPLATES + 2)]

    assert [False, True] * MOST_TEMPLATES + [False, False] == [template is not None for template in made]
