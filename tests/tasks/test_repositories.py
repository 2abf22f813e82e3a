"""Tasks of repositories: bugs that tests notice, found by running them, and no way around the tests."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.errors import HostError, TaskError, UsageError
from minisandbox.judge.assignment import SuiteWork
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from minisandbox.judge.store import Store
from minisandbox.tasks.directory import load_task_directory
from minisandbox.tasks.export import write_task
from minisandbox.tasks.mutants import mutants_of
from minisandbox.tasks.sets import bugs, repositories, sdists
from minisandbox.tasks.sets.sdists import SDISTS, Release, Sdist, read_release
from minisandbox.tasks.sets.unfit import Unfit
from minisandbox.tasks.task import File, Files, Task
from minisandbox.tasks.workshop import Workshop
from tests.judge.environments import make_environment

DEADLINE_S = 300.0
CORE = '''"""A library."""


def clamp(value, low, high):
    """Return the value, no lower and no higher than this."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def count(items, wanted):
    """Return how often something is among items."""
    found = 0
    for item in items:
        if item == wanted:
            found = found + 1
    return found
'''
TESTS = """from small.core import clamp, count


def test_clamp():
    assert clamp(5, 1, 3) == 3
    assert clamp(0, 1, 3) == 1


def test_clamp_inside():
    assert clamp(2, 1, 3) == 2


def test_count():
    assert count([1, 2, 1], 1) == 2


def test_count_nothing():
    assert count([], 1) == 0
"""
SDIST = Sdist(
    project="small", version="1.0", sha256="0" * 64, packages=("small",), test_roots=("tests",), dropped=("small/old",)
)
needs_swesmith = pytest.mark.skipif(find_spec("swesmith") is None, reason="the package swesmith is not installed")


def text(content: str) -> File:
    """Return a file."""
    return File(content=content.encode())


RELEASE = Release(
    sdist=SDIST,
    code={"small/__init__.py": text(""), "small/core.py": text(CORE)},
    tests={"tests/test_core.py": text(TESTS)},
)


@pytest.fixture
def judge(supervisor: minisandbox.Supervisor, tmp_path: Path) -> Judge:
    """A judge of this test alone."""
    return Judge(supervisor=supervisor, store=Store.open(tmp_path / "judge"))


@pytest.fixture(scope="module")
def with_pytest(state_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a rootfs that has pytest."""
    return make_environment(minisandbox.StateDir.open(state_dir), tmp_path_factory.mktemp("environment"))


async def made(judge: Judge, rootfs: str, source: str) -> Task | Unfit:
    """Return what comes of the small library with another core."""
    with trio.fail_after(DEADLINE_S):
        survey = await repositories.Survey.begin(judge, RELEASE, rootfs)
        bug = bugs.Bug(path="small/core.py", entity="clamp", rule="func_pm_x", explanation="It is off.", source=source)
        return await survey.task(bug)


BUGGY = CORE.replace("if value > high:", "if value < high:")
CHEATS: dict[str, Files] = {
    "does nothing": {},
    "leaves at import": {"small/core.py": text("import os\nos._exit(0)\n")},
    "leaves when called": {"small/core.py": text("import os\ndef clamp(*a): os._exit(0)\ncount = clamp\n")},
    "equals everything": {
        "small/core.py": text(
            "class E(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\n"
            "def clamp(*_): return E(1)\ndef count(*_): return E(1)\n"
        )
    },
    "changes the tests": {
        "tests/test_core.py": text("def test_clamp(): pass\ndef test_count(): pass\n"),
        "small/conftest.py": text("import pytest\n"),
    },
    "patches reports": {
        "small/core.py": text(
            "import _pytest.reports as r\nold = r.TestReport.from_item_and_call\n"
            "def new(*a):\n    made = old(*a)\n    made.outcome = 'passed'\n    return made\n"
            "r.TestReport.from_item_and_call = new\n" + BUGGY
        )
    },
    "patches assertions": {
        "small/core.py": text("import _pytest.python as p\np.Function.runtest = lambda self: None\n" + BUGGY)
    },
    "brings a plugin": {
        "small/core.py": text(BUGGY),
        "small/__init__.py": text(
            "import pytest, sys\n"
            "def pytest_runtest_makereport(item, call): call.excinfo = None\n"
            "sys.modules['small.plugin'] = sys.modules[__name__]\n"
        ),
    },
}


@pytest.mark.slow
@pytest.mark.requires_root
async def test_a_bug_becomes_a_task_that_only_a_repair_solves(judge: Judge, with_pytest: str, tmp_path: Path) -> None:
    """Its tests are those that turn, the solution passes, and no cheat gets anything."""
    task = await made(judge, with_pytest, BUGGY)
    assert isinstance(task, Task), task
    work = task.assignment.work
    assert isinstance(work, SuiteWork)
    with trio.fail_after(DEADLINE_S):
        verdicts = await Workshop(judge, task, 1).try_files({"solution": task.solution, **CHEATS})

    assert {"tests/test_core.py::test_clamp", "tests/test_core.py::test_clamp_inside"} == set(work.fail_to_pass)
    assert {"tests/test_core.py::test_count", "tests/test_core.py::test_count_nothing"} == set(work.pass_to_pass)
    assert Outcome.AC is verdicts.pop("solution").decision.verdict
    assert {} == {name: verdict.reward for name, verdict in verdicts.items() if verdict.reward.value != 0.0}
    assert task.files["small/core.py"] == text(BUGGY)
    assert not any("test" in path for path in task.files)
    write_task(task, tmp_path / "task")
    assert task.digest == load_task_directory(tmp_path / "task").digest


@pytest.mark.slow
@pytest.mark.requires_root
@pytest.mark.parametrize(
    ("source", "why"),
    [
        (CORE.replace("return value", "return low if False else value"), "no test notices it"),
        (CORE.replace("def ", "def old_"), "4 tests are not reached with it"),
        (CORE.replace("value > high", "value < high").replace("found = 0", "found = 7"), "4 of 4 tests fail with it"),
        (CORE.replace("    found = 0", "    while True: pass"), "tests are not reached with it"),
    ],
    ids=["unnoticed", "not-collected", "rubble", "endless"],
)
async def test_what_is_no_bug_is_no_task(
    judge: Judge, with_pytest: str, source: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is told why."""
    monkeypatch.setattr(repositories, "SURVEY", msgspec.structs.replace(repositories.SURVEY, cpu_time_s=5.0))
    item = await made(judge, with_pytest, source)

    assert isinstance(item, Unfit)
    assert why in item.why


@pytest.mark.requires_root
async def test_an_environment_that_has_the_package_is_refused(judge: Judge, with_pytest: str) -> None:
    """Its code would be tested, whatever was mended."""
    there = msgspec.structs.replace(RELEASE, sdist=msgspec.structs.replace(SDIST, packages=("json",)))
    with pytest.raises(UsageError, match="has one of 'json' itself"):
        await repositories.Survey.begin(judge, there, with_pytest)


@needs_swesmith
def test_bugs_are_the_same_every_time_and_programs() -> None:
    """One for each function at most, each another program than before."""
    first, second = [list(bugs.bugs_of("small/core.py", CORE, "seed")) for _ in range(2)]

    assert first == second
    assert {"clamp", "count"} >= {bug.entity for bug in first}
    assert len(first) == len({bug.entity for bug in first}) > 0
    assert all(bug.source != CORE and compile(bug.source, "core", "exec") for bug in first)


def test_lines_are_put_as_deep_as_they_were() -> None:
    """A method stays one, blank lines stay blank."""
    source = "class A:\n    def f(self):\n        return 1\n\n    x = 1\n"

    assert "class A:\n    def f(self):\n\n        return 2\n\n    x = 1\n" == bugs.spliced(
        source, "def f(self):\n\n    return 2\n", 2, 3
    )


def archive_of(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    """Write an archive."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_an_archive_is_read_without_being_unpacked(tmp_path: Path) -> None:
    """Code and tests apart, what is neither left out, and nothing from outside of it."""
    members = [
        ("small-1.0/small/core.py", b"x"),
        ("small-1.0/small/old/core.py", b"x"),
        ("small-1.0/tests/test_core.py", b"t"),
        ("small-1.0/LICENSE.txt", b"l"),
        ("small-1.0/setup.py", b"s"),
        ("small-1.0/small/../../../etc/passwd", b"e"),
    ]
    release = read_release(SDIST, archive_of(tmp_path / "a.tar.gz", members))

    assert {"small/core.py", "LICENSE.txt"} == release.code.keys()
    assert {"tests/test_core.py"} == release.tests.keys()


@pytest.mark.parametrize("content", [b"", b"no archive", None], ids=["empty", "junk", "without-tests"])
def test_a_strange_archive_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """By a TaskError that names it."""
    path = tmp_path / "a.tar.gz"
    if content is None:
        archive_of(path, [("small-1.0/small/core.py", b"x")])
    else:
        path.write_bytes(content)
    with pytest.raises(TaskError, match=r"a\.tar\.gz"):
        read_release(SDIST, path)


def test_a_release_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what pip says, or that there is none."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(HostError, match=r"small 1\.0"):
        sdists.fetch(SDIST)


def test_mutants_are_of_what_was_mended_alone() -> None:
    """The rest of a file is not the solution's."""
    old, new = {"a.py": text(BUGGY)}, {"a.py": text(CORE)}
    lines = CORE.splitlines()
    names = mutants_of(new, old)

    assert names
    assert all(4 <= int(name.split("line ")[1].split(":")[0]) <= lines.index("    return value") + 1 for name in names)
    assert len(mutants_of(new)) > len(names)


@pytest.mark.slow
@pytest.mark.requires_root
@needs_swesmith
async def test_a_real_library_makes_tasks(judge: Judge, with_pytest: str) -> None:
    """Of a release that pip fetches, with bugs that its own tests notice: only the solutions pass."""
    wanted = [sdist for sdist in SDISTS if sdist.project == "inflection"]
    with trio.fail_after(DEADLINE_S):
        try:
            items = await repositories.make(judge, limit=2, rootfs=with_pytest, sdists=wanted)
        except HostError as error:
            pytest.skip(f"this host has no pip or no index: {error}")
        tasks = [item for item in items if isinstance(item, Task)]
        for task in tasks:
            verdicts = await Workshop(judge, task, 1).try_files({"solution": task.solution, "nothing": {}})

            assert [1.0, 0.0] == [verdict.reward.value for verdict in verdicts.values()]
    assert 2 == len(tasks)
