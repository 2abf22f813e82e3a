"""Metrics: what Prometheus reads is what happened, and asking for it costs the sandboxes nothing."""

from __future__ import annotations

from minisandbox import Limits, Supervisor
from minisandbox.integrations.prometheus import registry_of

PATIENCE_S = 20.0


def value(supervisor: Supervisor, name: str, **labels: str) -> float:
    """Return the value of one metric."""
    found = registry_of(supervisor).get_sample_value(f"minisandbox_{name}", labels)
    assert found is not None, f"no {name} {labels}"
    return found


async def test_a_sandbox_and_its_commands_are_counted(supervisor: Supervisor) -> None:
    """Live ones, starts, ends by reason, kills by limit, and durations that add up to what was seen."""
    async with supervisor.open_sandbox() as sandbox:
        live = value(supervisor, "sandboxes", state="live")
        await sandbox.run(["true"])
        await sandbox.run(["sleep", "60"], limits=Limits(wall_time_s=0.05))

    assert (1, 0) == (live, value(supervisor, "sandboxes", state="live"))
    assert 1 == value(supervisor, "starts_total", outcome="ok", stage="")
    assert (1, 1) == tuple(value(supervisor, "commands_total", reason=reason) for reason in ("exited", "wall_time"))
    assert 1 == value(supervisor, "kills_total", reason="wall_time")
    assert [1, 1, 2, 1] == [value(supervisor, f"{name}_seconds_count") for name in ("open", "start", "run", "close")]
    assert 0.05 <= value(supervisor, "run_seconds_sum") < PATIENCE_S
