"""Programs that read and write, judged end to end in sandboxes."""

from __future__ import annotations

from pathlib import Path

import trio

from minisandbox.judge.assignment import Assignment, Declared, StdioWork, TestCase
from minisandbox.judge.ingest import ingest
from minisandbox.judge.pipeline import Judge, Judged
from minisandbox.judge.seal import feed_directory
from minisandbox.judge.spec import Budget, Outcome

DOUBLE = tuple(TestCase(id=str(n), input=b"%d\n" % n, answer=b"%d\n" % (2 * n)) for n in (1, 7, -3))
BUDGET = Budget(cpu_time_s=2.0, idle_s=4.0, memory_bytes=256 << 20)


async def judged(judge: Judge, folder: Path, files: dict[str, str], work: StdioWork) -> Judged:
    """Judge a submission of these files."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    assignment = Assignment(name="double", work=work, budget=BUDGET, declared=Declared())
    with trio.fail_after(60):
        manifest = await ingest(
            judge.supervisor, judge.store, assignment.declared, feed_directory(folder, assignment.declared)
        )
        return await judge.judge(assignment, manifest)


async def python(judge: Judge, folder: Path, source: str) -> Outcome:
    """Judge a Python program that is to double a number."""
    work = StdioWork(language="python", source="main.py", cases=DOUBLE)
    return (await judged(judge, folder, {"main.py": source}, work)).verdict.decision.verdict


async def test_a_right_program_is_accepted(judge: Judge, tmp_path: Path) -> None:
    """All tests pass, and judging it again makes the same decision."""
    work = StdioWork(language="python", source="main.py", cases=DOUBLE)
    first = await judged(judge, tmp_path / "a", {"main.py": "print(2 * int(input()))"}, work)
    decision = first.verdict.decision

    assert (Outcome.AC, 1.0, 3, 0) == (decision.verdict, decision.score, decision.passed, decision.failed)

    with trio.fail_after(60):
        replay = await judge.replay(first.episode)

    assert replay.same
    assert replay.judged.episode != first.episode
