"""Where a task is tried out: submissions are made, as files or by the solution's script, and judged.

It judges with a judge that it is given, whose store it fills. It owns no sandbox beyond a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec
import trio

from minisandbox.judge.assignment import Assignment
from minisandbox.judge.ingest import ingest
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_sandbox, seal
from minisandbox.judge.spec import Artifact, Manifest
from minisandbox.judge.verdict import Verdict
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.tasks.environment import open_environment, put_files
from minisandbox.tasks.task import SOLVE, File, Files, Task

SOLUTION_ROOT = "/solution"
AT_ONCE = 2
"""How many submissions are judged at once."""


class SolveFailedError(Exception):
    """The solution's script failed, so that there is no solution."""


@dataclass(slots=True)
class Workshop:
    """Tries submissions of one task."""

    judge: Judge
    task: Task
    runs: int

    def manifest(self, files: Files) -> Manifest:
        """Return a submission of files over those that lie there at the beginning."""
        artifacts = tuple(self._artifact(path, file) for path, file in sorted({**self.task.files, **files}.items()))
        declared = self.task.assignment.declared.paths
        kept = (item for item in artifacts if any(_is_below(item.path, path) for path in declared))
        return Manifest(files=tuple(kept))

    def _artifact(self, path: str, file: File) -> Artifact:
        digest = self.judge.store.put(file.content)
        return Artifact(path=path, sha256=digest, size=len(file.content), executable=file.executable)

    def files(self, manifest: Manifest) -> Files:
        """Return what a submission has beyond what lay there."""
        made = {
            file.path: File(content=self.judge.store.get(file.sha256), executable=file.executable)
            for file in manifest.files
            if not file.link
        }
        return {path: file for path, file in made.items() if self.task.files.get(path) != file}

    async def gold(self) -> Manifest:
        """Return the submission that solves the task. Raises SolveFailedError."""
        if SOLVE not in self.task.solution:
            return self.manifest(self.task.solution)
        async with self.open_environment() as sandbox:
            await put_files(sandbox, self.task.solution, SOLUTION_ROOT)
            declared = self.task.assignment.declared
            result = await sandbox.run(["/bin/sh", f"{SOLUTION_ROOT}/{SOLVE}"], cwd=declared.root)
            if not result.ok:
                said = (result.stderr or result.stdout)[-300:].decode(errors="backslashreplace")
                raise SolveFailedError(f"{SOLVE} ended with {result.exit_reason.value} {result.exit_code}: {said}")
            await seal(sandbox)
            return await ingest(self.judge.supervisor, self.judge.store, declared, feed_sandbox(sandbox, declared))

    def open_environment(self) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox as whoever solves the task finds it."""
        return open_environment(self.judge.supervisor, self.task)

    async def try_one(self, manifest: Manifest, assignment: Assignment | None = None) -> Verdict:
        """Judge a submission, by the task itself or by a variation of it."""
        return (await self.judge.judge(assignment or self.task.assignment, manifest)).verdict

    async def try_all(self, pairs: Sequence[tuple[Manifest, Assignment | None]]) -> list[Verdict]:
        """Judge submissions, some at once, and return the verdicts in order."""
        verdicts: dict[int, Verdict] = {}
        room = trio.CapacityLimiter(AT_ONCE)

        async def one(at: int) -> None:
            async with room:
                verdicts[at] = await self.try_one(*pairs[at])

        async with trio.open_nursery() as nursery:
            for at in range(len(pairs)):
                nursery.start_soon(one, at)
        return [verdicts[at] for at in range(len(pairs))]

    async def try_files(self, named: dict[str, Files]) -> dict[str, Verdict]:
        """Judge submissions of files, by name."""
        verdicts = await self.try_all([(self.manifest(files), None) for files in named.values()])
        return dict(zip(named, verdicts, strict=True))

    def varied(self, variables: dict[str, str]) -> Assignment:
        """Return what the task is judged by with other variables."""
        before = self.task.assignment.environment
        environment = msgspec.structs.replace(before, variables={**before.variables, **variables})
        return msgspec.structs.replace(self.task.assignment, environment=environment)


def _is_below(path: str, declared: str) -> bool:
    return declared == "." or path == declared or path.startswith(f"{declared}/")
