"""Hidden inputs: a second test of an exercise whose only one can be seen, made by its own reference solutions.

The lines of each input file are put into another order and some are left out; what is right there is what every
reference solution prints. Where they differ, or print what passes as before, there is no such test, and that is told.
"""

from __future__ import annotations

import random

import msgspec

from minisandbox.judge.assignment import StdioWork, TestCase
from minisandbox.spec import Limits
from minisandbox.tasks.by_heart import by_heart_of
from minisandbox.tasks.checks.candidates import others_of
from minisandbox.tasks.checks.case import is_accepted
from minisandbox.tasks.checks.generated import is_told_by
from minisandbox.tasks.task import GENERATED_TESTS, Task
from minisandbox.tasks.workshop import Workshop

HIDDEN = "hidden"
WALL_S = 20.0
LEFT_OUT = 0.2
ATTEMPTS = 8
"""How many orders of lines are tried."""


def varied_files(files: dict[str, bytes], inputs: list[str], seed: str) -> dict[str, bytes]:
    """Return files of which the inputs have other lines: some of those before, in another order."""
    chance = random.Random(seed)
    varied = dict(files)
    for name in inputs:
        lines = files.get(name, b"").splitlines(keepends=True)
        if len(lines) > 1 and b"\0" not in files[name]:
            kept = [line if line.endswith(b"\n") else line + b"\n" for line in lines if chance.random() > LEFT_OUT]
            chance.shuffle(kept)
            varied[name] = b"".join(kept)
    return varied


async def with_hidden_test(workshop: Workshop) -> Task | str:
    """Return the task with a second test, or why there can be none."""
    task = workshop.task
    work = task.assignment.work
    if not isinstance(work, StdioWork):
        return "only programs that print can have one"
    inputs = list(task.metadata.get("inputs", []))
    for attempt in range(ATTEMPTS):
        files = varied_files(work.cases[0].files, inputs, f"{task.name}/{attempt}")
        if files == work.cases[0].files:
            return "no input file has lines that could be in another order"
        answer = await _answer(workshop, files)
        if answer is None or not answer.strip() or answer == work.cases[0].answer:
            continue
        made = _with_test(task, work, TestCase(id=HIDDEN, input=b"", answer=answer, files=files))
        trying = Workshop(workshop.judge, made, 1)
        if await _tells(trying):
            verdicts = await trying.try_files({"solution": made.solution, **others_of(made, made.solution)})
            refused = [name for name, verdict in verdicts.items() if not is_accepted(verdict)]
            return f"for other files the solutions differ: {', '.join(refused)}" if refused else made
    return "the solution prints nothing else for other files"


def _with_test(task: Task, work: StdioWork, test: TestCase) -> Task:
    """Return the task with a test more, of which it says that it was generated; those before can be seen."""
    more = msgspec.structs.replace(work, cases=(*work.cases, test))
    seen = tuple(case.id for case in work.cases)
    return msgspec.structs.replace(
        task,
        assignment=msgspec.structs.replace(task.assignment, work=more, visible=seen),
        metadata={**task.metadata, GENERATED_TESTS: [test.id]},
    )


async def _tells(workshop: Workshop) -> bool:
    """Return whether who knows by heart what can be seen fails the new test, as the checker sees it."""
    verdicts = await workshop.try_files(by_heart_of(workshop.task))
    return any(is_told_by(HIDDEN, verdict, workshop.task.assignment.visible) for verdict in verdicts.values())


async def _answer(workshop: Workshop, files: dict[str, bytes]) -> bytes | None:
    """Return what the solution prints where these files lie."""
    work = workshop.task.assignment.work
    assert isinstance(work, StdioWork)
    root = workshop.task.assignment.declared.root
    async with workshop.open_environment() as sandbox:
        for name, content in files.items():
            if workshop.task.files.get(name) is None or workshop.task.files[name].content != content:
                await sandbox.write_file(f"{root}/{name}", content)
        await sandbox.write_file(f"{root}/{work.source}", workshop.task.solution[work.source].content)
        result = await sandbox.run(["/bin/sh", work.source], cwd=root, limits=Limits(wall_time_s=WALL_S))
    return result.stdout if result.ok else None
