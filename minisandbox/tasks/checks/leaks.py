"""Checks of what whoever solves the task can see: T14, T15, T22."""

from __future__ import annotations

import shlex

import trio

from minisandbox.images.rootfs import Rootfs, build_rootfs
from minisandbox.judge.assignment import StdioWork
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.case import Case, Report, report, skipped
from minisandbox.tasks.checks.statements import new_lines
from minisandbox.tasks.task import Files

LEAST_LETTERS = 12
"""A line of the solution that is shorter may be anywhere."""

MOST_LINES = 200
MOST_BYTES = 4 << 20
"""A file of an image that is larger is no source."""

ROOTS = ("/root", "/home", "/opt", "/srv", "/app", "/tmp", "/var/tmp", "/workspace", "/data", "/tests", "/solution")
"""Where images have what was laid into them."""

GIT = "git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false"


async def nothing_leaks(case: Case) -> Report:
    """T14: lines of the solution and whole answers, in the files, in the history of a repository, and in the image."""
    lines = [line for line in new_lines(await case.gold_files(), case.task.files) if len(line) >= LEAST_LETTERS]
    lines = list(dict.fromkeys(lines))[:MOST_LINES]
    bad = [*_answers_in(case), *_lines_in(case.task.files, lines)]
    if lines:
        environment, state = case.task.assignment.environment, case.workshop.judge.supervisor.state
        rootfs = await trio.to_thread.run_sync(build_rootfs, state, environment.rootfs)
        bad += await trio.to_thread.run_sync(_in_image, rootfs, lines)
        for repository in repositories(case.task.files):
            async with case.workshop.open_environment() as sandbox:
                bad += await _search_history(sandbox, case, repository, lines)
    return report(bad, [f"{len(lines)} lines of the solution were looked for"])


def _answers_in(case: Case) -> list[str]:
    work = case.task.assignment.work
    answers = {test.answer.strip(): test.id for test in work.cases} if isinstance(work, StdioWork) else {}
    answers.pop(b"", None)
    return [
        f"{path} is the answer of {answers[file.content.strip()]}"
        for path, file in case.task.files.items()
        if len(file.content.strip()) >= LEAST_LETTERS and file.content.strip() in answers
    ]


def _lines_in(files: Files, lines: list[str]) -> list[str]:
    """Return where most lines of the solution stand: one alone may be there by chance."""
    bad = []
    for path, file in files.items():
        there = {" ".join(line.split()) for line in file.content.decode(errors="replace").splitlines()}
        found = [line for line in lines if line in there]
        if lines and len(found) * 2 > len(lines):
            bad.append(f"{path} has {len(found)} of {len(lines)} lines of the solution: {found[0]}")
    return bad


def _in_image(rootfs: Rootfs, lines: list[str]) -> list[str]:
    """Return which files of an image have lines of the solution, in the places where such are laid."""
    bad = []
    tops = [layer.path / root.lstrip("/") for layer in rootfs.layers for root in ROOTS]
    for path in (path for top in tops if top.is_dir() for path in top.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
            continue
        there = {" ".join(line.split()) for line in path.read_bytes().decode(errors="replace").splitlines()}
        if found := [line for line in lines if line in there]:
            bad.append(f"{path.name} of the image, in {path.parent.name}, has: {found[0]}")
    return bad


def repositories(files: Files) -> list[str]:
    """Return the directories, relative, that hold a repository."""
    heads = [path for path in files if path == ".git/HEAD" or path.endswith("/.git/HEAD")]
    return [path.removesuffix(".git/HEAD").rstrip("/") or "." for path in heads]


async def _search_history(sandbox: Sandbox, case: Case, repository: str, lines: list[str]) -> list[str]:
    """Return which lines are in any object of a repository, reachable or not."""
    root = shlex.quote(f"{case.task.assignment.declared.root}/{repository}")
    script = f"cd {root} && {GIT} cat-file --batch-all-objects --batch"
    result = await sandbox.run(script, user="root")
    if not result.ok:
        return [f"{repository}/.git cannot be read: {result.stderr[:200].decode(errors='backslashreplace')}"]
    objects = {" ".join(line.split()) for line in result.stdout.decode(errors="replace").splitlines()}
    found = [line for line in lines if line in objects]
    return [f"an object in {repository}/.git has: {line}" for line in found]


async def history_is_bare(case: Case) -> Report:
    """T15."""
    found = repositories(case.task.files)
    if not found:
        return skipped("there is no repository")
    bad: list[str] = []
    for repository in found:
        prefix = ".git/" if repository == "." else f"{repository}/.git/"
        names = [path.removeprefix(prefix) for path in case.task.files if path.startswith(prefix)]
        bad += [
            f"{prefix}{name}: a hook" for name in names if name.startswith("hooks/") and not name.endswith(".sample")
        ]
        bad += [f"{prefix}{name}: objects from elsewhere" for name in names if name == "objects/info/alternates"]
        bad += [f"{prefix}{name}: a remote" for name in names if name.startswith("refs/remotes/")]
        if (
            b'[remote "' in case.task.files[f"{prefix}config"].content
            if f"{prefix}config" in case.task.files
            else False
        ):
            bad.append(f"{prefix}config: a remote")
        bad += await _count_commits(case, repository)
    return report(bad)


async def _count_commits(case: Case, repository: str) -> list[str]:
    root = shlex.quote(f"{case.task.assignment.declared.root}/{repository}")
    script = f"cd {root} && {GIT} cat-file --batch-all-objects --batch-check='%(objecttype)'"
    async with case.workshop.open_environment() as sandbox:
        result = await sandbox.run(script, user="root")
    if not result.ok:
        return [f"{repository}/.git cannot be read: {result.stderr[:200].decode(errors='backslashreplace')}"]
    commits = result.stdout.split().count(b"commit")
    return [f"{repository}/.git has {commits} commits"] if commits > 1 else []


async def tests_are_hidden(case: Case) -> Report:
    """T22: neither the directory of the task nor that of the judge can be read from inside, by root either."""
    places = [case.workshop.judge.store.path / "key", case.workshop.judge.store.path / "blobs"]
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
