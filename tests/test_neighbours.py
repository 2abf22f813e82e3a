"""Sandboxes that use up all they can get, beside well-behaved ones: these get their results, and in time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import psutil
import pytest
import trio

from bench.hogs import HOGS, LIMITS, Hog
from bench.neighbours import GOOD, look_at
from minisandbox import Sandbox, SandboxError, Supervisor
from tests import observer

pytestmark = [pytest.mark.requires_root, pytest.mark.slow, pytest.mark.enforces("memory-limit", "processes-limit")]

CROWD = 8
FAR_TOO_SLOW = 20.0
"""Times the median without. The benchmark says what to expect; tests run on machines that are busy with others."""


@pytest.mark.parametrize("hog", HOGS, ids=lambda hog: hog.name)
async def test_a_hog_changes_no_result_beside_it(supervisor: Supervisor, hog: Hog) -> None:
    """Every command of its neighbours ends as ever; nothing is left of it, and no slot is lost."""
    with trio.fail_after(120):
        async with _crowd(supervisor) as crowd:
            effect = await look_at(supervisor, crowd, hog, 2)

    assert [] == effect.wrong
    assert 2 <= effect.hog_runs
    assert effect.ratio(0.5) < FAR_TOO_SLOW
    assert () == supervisor.quarantined


async def test_sleepers_in_d_state_are_just_that_and_go(supervisor: Supervisor) -> None:
    """So it is seen that there were some: closing their sandbox ends them."""
    (hog,) = (hog for hog in HOGS if "D state" in hog.name)
    async with trio.open_nursery() as nursery:
        async with supervisor.open_sandbox(limits=LIMITS) as sandbox:
            nursery.start_soon(_run, sandbox, hog)
            with trio.fail_after(30):
                await observer.wait_until(lambda: "disk-sleep" in _states(), trio.lowlevel.checkpoint)
        left = _states()

    assert [] == left


def _states() -> list[str]:
    found: list[str] = []
    for process in observer.workload():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(process.status())
    return found


async def _run(sandbox: Sandbox, hog: Hog) -> None:
    with contextlib.suppress(SandboxError):
        await sandbox.run(["/usr/bin/python3", "-c", hog.program])


@contextlib.asynccontextmanager
async def _crowd(supervisor: Supervisor) -> AsyncIterator[list[Sandbox]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(supervisor.open_sandbox(limits=GOOD)) for _ in range(CROWD)]
