"""What the tests of the judge share: a store, and a judge with a supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

import minisandbox
from minisandbox.images.state import StateDir
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.store import Store
from tests.judge.environments import make_environment
from tests.rootless import missing_for


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of this test alone."""
    return Store.open(tmp_path / "judge")


@pytest.fixture
def judge(supervisor: minisandbox.Supervisor, store: Store) -> Judge:
    """A judge of this test alone. Its cells run as another user than root, which not every host has."""
    if reason := missing_for(("single-id",)):
        pytest.skip(reason)
    return Judge(supervisor=supervisor, store=store)


@pytest.fixture(scope="session")
def with_pytest(state_dir: Path) -> str:
    """The name of a rootfs that has pytest."""
    return make_environment(StateDir.open(state_dir))
