"""Nothing is left behind: of a mix of starts that fail, are killed or given up, and of owners that die at any point."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import kills, soak

pytestmark = [pytest.mark.requires_root, pytest.mark.slow]


async def test_a_mix_of_starts_leaves_nothing(tmp_path: Path) -> None:
    """Success, limits, kills, cancellations and faults: each came to its end, all is zero, and memory is flat."""
    report = await soak.soak(tmp_path / "state", starts=250)
    soak.draw(report, tmp_path / "soak.png")

    assert dict.fromkeys(report.left, 0) == report.left
    assert {act.__name__ for act, _ in soak.MIX} == {outcome.partition(":")[0] for outcome in report.outcomes}
    assert {"lose_init: BrokenError", "lack_a_bind: StartError", "reach_memory: memory"} <= report.outcomes.keys()
    assert soak.growth(report, "supervisor_bytes") < 0.1
    assert soak.growth(report, "launcher_bytes") < 0.1


async def test_owners_that_are_killed_leave_nothing(state_dir: Path) -> None:
    """kill -9 of supervisor, launcher, or both: all is gone within 5 s, the next start sweeps, a bystander lives on."""
    report = await kills.kill_rounds(state_dir, rounds=5, sandboxes=10)

    assert 5 == report.rounds
    assert set(kills.TARGETS) == report.killed.keys()
    assert report.slowest_s < kills.SURVIVAL_S
