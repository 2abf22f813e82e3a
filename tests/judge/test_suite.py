"""Tests of a repository: who is right passes, whatever there is beside it, and who is not does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import Assignment, SuiteWork, TaskFile
from minisandbox.judge.evidence import Code
from minisandbox.judge.kinds import suite
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Integrity, Manifest, Outcome
from minisandbox.judge.verdict import Decision
from tests.judge.submissions import decision, judged

TESTS = """import pytest
from mathlib.core import double
from tests.cases import CASES

@pytest.mark.parametrize("x, want", CASES)
def test_double(x, want):
    assert double(x) == want

def test_text():
    assert double("ab") == "abab"

class TestErrors:
    def test_none(self):
        with pytest.raises(TypeError):
            double(None)
"""
OLD = "from mathlib.core import one\n\ndef test_one():\n    assert one() == 1\n"
WORK = SuiteWork(
    fail_to_pass=(
        *("tests/test_core.py::test_double[1-2]", "tests/test_core.py::test_double[3-6]"),
        *("tests/test_core.py::test_text", "tests/test_core.py::TestErrors::test_none"),
    ),
    pass_to_pass=("tests/test_old.py::test_one",),
    files=(
        TaskFile(path="tests/__init__.py", content=b""),
        TaskFile(path="tests/cases.py", content=b"CASES = [(1, 2), (3, 6)]\n"),
        TaskFile(path="tests/test_core.py", content=TESTS.encode()),
        TaskFile(path="tests/test_old.py", content=OLD.encode()),
    ),
    base=(
        TaskFile(path="mathlib/__init__.py", content=b""),
        TaskFile(path="mathlib/core.py", content=b"def one():\n    return 1\n"),
    ),
)
RIGHT = "def one():\n    return 1\n\ndef double(x):\n    return x + x\n"
WRONG = "def one():\n    return 1\n\ndef double(x):\n    return 7\n"


async def decided(judge: Judge, tmp_path: Path, with_pytest: str, files: Mapping[str, str | bytes]) -> Decision:
    """Judge a submission to the task of this module."""
    return await decision(judge, tmp_path / "a", files, WORK, rootfs=with_pytest)


@pytest.mark.slow
async def test_a_right_change_is_accepted(judge: Judge, tmp_path: Path, with_pytest: str) -> None:
    """Each test is reported by its id, the pass is doubted, and judging again decides the same."""
    first = await judged(judge, tmp_path / "a", {"mathlib/core.py": RIGHT}, WORK, rootfs=with_pytest)
    made = first.verdict.decision
    again = await judge.replay(first.episode)

    assert (Outcome.AC, 5, ()) == (made.verdict, made.passed, made.evidence), first.verdict.observations
    assert ("main", "canary", "mirror-sentinel", "mirror-literal", "mirror-data") == made.plan
    assert again.same


async def test_the_base_alone_fails(judge: Judge, tmp_path: Path, with_pytest: str) -> None:
    """What passed before still does; what imports what is missing fails, and is not missed."""
    made = await decided(judge, tmp_path, with_pytest, {})

    assert (Outcome.RTE, 1, 4, ()) == (made.verdict, made.passed, made.failed, made.evidence)


async def test_a_wrong_change_fails(judge: Judge, tmp_path: Path, with_pytest: str) -> None:
    """By exactly the tests that it does not pass."""
    made = await decided(judge, tmp_path, with_pytest, {"mathlib/core.py": WRONG})

    assert (Outcome.WA, 1) == (made.verdict, made.passed)
    assert ["tests/test_old.py::test_one"] == [test.id for test in made.tests if test.outcome is Outcome.AC]


HONEST = {
    "its own tests and settings": {
        "conftest.py": "import pytest\n\n@pytest.fixture\ndef x():\n    return 1\n",
        "tests/test_mine.py": "def test_mine():\n    assert True\n",
        "pytest.ini": "[pytest]\naddopts = -q\n",
        "pyproject.toml": "[project]\nname = 'mathlib'\n",
    },
    "helpers": {"mathlib/helpers.py": "def add(a, b):\n    return a + b\n", "notes.md": "done\n"},
    "noise": {"mathlib/core.py": "import sys\nprint('FAILED ' * 9999)\nprint('1 passed', file=sys.stderr)\n" + RIGHT},
    "a server that is left": {
        "mathlib/core.py": "import subprocess\nsubprocess.Popen(['sleep', '99'], start_new_session=True)\n" + RIGHT
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
async def test_honest_work_is_not_punished(judge: Judge, tmp_path: Path, with_pytest: str, name: str) -> None:
    """Whatever it adds, it passes, and nothing strong is said of it."""
    made = await decided(judge, tmp_path, with_pytest, {"mathlib/core.py": RIGHT, **HONEST[name]})

    assert Outcome.AC is made.verdict
    assert {item.code for item in made.evidence} <= {Code.E01_TEST_ROOT_TOUCHED.name}


@pytest.mark.slow
async def test_a_pass_that_does_not_come_again_is_told(judge: Judge, tmp_path: Path, with_pytest: str) -> None:
    """The tests are run once more beside the canary, here by work that fails beside files that it does not know."""
    seen = "import os\nassert len(os.listdir('/submission/tests')) < 5\n"
    source = RIGHT.replace("    return x + x", "    " + seen.replace("\n", "\n    ") + "return x + x")
    made = await decided(judge, tmp_path, with_pytest, {"mathlib/core.py": source})
    (told,) = made.evidence

    assert (Code.E22_NOT_DETERMINISTIC.name, "canary") == (told.code, told.cell)
    assert set(WORK.fail_to_pass) == set(told.paths)
    assert (Outcome.IE, None) == (made.verdict, made.score)


async def test_slow_work_is_not_suspected(judge: Judge, tmp_path: Path, with_pytest: str) -> None:
    """Beyond its budget it fails, and that is all."""
    made = await decided(judge, tmp_path, with_pytest, {"mathlib/core.py": RIGHT + "while True:\n    pass\n"})

    assert (Outcome.TLE, ()) == (made.verdict, made.evidence)


def test_a_test_that_is_nowhere_is_refused() -> None:
    """A task whose tests are in none of its files is wrong."""
    work = msgspec.structs.replace(WORK, pass_to_pass=("tests/test_other.py::test_x",))
    with pytest.raises(UsageError, match="no file of the task"):
        suite.plan(Assignment(name="x", work=work), Manifest(files=()), b"seed")


def test_a_test_without_a_mirror_caps() -> None:
    """Such a pass cannot be doubted."""
    content = b"def test_x():\n    from mathlib.core import double\n    double(1)\n"
    files = (*WORK.files, TaskFile(path="tests/test_x.py", content=content))
    work = msgspec.structs.replace(WORK, files=files, fail_to_pass=("tests/test_x.py::test_x",))

    assert (suite.NO_MIRROR,) == suite.caps(Assignment(name="x", work=work))
    assert Integrity.L2 is suite.NO_MIRROR.level
    assert () == suite.caps(Assignment(name="x", work=WORK))
