"""What the tests of the judge share: a store, and a judge with a supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

import minisandbox
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of this test alone."""
    return Store.open(tmp_path / "judge")


@pytest.fixture
def judge(supervisor: minisandbox.Supervisor, store: Store) -> Judge:
    """A judge of this test alone."""
    return Judge(supervisor=supervisor, store=store)
