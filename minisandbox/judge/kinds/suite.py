"""The kind *pytest*: tests of a repository, which import the submission into their own interpreter.

The test roots are the task's, whole; pytest reads no settings, plugins or conftest.py of a submission, and reports on a
pipe. But whatever runs in one interpreter can change all of it, so a pass is doubted: by mirrors of the tests, which
nothing honest passes, by a canary, which nothing passes, and by runs with and without files that only test runs need.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import Assignment, SuiteWork, TaskFile
from minisandbox.judge.bench import Bench
from minisandbox.judge.evidence import Code, Evidence, evidence
from minisandbox.judge.integrity import Cap
from minisandbox.judge.mirrors import Way, mirror
from minisandbox.judge.spec import Artifact, Cell, CellRecord, Integrity, Manifest, Plan, Role
from minisandbox.judge.suite_cell import SuiteRun, run_suite

CEILING = Integrity.L3

MAIN_CELL = "main"
NO_MIRROR = Cap(reason="a test that must pass has no mirror", level=Integrity.L2)


def plan(assignment: Assignment, manifest: Manifest, seed: bytes) -> Plan:
    """Return the cell that counts, and those that doubt it."""
    work = _work(assignment)
    tests = (*work.fail_to_pass, *work.pass_to_pass)
    known = {file.path for file in work.files}
    strange = [test for test in tests if test.partition("::")[0] not in known]
    if strange:
        raise UsageError(f"the test {strange[0]!r} is in no file of the task; all of its test roots must be given")
    cells = [Cell(name=MAIN_CELL, tests=tests), Cell(name="canary", role=Role.CANARY, tests=(_canary(work, seed)[1],))]
    for way in Way:
        names = _mirrored(work, way)
        mirrored = tuple(test for test in tests if _function(test) in names)
        if mirrored:
            cells.append(Cell(name=f"mirror-{way.value}", role=Role.MIRROR, tests=mirrored))
    if any(_is_infra(file.path, work) for file in _carried(manifest, work)):
        cells.append(Cell(name="ablate-infra", role=Role.ABLATION, tests=tests))
        if work.fail_to_pass:
            cells.append(Cell(name="infra-only", role=Role.INFRA_ONLY, tests=work.fail_to_pass))
    return Plan(cells=tuple(cells))


def caps(assignment: Assignment) -> tuple[Cap, ...]:
    """Return a cap where not every test of what was to be done can be doubted."""
    work = _work(assignment)
    wanted = {_function(test) for test in work.fail_to_pass or work.pass_to_pass}
    return () if wanted <= _mirrored(work, Way.SENTINEL) else (NO_MIRROR,)


async def run_cell(cell: Cell, bench: Bench) -> CellRecord:
    """Run the tests of a cell, as they are or changed, on all of the submission or on a part of it."""
    work = _work(bench.assignment)
    base, artifacts = _parts(cell.role, work, bench.manifest)
    run = SuiteRun(
        tests=(*work.fail_to_pass, *work.pass_to_pass, *cell.tests) if cell.role is Role.CANARY else cell.tests,
        files=_test_files(cell, work, bench.seed),
        base=base,
        manifest=msgspec.structs.replace(bench.manifest, files=artifacts),
        key=_keyed(bench.seed, cell.name),
    )
    record = await run_suite(cell, run, work, bench)
    if cell.role is not Role.MAIN:
        return record
    return msgspec.structs.replace(record, evidence=(*record.evidence, *_touched(work, bench.manifest)))


def _parts(role: Role, work: SuiteWork, manifest: Manifest) -> tuple[tuple[TaskFile, ...], tuple[Artifact, ...]]:
    """Return what a cell has of the base and of the submission; of two files at one path only one."""
    carried = _carried(manifest, work)
    if role is Role.ABLATION:
        carried = tuple(file for file in carried if not _is_infra(file.path, work))
    if role is Role.INFRA_ONLY:
        carried = tuple(file for file in carried if _is_infra(file.path, work))
    mine = {file.path for file in carried}
    return tuple(file for file in work.base if not _is_test(file.path, work) and not _clashes(file.path, mine)), carried


def _carried(manifest: Manifest, work: SuiteWork) -> tuple[Artifact, ...]:
    """Return the files of a submission that come along: none in a test root, no conftest.py where one is read."""
    tests = {file.path for file in work.files} | set(work.test_roots)
    return tuple(
        file
        for file in manifest.files
        if not _is_test(file.path, work)
        and not _clashes(file.path, tests)
        and not (work.conftest and file.path.rpartition("/")[2] == "conftest.py")
    )


def _clashes(path: str, others: set[str]) -> bool:
    """Return whether a file is where another is, or would have to be a directory for one, or the other way round."""
    parents = {path[:at] for at, letter in enumerate(path) if letter == "/"}
    return path in others or not parents.isdisjoint(others) or any(other.startswith(f"{path}/") for other in others)


def _touched(work: SuiteWork, manifest: Manifest) -> list[Evidence]:
    """Return evidence of files in a test root that are neither the task's nor the base's."""
    known = {(file.path, hashlib.sha256(file.content).hexdigest()) for file in (*work.base, *work.files)}
    paths = tuple(f.path for f in manifest.files if _is_test(f.path, work) and (f.path, f.sha256) not in known)
    return [evidence(Code.E01_TEST_ROOT_TOUCHED, paths=paths)] if paths else []


def _is_test(path: str, work: SuiteWork) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in work.test_roots)


def _is_infra(path: str, work: SuiteWork) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in path.split("/") for pattern in work.infra)


def _test_files(cell: Cell, work: SuiteWork, seed: bytes) -> tuple[TaskFile, ...]:
    if cell.role is Role.CANARY:
        return (*work.files, _canary(work, seed)[0])
    if cell.role is not Role.MIRROR:
        return work.files
    way = Way(cell.name.removeprefix("mirror-"))
    return tuple(_mirror_of(file, way, seed) for file in work.files)


def _mirror_of(file: TaskFile, way: Way, seed: bytes) -> TaskFile:
    if not file.path.endswith(".py"):
        return file
    source = file.content.decode(errors="surrogateescape")

    def choose(name: str, count: int) -> int:
        return int.from_bytes(_keyed(seed, f"{way.value} {file.path}::{name}"), "big") % count

    content = mirror(source, way, choose).source.encode(errors="surrogateescape")
    return msgspec.structs.replace(file, content=content)


def _mirrored(work: SuiteWork, way: Way) -> set[str]:
    """Return the tests that have a mirror, by file and name."""
    return {
        f"{file.path}::{name}"
        for file in work.files
        if file.path.endswith(".py")
        for name in mirror(file.content.decode(errors="surrogateescape"), way, lambda _, __: 0).names
    }


def _function(test: str) -> str:
    """Return a test's id without its parameters."""
    return test.partition("[")[0]


def _canary(work: SuiteWork, seed: bytes) -> tuple[TaskFile, str]:
    """Return a file with a test that fails, beside the others, and its id; nobody could know its name before."""
    name = _keyed(seed, "canary").hex()[:12]
    folder = (work.fail_to_pass or work.pass_to_pass)[0].partition("::")[0].rpartition("/")[0]
    path = f"{folder}/test_{name}.py".lstrip("/")
    source = f"def test_{name}():\n    assert {len(name)} == {int(name[:4], 16) + 13}\n"
    return TaskFile(path=path, content=source.encode()), f"{path}::test_{name}"


def _keyed(seed: bytes, what: str) -> bytes:
    return hmac.digest(seed, what.encode(), "sha256")[:16]


def _work(assignment: Assignment) -> SuiteWork:
    assert isinstance(assignment.work, SuiteWork)
    return assignment.work
