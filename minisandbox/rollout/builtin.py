"""Policies that come along: `oracle`, which plays the task's own solution, and `noop`, which does nothing."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import AsyncIterator, Iterable, Iterator

from minisandbox.judge.assignment import TaskFile
from minisandbox.judge.layout import TaskArchive
from minisandbox.rollout.policy import Player, Policy, PolicyFaultError, Told, TrustedPlayer
from minisandbox.rollout.spec import Action, Observation, Run, Step, Submit, Write
from minisandbox.tasks.task import SOLVE, Files, Task
from minisandbox.tasks.workshop import SOLUTION_ROOT

MOST_WRITES = 8
"""A solution of more files comes as one archive, so that its number of turns is no matter."""


class Script:
    """A policy that plays actions, one after the other, and then submits."""

    def __init__(self, actions: Iterable[Action]) -> None:
        self._actions = iter(actions)

    async def act(self, observation: Observation) -> Step:
        """Return the next one. Raises PolicyFaultError when the one before was refused."""
        outcome = observation.outcome
        if outcome is not None and outcome.error is not None:
            raise PolicyFaultError(f"an action of a script came to nothing: {outcome.error}")
        return Step(action=next(self._actions, None) or Submit())


def oracle_actions(task: Task) -> Iterator[Action]:
    """Yield what solves a task. A task without a solution has nothing to play."""
    is_script = SOLVE in task.solution
    root = SOLUTION_ROOT if is_script else task.assignment.declared.root
    if len(task.solution) > MOST_WRITES:
        yield _unpacked(task.solution, root)
    else:
        for path, file in sorted(task.solution.items()):
            yield Write(path=posixpath.join(root, path), content=file.content, executable=file.executable)
    if is_script:
        yield Run(command=f"/bin/sh {SOLUTION_ROOT}/{SOLVE}")


def _unpacked(files: Files, root: str) -> Action:
    laid = (TaskFile(path=path, content=file.content, executable=file.executable) for path, file in files.items())
    archive = TaskArchive(laid)
    content = b"".join(iter(lambda: archive.read(1 << 20), b""))
    return Run(command=f"mkdir -p {root} && tar -xf - -C {root}", stdin=content)


@contextlib.asynccontextmanager
async def _open_oracle(told: Told, task: Task) -> AsyncIterator[Policy]:
    if not task.solution:
        raise PolicyFaultError("this task has no solution to play")
    yield Script(oracle_actions(task))


@contextlib.asynccontextmanager
async def _open_noop(told: Told) -> AsyncIterator[Policy]:
    yield Script(())


ORACLE = TrustedPlayer("oracle", _open_oracle)
NOOP = Player("noop", _open_noop)
