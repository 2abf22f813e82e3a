"""The root of a sandbox is all that is seen, whichever way one leaves it: nothing above it, nothing beneath it.

The launcher puts the new root on top of its own without pivot_root(2), so what lies beneath is looked for as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from minisandbox import Sandbox, Supervisor
from tests.probes.lab import PROBE, SANDBOXED, Defence, parse, policy_of, probe_bind, run_outside

WAYS = (
    "chroot",
    "descriptor",
    "working-directory",
    "unmounting",
    "moving",
    "rejoining",
    "unmounting-a-copy",
    "pivoting",
    "cloning-the-tree",
)

ARRIVES = {
    Defence.DEFAULT: {"chroot", "descriptor", "working-directory"},
    Defence.STRICT: set[str](),
    Defence.PRIVILEGED: {"chroot", "descriptor", "working-directory"},
    Defence.UNFILTERED: {"chroot", "descriptor", "working-directory", "unmounting-a-copy", "pivoting"},
}
"""The ways that a sandbox can go to their end; the others are refused on the way."""


async def ask(sandbox: Sandbox) -> dict[str, str]:
    """Have the probe go all ways, and return what it saw at the end of each."""
    result = await sandbox.run([PROBE, "roots"], cwd="/tmp")
    assert result.ok, result.stderr
    return parse(result.stdout.decode())


def check(defence: Defence, seen: Mapping[str, str]) -> None:
    """Check that nothing but the sandbox's own root was seen, or a file system that the probe itself has mounted."""
    places = {name: outcome for name, outcome in seen.items() if name.startswith("/")}

    assert {} == {name: outcome for name, outcome in seen.items() if outcome.startswith("elsewhere")}
    assert set(WAYS) == set(seen) - set(places)
    assert ARRIVES[defence] == {name for name in WAYS if seen[name] in ("own", "marked")}
    assert {"/proc/1/root", "/proc/1/cwd"} == {name for name, outcome in places.items() if outcome != "own"}


@pytest.mark.qemu
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_no_way_leads_out_of_the_root(supervisor: Supervisor, probe_dir: Path, defence: Defence) -> None:
    """Rows 24, 63 and 64: by chroot, by an old descriptor, by `..` from each mount, by unmounting.

    Neither from a first command nor from a second one, while the first one waits outside of a chroot of its own.
    """
    async with (
        supervisor.open_sandbox(policy=policy_of(defence), binds=[probe_bind(probe_dir)]) as sandbox,
        trio.open_nursery() as nursery,
    ):
        first = await ask(sandbox)
        waiting = trio.Event()

        async def wait_in_a_chroot() -> None:
            code = "mkdir -p /tmp/own; cp -r /probe /tmp/own; exec 9</; chroot /tmp/own /probe/probe ids; echo"
            await sandbox.run(f"{code}; sleep 60", on_stdout=lambda _: waiting.set())

        nursery.start_soon(wait_in_a_chroot)
        await waiting.wait()
        second = await ask(sandbox)
        nursery.cancel_scope.cancel()

    check(defence, first)
    check(defence, second)


async def test_no_way_leads_out_of_one_started_ahead(supervisor: Supervisor, probe_dir: Path) -> None:
    """Row 64: a sandbox that was started before anybody asked for it, in a slot that others had, is no other."""
    policy, binds = policy_of(Defence.DEFAULT), [probe_bind(probe_dir)]
    while not supervisor.parking.parked:
        async with supervisor.open_sandbox(policy=policy, binds=binds):
            pass
    async with supervisor.open_sandbox(policy=policy, binds=binds) as sandbox:
        seen = await ask(sandbox)

    check(Defence.DEFAULT, seen)


@pytest.mark.requires_root
@pytest.mark.parametrize("way", ["chroot", "descriptor", "working-directory"])
def test_ways_lead_out_of_a_chroot(probe_dir: Path, tmp_path: Path, way: str) -> None:
    """Rows 63 and 64, defence off: where chroot(2) alone keeps a process in, the same ways show the host's root."""
    jail = tmp_path / "jail"
    (jail / "proc").mkdir(parents=True)
    (jail / "probe").write_bytes((probe_dir / "probe").read_bytes())
    (jail / "probe").chmod(0o755)
    seen = parse(run_outside(["chroot", jail, "/probe", "roots", way], tmp_path))

    assert seen[way].startswith("elsewhere")
    assert {"usr", "etc", "proc"} <= set(seen[way].split())


@pytest.mark.requires_root
@pytest.mark.parametrize("way", ["unmounting", "unmounting-a-copy", "pivoting"])
def test_ways_lead_beneath_a_root_that_may_be_unmounted(probe_dir: Path, tmp_path: Path, way: str) -> None:
    """Row 63, defence off: a root that is switched in the same fashion, in a mount namespace of the process's own."""
    seen = parse(run_outside([probe_dir / "probe", "stacked", way], tmp_path))

    assert seen[way].startswith("elsewhere")
    assert "secret" in seen[way].split()


@pytest.mark.requires_root
@pytest.mark.parametrize("way", ["chroot", "descriptor", "working-directory", "rejoining"])
def test_climbing_leads_nowhere_beneath_such_a_root(probe_dir: Path, tmp_path: Path, way: str) -> None:
    """Row 63: `..` goes up to the topmost mount of a root, so that even root of the host cannot climb off it."""
    assert {way: "own"} == parse(run_outside([probe_dir / "probe", "stacked", way], tmp_path))
