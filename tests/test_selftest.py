"""The self-test of a supervisor: it passes here, and refuses to serve when the defence of any one layer is off."""

from __future__ import annotations

import socket
import tempfile
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from minisandbox import Bind, HostError, Supervisor, UsageError, load_policy, open_supervisor
from minisandbox.policy import Network
from minisandbox.runtime import opening, selftest
from minisandbox.runtime.selftest import LAYERS, LIMITS, SelfTest, run_self_test

HOST_NETWORK = SelfTest(policy=msgspec.structs.replace(load_policy("default"), network=Network.HOST))


@pytest.fixture
def shared_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of the host that a sandbox can be shown as well."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.qemu
async def test_every_layer_holds_here(supervisor: Supervisor) -> None:
    """The default test passes, and leaves no sandbox and no slot in quarantine."""
    await run_self_test(supervisor)

    assert (0, ()) == (supervisor.live, supervisor.quarantined)


@pytest.mark.parametrize("name", ["default", "strict", "agent"])
async def test_every_policy_that_is_shipped_passes(supervisor: Supervisor, name: str) -> None:
    """The layers do not rest on what one policy forbids beyond another."""
    await run_self_test(supervisor, SelfTest(policy=name))


async def test_a_file_of_the_host_that_can_be_written_is_refused(supervisor: Supervisor, shared_tmp: Path) -> None:
    """Defence off: the directory of the canary is shown inside, writable. What the file holds then is what counts."""
    bind = Bind(source=shared_tmp, target=str(shared_tmp), writable=True)
    with pytest.raises(HostError, match=r"layer files: .* was changed from inside"):
        await run_self_test(supervisor, SelfTest(binds=(bind,)))


async def test_a_file_that_can_be_seen_and_not_written_passes(supervisor: Supervisor, shared_tmp: Path) -> None:
    """The attempt is to write, so a read-only bind is none of its business."""
    await run_self_test(supervisor, SelfTest(binds=(Bind(source=shared_tmp, target=str(shared_tmp)),)))


@pytest.mark.parametrize("layer", ["network", "sockets"])
async def test_the_hosts_network_is_refused(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    """Defence off: each of the two sees it by itself, the interfaces where there are more than loopback."""
    if layer == "network" and {name for _, name in socket.if_nameindex()} == {"lo"}:
        pytest.skip("this host has loopback alone, as a sandbox has")
    monkeypatch.setattr(selftest, "LAYERS", [probe for probe in LAYERS if probe.name == layer])
    with pytest.raises(HostError, match=f"layer {layer}: "):
        await run_self_test(supervisor, HOST_NETWORK)


async def test_processes_of_the_host_are_refused(supervisor: Supervisor) -> None:
    """Defence off: the host's /proc in place of the sandbox's own, which no bind that is checked can put there."""
    bind = Bind(source=Path("/proc"), target="/elsewhere")
    msgspec.structs.force_setattr(bind, "target", "/proc")
    with pytest.raises(HostError, match="layer processes: sees"):
        await run_self_test(supervisor, SelfTest(binds=(bind,)))


@pytest.mark.enforces("memory-limit")
async def test_memory_beyond_the_limit_is_refused(supervisor: Supervisor) -> None:
    """Defence off: a limit that does not stop the command which is meant to exceed it."""
    limits = msgspec.structs.replace(LIMITS, memory_bytes=2 << 30)
    with pytest.raises(HostError, match="layer memory: a command beyond the limit ended with exited 0"):
        await run_self_test(supervisor, SelfTest(limits=limits))


async def test_a_test_that_cannot_be_made_is_no_success(supervisor: Supervisor) -> None:
    """Whatever keeps it from trying is a reason not to serve."""
    bind = Bind(source=Path("/nowhere/at/all"), target="/elsewhere")
    with pytest.raises(UsageError, match="/nowhere/at/all"):
        await run_self_test(supervisor, SelfTest(binds=(bind,)))
    with pytest.raises(HostError, match="self-test cannot be made: its command ended with wall_time"):
        await run_self_test(supervisor, SelfTest(limits=msgspec.structs.replace(LIMITS, wall_time_s=1e-6)))


@pytest.mark.enforces("memory-limit")
async def test_a_supervisor_whose_sandboxes_do_not_hold_does_not_serve(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tests itself unless it is told not to, and leaves nothing when it refuses."""
    monkeypatch.setattr(opening, "run_self_test", partial(run_self_test, test=HOST_NETWORK))
    served = False
    with pytest.raises(HostError, match="does not hold, so none is served"):
        async with open_supervisor(state_dir=state_dir):
            served = True
    left = psutil.Process().children(recursive=True)
    async with open_supervisor(state_dir=state_dir, self_test=False):
        pass

    assert (False, []) == (served, left)


async def test_the_first_sandbox_can_be_opened_when_there_is_one_slot(state_dir: Path) -> None:
    """The test has given its slot back, or it is waited for."""
    async with (
        open_supervisor(state_dir=state_dir, max_sandboxes=1) as supervisor,
        supervisor.open_sandbox() as sandbox,
    ):
        result = await sandbox.run(["true"])

    assert result.ok
