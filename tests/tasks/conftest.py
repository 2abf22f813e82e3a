"""What the tests of tasks share: a task whose parts can be replaced, and checks of it one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import minisandbox
from minisandbox.images.state import StateDir
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.store import Store
from minisandbox.tasks.check import CHECKS
from minisandbox.tasks.checks.case import Case, Report
from minisandbox.tasks.task import Task
from minisandbox.tasks.workshop import Workshop
from tests.judge.environments import make_environment
from tests.rootless import missing_for

Look = Callable[..., Awaitable[Report]]


@pytest.fixture(scope="session")
def with_pytest(state_dir: Path) -> str:
    """The name of a rootfs that has pytest."""
    return make_environment(StateDir.open(state_dir))


@pytest.fixture
def workshop(supervisor: minisandbox.Supervisor, tmp_path: Path) -> Iterator[Callable[[Task, int], Workshop]]:
    """Makes workshops that judge with a store of this test alone."""
    if reason := missing_for(("single-id",)):
        pytest.skip(reason)  # cells run as another user than root
    judge = Judge(supervisor=supervisor, store=Store.open(tmp_path / "judge"))
    yield lambda task, runs: Workshop(judge, task, runs)


@pytest.fixture
def look(workshop: Callable[[Task, int], Workshop]) -> Look:
    """Makes some checks of a task in their order, and returns what the last one saw."""

    async def make(task: Task, *ids: str, runs: int = 2, origin: Path | None = None) -> Report:
        case = Case(workshop=workshop(task, runs), origin=origin)
        for name in ids:
            seen = await next(check for check in CHECKS if check.id == name).look(case)
        return seen

    return make
