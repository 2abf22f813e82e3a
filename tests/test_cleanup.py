"""Steps of a clean-up that hang: nobody waits for them without end, and they are named and counted."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import MockClock

from minisandbox import Supervisor
from minisandbox.runtime.cleanup import CLEANUP_DEADLINE_S, Cleanup
from minisandbox.runtime.network import SandboxNetwork
from minisandbox.runtime.telemetry import Event, Telemetry


async def test_a_step_that_hangs_is_left_alone_and_counted(autojump_clock: MockClock) -> None:
    """Also when it is cancelled meanwhile: it is shielded, and has a deadline of its own."""
    telemetry, events = Telemetry(""), list[Event]()
    telemetry.on_event = events.append
    begun = trio.current_time()
    with trio.move_on_after(1):
        await Cleanup(telemetry).wait("network", trio.sleep_forever)
    lasted_s = trio.current_time() - begun

    assert (CLEANUP_DEADLINE_S, {"network": 1}) == (lasted_s, dict(telemetry.stuck))
    assert ["stuck"] == [event["event"] for event in events]


async def test_a_step_in_a_thread_that_hangs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes on by itself; what is asked for next is done."""
    telemetry, hung, done = Telemetry(""), threading.Event(), list[int]()
    cleanup = Cleanup(telemetry)
    monkeypatch.setattr("minisandbox.runtime.cleanup.CLEANUP_DEADLINE_S", 0.1)
    await cleanup.free("layer", lambda: (hung.wait(), None)[1])
    hung.set()
    await cleanup.free("layer", lambda: done.append(1))

    assert ({"layer": 1}, [1]) == (dict(telemetry.stuck), done)


async def test_a_sandbox_whose_proxy_does_not_stop_is_closed(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes end and its slot comes back all the same."""
    monkeypatch.setattr("minisandbox.runtime.cleanup.CLEANUP_DEADLINE_S", 0.1)

    async def hang(network: SandboxNetwork) -> None:
        await trio.sleep_forever()

    with trio.fail_after(60):
        async with supervisor.open_sandbox() as sandbox:
            monkeypatch.setattr(SandboxNetwork, "aclose", hang)
            await sandbox.run(["true"])

    assert ({"network": 1}, 0) == (dict(supervisor.telemetry.stuck), supervisor.live)
    assert () == supervisor.quarantined
