"""Tasks of repositories: a bug is put into a release that carries its tests, and is to be mended.

Which tests fail because of it, and which pass and must still, is found by running all of them in sandboxes, before and
after. What no test notices, what never ends and what breaks everything is no task, and that is told.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec
import trio

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import Assignment, Declared, Environment, SuiteWork, TaskFile
from minisandbox.judge.bench import Bench
from minisandbox.judge.kinds import suite
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Budget, Cell, Integrity, Manifest, Outcome
from minisandbox.judge.suite_cell import SuiteRun, run_suite
from minisandbox.tasks.sets.bugs import PACKAGE, Bug, bugs_of  # noqa: F401
from minisandbox.tasks.sets.sdists import SDISTS, Release, Sdist, fetch
from minisandbox.tasks.sets.unfit import Unfit
from minisandbox.tasks.task import File, Files, Task
from minisandbox.tasks.workshop import Workshop

NAME = "repositories"
DESCRIPTION = "bugs in libraries, mended so that their own tests pass"
BUGS_EACH = 12
"""How many bugs of each release are tried."""

COUNT = BUGS_EACH * len(SDISTS)
ROOTFS = "python"
SURVEY = Budget(cpu_time_s=120.0, idle_s=20.0, memory_bytes=1 << 30)
MOST_FAILING, MOST_KEPT = 20, 40
"""How many tests a task has at most: a verdict runs them four times."""

BROKEN = 0.5
"""A bug that makes a larger share of all tests fail is no bug, but rubble."""

_PLAIN_ID = re.compile(r"[\w./-]+(?:::\w+)+(?:\[[\w.,-]*\])?")

Outcomes = dict[str, Outcome]


def tasks() -> Iterator[Task | Unfit]:
    """Raise UsageError: these tasks are there only when they were made."""
    raise UsageError(f"the tasks of {NAME} are made by running tests: minisandbox task import {NAME} --out DIR")


async def make(
    judge: Judge,
    *,
    limit: int | None = None,
    rootfs: str = ROOTFS,
    sdists: Sequence[Sdist] = SDISTS,
    tell: Callable[[str], object] = lambda text: None,
) -> list[Task | Unfit]:
    """Make tasks, no more than a limit, of all releases in turn, and say what is none.

    Raises HostError when a release cannot be fetched, UsageError without `swesmith`.
    """
    made: list[Task | Unfit] = []
    begun: dict[str, tuple[Survey, Iterator[Bug]]] = {}
    for _ in range(BUGS_EACH):
        for sdist in sdists:
            if sdist.project not in begun:
                tell(f"{sdist.project} {sdist.version}: running its tests")
                release = await trio.to_thread.run_sync(fetch, sdist)
                survey = await Survey.begin(judge, release, rootfs)
                begun[sdist.project] = survey, survey.bugs()
            survey, bugs = begun[sdist.project]
            if (bug := next(bugs, None)) is None:
                continue
            made.append(await survey.task(bug))
            tell(f"{made[-1].name}: {made[-1].why if isinstance(made[-1], Unfit) else 'made'}")
            if sum(isinstance(each, Task) for each in made) == limit:
                return made
    return made


class Survey:
    """A release, and how its tests end as it is."""

    def __init__(self, judge: Judge, release: Release, rootfs: str) -> None:
        self._judge, self._release, self._rootfs = judge, release, rootfs
        self._right: Outcomes = {}

    @classmethod
    async def begin(cls, judge: Judge, release: Release, rootfs: str) -> Survey:
        """Run the tests twice. Raises UsageError where the environment has the package already, or nothing passes."""
        survey = cls(judge, release, rootfs)
        await survey._refuse_installed()
        first, second = [await survey._run(release.code) for _ in range(2)]
        survey._right = {
            test: Outcome.AC for test, outcome in first.items() if outcome is Outcome.AC is second.get(test)
        }
        if not survey._right:
            raise UsageError(f"no test of {release.sdist.project} passes in the rootfs {rootfs}; has it pytest?")
        return survey

    def bugs(self) -> Iterator[Bug]:
        """Yield bugs, of one file after the other in turn."""
        seed = f"{self._release.sdist.project} {self._release.sdist.version}"
        sources = {
            path: file.content.decode() for path, file in sorted(self._release.code.items()) if path.endswith(".py")
        }
        each = [bugs_of(path, source, seed) for path, source in sources.items()]
        return (bug for turn in itertools.zip_longest(*each) for bug in turn if bug is not None)

    async def task(self, bug: Bug) -> Task | Unfit:
        """Run the tests with a bug, and make a task of it."""
        name = name_of(self._release.sdist, bug)
        files = {**self._release.code, bug.path: File(content=bug.source.encode())}
        seen = await self._run(files)
        missing = self._right.keys() - seen.keys()
        failing = [test for test in self._right if seen.get(test) is not Outcome.AC]
        if missing:
            return Unfit(name=name, why=f"{len(missing)} tests are not reached with it, as {min(missing)}")
        if not failing:
            return Unfit(name=name, why="no test notices it")
        if len(failing) > BROKEN * len(self._right):
            return Unfit(name=name, why=f"{len(failing)} of {len(self._right)} tests fail with it")
        wanted = _spread([test for test in failing if _PLAIN_ID.fullmatch(test)], MOST_FAILING)
        if not wanted:
            return Unfit(name=name, why=f"no id of a test is plain, as {failing[0]}")
        touched = {test.partition("::")[0] for test in wanted}
        passing = [test for test in self._right if seen[test] is Outcome.AC and _PLAIN_ID.fullmatch(test)]
        near = [test for test in passing if test.partition("::")[0] in touched]
        return self._made(name, bug, files, wanted, _spread(near, MOST_KEPT))

    def _made(self, name: str, bug: Bug, files: Files, failing: list[str], passing: list[str]) -> Task:
        sdist = self._release.sdist
        assignment = self._assignment(name, tuple(failing), tuple(passing))
        if suite.caps(assignment):
            assignment = msgspec.structs.replace(assignment, integrity=Integrity.L2)
        return Task(
            name=name,
            instruction=instruction_of(sdist, bug),
            assignment=assignment,
            files=files,
            solution={bug.path: self._release.code[bug.path]},
            metadata={
                "set": NAME,
                "project": sdist.project,
                "version": sdist.version,
                "rule": bug.rule,
                "entity": bug.entity,
                "sdist": f"sha256:{sdist.sha256}",
            },
        )

    def _assignment(self, name: str, failing: tuple[str, ...], passing: tuple[str, ...]) -> Assignment:
        sdist = self._release.sdist
        tests = tuple(TaskFile(path=path, content=file.content) for path, file in sorted(self._release.tests.items()))
        return Assignment(
            name=name,
            work=SuiteWork(fail_to_pass=failing, pass_to_pass=passing, test_roots=sdist.test_roots, files=tests),
            declared=Declared(paths=sdist.packages),
            environment=Environment(rootfs=self._rootfs),
            budget=Budget(cpu_time_s=30.0, idle_s=20.0, memory_bytes=1 << 30),
            integrity=Integrity.L3,
        )

    async def _run(self, files: Files) -> Outcomes:
        """Run all tests on some files, and return how each ended, but for those that are left out."""
        sdist = self._release.sdist
        assignment = msgspec.structs.replace(self._assignment("survey", (), ()), budget=SURVEY)
        task = Task(name="survey", instruction="", assignment=assignment, files=files)
        manifest = Workshop(self._judge, task, 1).manifest({})
        assert isinstance(assignment.work, SuiteWork)
        whole = tuple(path for path in self._release.tests if re.fullmatch(r"(?:.*/)?test_[^/]*\.py", path))
        run = SuiteRun(tests=(), whole=whole, files=assignment.work.files, base=(), manifest=manifest, key=b"survey")
        record = await run_suite(Cell(name="survey"), run, assignment.work, await self._bench(assignment, manifest))
        return {test.id: test.outcome for test in record.tests if not test.id.startswith(sdist.left_out or ("::",))}

    async def _bench(self, assignment: Assignment, manifest: Manifest) -> Bench:
        supervisor = self._judge.supervisor
        return Bench(
            supervisor=supervisor,
            rootfs=await supervisor.find_rootfs(self._rootfs),
            store=self._judge.store,
            assignment=assignment,
            manifest=manifest,
            seed=b"",
        )

    async def _refuse_installed(self) -> None:
        """Raise UsageError where the environment has the package: that would be tested, and be the solution."""
        names = ", ".join(repr(package) for package in self._release.sdist.packages)
        program = f"import importlib.util as u, sys; sys.exit(any(u.find_spec(name) for name in ({names},)))"
        rootfs = await self._judge.supervisor.find_rootfs(self._rootfs)
        async with self._judge.supervisor.open_sandbox(rootfs=rootfs) as sandbox:
            result = await sandbox.run(["python3", "-c", program])
        if not result.ok:
            said = result.stderr[-200:].decode(errors="backslashreplace")
            raise UsageError(f"the rootfs {self._rootfs} has one of {names} itself, or no python3 that runs {said}")


def name_of(sdist: Sdist, bug: Bug) -> str:
    """Return the name of a task: what was changed, how, and a few digits of what came of it."""
    rule = bug.rule.removeprefix("func_pm_")
    digits = hashlib.sha256(bug.source.encode()).hexdigest()[:6]
    return re.sub(r"[^a-z0-9]+", "-", f"{sdist.project} {bug.entity} {rule} {digits}".lower()).strip("-")


def instruction_of(sdist: Sdist, bug: Bug) -> str:
    """Return what is told to who mends a bug."""
    return (
        f"Here lies the library {sdist.project} {sdist.version}, in {' and '.join(sdist.packages)}.\n\n"
        f"Someone changed `{bug.entity}` in `{bug.path}`, and since then it does not do what it should. "
        f"{bug.explanation} Find what is wrong and mend it, so that the library again does what its documentation "
        "says. Its interface must stay as it is.\n\n"
        "The tests that fail because of it are not here, nor are those that pass and must still.\n"
    )


def _spread(items: list[str], most: int) -> list[str]:
    """Return some of the items, evenly over all."""
    step = max(1, -(-len(items) // most))
    return items[::step]
