"""Makes submissions of files, and has them judged, as the tests of the judge do it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import trio

from minisandbox.judge.assignment import Assignment, Environment, Work
from minisandbox.judge.ingest import ingest
from minisandbox.judge.pipeline import Judge, Judged
from minisandbox.judge.seal import feed_directory
from minisandbox.judge.spec import Budget, Manifest
from minisandbox.judge.verdict import Decision

BUDGET = Budget(cpu_time_s=2.0, idle_s=2.0, memory_bytes=256 << 20, output_bytes=1 << 20)
DEADLINE_S = 90.0


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a new directory."""
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


async def take_in(judge: Judge, folder: Path, assignment: Assignment) -> Manifest:
    """Return the manifest of a directory."""
    declared = assignment.declared
    with trio.fail_after(DEADLINE_S):
        return await ingest(judge.supervisor, judge.store, declared, feed_directory(folder, declared))


async def judged(
    judge: Judge, folder: Path, files: Mapping[str, str | bytes], work: Work, *, rootfs: str = "host"
) -> Judged:
    """Judge a submission of these files."""
    assignment = Assignment(name="test", work=work, budget=BUDGET, environment=Environment(rootfs=rootfs))
    manifest = await take_in(judge, write_files(folder, files), assignment)
    with trio.fail_after(DEADLINE_S):
        return await judge.judge(assignment, manifest)


async def decision(
    judge: Judge, folder: Path, files: Mapping[str, str | bytes], work: Work, *, rootfs: str = "host"
) -> Decision:
    """Judge a submission of these files, and return the decision."""
    return (await judged(judge, folder, files, work, rootfs=rootfs)).verdict.decision
