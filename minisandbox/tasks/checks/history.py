"""Repositories that whoever solves a task can see: where they are, what their objects hold, and T15."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import trio

from minisandbox.images.rootfs import Rootfs, build_rootfs
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.tasks.checks.case import Case, Report, report, skipped
from minisandbox.tasks.checks.secrets import Secrets

GIT = "git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false"
_PARTS = ("objects", "refs")
"""Directories that lie beside HEAD wherever there is a repository, a bare one too."""

SEEN = """cd {place} || exit 1
ls hooks 2>/dev/null | grep -v '[.]sample$' | sed 's,^,a hook: ,'
[ -s objects/info/alternates ] && echo 'objects from elsewhere'
grep -q '^[[]remote ' config 2>/dev/null && echo 'a remote in its settings'
[ -n "$(find refs/remotes -type f 2>/dev/null)" ] && echo 'a remote'
grep -q ' refs/remotes/' packed-refs 2>/dev/null && echo 'a remote, packed'
true
"""


async def repositories(case: Case) -> list[str]:
    """Return the directories inside, absolute, that are repositories: of the task's files, and of the image."""
    root = case.task.assignment.declared.root
    heads = [path for path in case.task.files if path == "HEAD" or path.endswith("/HEAD")]
    own = [head.removesuffix("HEAD").rstrip("/") for head in heads]
    mine = [f"{root}/{place}".rstrip("/") for place in own if _has_objects(case, place)]
    environment, state = case.task.assignment.environment, case.workshop.judge.supervisor.state
    rootfs = await trio.to_thread.run_sync(build_rootfs, state, environment.rootfs)
    return list(dict.fromkeys([*mine, *await trio.to_thread.run_sync(_of_image, rootfs)]))


def _has_objects(case: Case, place: str) -> bool:
    return any(path.startswith(f"{place}/objects/".lstrip("/")) for path in case.task.files)


def _of_image(rootfs: Rootfs) -> list[str]:
    found = []
    for layer in rootfs.layers:
        for head in layer.path.rglob("HEAD"):
            if not head.is_symlink() and all((head.parent / part).is_dir() for part in _PARTS):
                found.append("/" + str(head.parent.relative_to(Path(layer.path))))
    return found


async def search_history(sandbox: Sandbox, place: str, secrets: Secrets) -> list[str]:
    """Return what is in any object of a repository, reachable or not."""
    result = await sandbox.run(f"cd {shlex.quote(place)} && {GIT} cat-file --batch-all-objects --batch", user="root")
    if not result.ok:
        return [_unreadable(place, result.stderr)]
    return [
        f"{place}: {said}"
        for name, content in objects_in(result.stdout)
        for said in secrets.look(f"object {name[:10]}", content)
    ]


def objects_in(batch: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the objects that `git cat-file --batch` told: a line with name, type, size, then it (git-cat-file(1))."""
    at = 0
    while (end := batch.find(b"\n", at)) >= 0:
        words = batch[at:end].split()
        if len(words) != 3 or not words[2].isdigit():
            return
        size = int(words[2])
        yield words[0].decode(), batch[end + 1 : end + 1 + size]
        at = end + 1 + size + 1


async def history_is_bare(case: Case) -> Report:
    """T15."""
    found = await repositories(case)
    if not found:
        return skipped("there is no repository")
    bad: list[str] = []
    async with case.workshop.open_environment() as sandbox:
        for place in found:
            seen = await sandbox.run(SEEN.format(place=shlex.quote(place)), user="root")
            bad += [f"{place} has {line}" for line in seen.stdout.decode(errors="backslashreplace").splitlines()]
            bad += await _count_commits(sandbox, place)
    return report(bad, [f"{len(found)} repositories"])


async def _count_commits(sandbox: Sandbox, place: str) -> list[str]:
    script = f"cd {shlex.quote(place)} && {GIT} cat-file --batch-all-objects --batch-check='%(objecttype)'"
    result = await sandbox.run(script, user="root")
    if not result.ok:
        return [_unreadable(place, result.stderr)]
    commits = result.stdout.split().count(b"commit")
    return [f"{place} has {commits} commits"] if commits > 1 else []


def _unreadable(place: str, said: bytes) -> str:
    return f"{place} cannot be read: {said[:200].decode(errors='backslashreplace')}"
