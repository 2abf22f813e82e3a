"""Checks of what whoever solves the task can see: T14, T22."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import trio

from minisandbox.errors import CommandNotFoundError
from minisandbox.images.rootfs import Rootfs, build_rootfs
from minisandbox.judge.assignment import ScriptWork, StdioWork, SuiteWork, TaskFile
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.case import Case, Report, report
from minisandbox.tasks.checks.history import repositories, search_history
from minisandbox.tasks.checks.secrets import LEAST_LETTERS, MOST_BYTES, Secrets, telling
from minisandbox.tasks.checks.statements import new_lines
from minisandbox.tasks.task import Files

ROOTS = (
    "root",
    "home",
    "opt",
    "srv",
    "app",
    "tmp",
    "var",
    "workspace",
    "data",
    "tests",
    "solution",
    "judge",
    "testbed",
)
"""Where images have what was laid into them."""

COMPILE = """import sys
def walk(code):
    for each in code.co_consts:
        if hasattr(each, "co_code"):
            print(each.co_code.hex())
            walk(each)
walk(compile(sys.stdin.buffer.read(), "solution", "exec", dont_inherit=True))
"""


async def nothing_leaks(case: Case) -> Report:
    """T14: most lines of the solution or of hidden tests, and whole answers, wherever they could be found.

    That is in the files, in objects of repositories, and in the image: also compiled, and in archives.
    """
    secrets = await _secrets(case)
    bad = [said for path, file in case.task.files.items() for said in secrets.look(path, file.content)]
    if secrets:
        environment, state = case.task.assignment.environment, case.workshop.judge.supervisor.state
        rootfs = await trio.to_thread.run_sync(build_rootfs, state, environment.rootfs)
        bad += await trio.to_thread.run_sync(_in_image, rootfs, secrets)
        if found := await repositories(case):
            async with case.workshop.open_environment() as sandbox:
                for place in found:
                    bad += await search_history(sandbox, place, secrets)
    lines = sum(len(lines) for lines in secrets.solution.values())
    return report(bad, [f"{lines} lines of the solution were looked for"])


async def _secrets(case: Case) -> Secrets:
    work, gold = case.task.assignment.work, await case.gold_files()
    answers = {case_.answer.strip(): case_.id for case_ in work.cases} if isinstance(work, StdioWork) else {}
    tests = work.files if isinstance(work, SuiteWork | ScriptWork) else ()
    given = {file.content for file in case.task.files.values()}
    return Secrets(
        solution=_by_file((path, new_lines({path: file}, case.task.files)) for path, file in gold.items()),
        tests=_by_file((file.path, _lines_of(file)) for file in tests if file.content not in given),
        answers={answer: name for answer, name in answers.items() if len(answer) >= LEAST_LETTERS},
        codes=await _compiled(case, gold),
    )


def _by_file(pairs: Iterable[tuple[str, Iterator[str]]]) -> dict[str, frozenset[str]]:
    return {path: lines for path, found in pairs if (lines := telling(found))}


def _lines_of(file: TaskFile) -> Iterator[str]:
    for line in file.content.decode(errors="replace").splitlines():
        yield " ".join(line.split())


async def _compiled(case: Case, gold: Files) -> frozenset[bytes]:
    """Return the code of functions that the solution has beyond what lay there, by the Python of the environment."""
    paths = [path for path in gold if path.endswith(".py")]
    codes: set[bytes] = set()
    if not paths:
        return frozenset()
    try:
        async with case.workshop.open_environment() as sandbox:
            for path in paths:
                given = case.task.files.get(path)
                before = await _codes_of(sandbox, given.content) if given is not None else set()
                codes |= await _codes_of(sandbox, gold[path].content) - before
    except* CommandNotFoundError:  # an image without a Python has no compiled code of one
        pass
    return frozenset(codes)


async def _codes_of(sandbox: Sandbox, source: bytes) -> set[bytes]:
    result = await sandbox.run(["python3", "-I", "-S", "-c", COMPILE], stdin=source)
    return {bytes.fromhex(line) for line in result.stdout.decode().split()} if result.ok else set()


def _in_image(rootfs: Rootfs, secrets: Secrets) -> list[str]:
    """Return what the files of an image have. What it shows of the host is not searched: it was laid for no task."""
    bad = []
    for layer in rootfs.layers:
        for path in layer.path.rglob("*"):
            if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
                continue
            inner = path.relative_to(layer.path)
            near = inner.parts[0] in ROOTS
            bad += [f"in the image, {said}" for said in secrets.look(f"/{inner}", path.read_bytes(), near=near)]
    return bad


async def tests_are_hidden(case: Case) -> Report:
    """T22: neither the directory of the task nor that of the judge can be read from inside, by root either."""
    places = [case.workshop.judge.store.path / name for name in ("key", "blobs", "episodes")]
    if case.origin is not None:
        places += [
            case.origin.resolve() / "tests",
            case.origin.resolve() / "solution",
            case.origin.resolve() / "task.toml",
        ]
    bad = []
    async with case.workshop.open_environment() as sandbox:
        for place in places:
            result = await sandbox.run(["ls", "-d", str(place)], user="root")
            if result.exit_code == 0:
                bad.append(f"{place} can be seen from inside")
    if case.origin is None:
        return Report(Status.PASSED if not bad else Status.FAILED, tuple(bad) or ("the task is in no directory",))
    return report(bad, [f"{len(places)} places are not there inside"])
