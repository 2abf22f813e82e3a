"""What all tests share: a state directory, a supervisor, a sandbox, and the check that a run leaves nothing behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import minisandbox
from tests.census import Census, take_census

LAST = "test_leaks.py"
"""Runs after everything else, since it looks at what the other tests left behind."""

NEEDS_ROOT = "needs root: sandboxes without it are not there yet"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the test of leaks at the end."""
    items.sort(key=lambda item: item.path.name == LAST)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs root, by its mark or because it opens sandboxes, for an ordinary user."""
    fixtures = getattr(item, "fixturenames", ())
    needs_root = item.get_closest_marker("requires_root") or "supervisor" in fixtures
    if needs_root and os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for each reason."""
    reasons = Counter(_skip_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")


def _skip_reason(report: pytest.TestReport) -> str:
    place_and_reason = report.longrepr
    text = place_and_reason[2] if isinstance(place_and_reason, tuple) else str(place_and_reason)
    return text.removeprefix("Skipped: ")


@pytest.fixture(scope="session", autouse=True)
def census_before(tmp_path_factory: pytest.TempPathFactory) -> Census:
    """What was there before the first test."""
    return take_census(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory for all tests of the run, so that each rootfs is built once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
async def supervisor(state_dir: Path) -> AsyncIterator[minisandbox.Supervisor]:
    """An open supervisor of this test alone. It has no self-test, which has tests of its own and takes its time."""
    async with minisandbox.open_supervisor(state_dir=state_dir, self_test=False) as opened:
        yield opened


@pytest.fixture
async def sandbox(supervisor: minisandbox.Supervisor) -> AsyncIterator[minisandbox.Sandbox]:
    """An open sandbox with the default policy on the host's rootfs."""
    async with supervisor.open_sandbox() as opened:
        yield opened
