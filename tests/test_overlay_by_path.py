"""Overlays made by path, as kernels before 6.15 need them: all that holds for a sandbox holds for these too."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from minisandbox import Bind, Supervisor, open_supervisor
from minisandbox.kernel.launcher import open_launcher
from minisandbox.runtime import opening
from minisandbox.runtime.features import Seen, find_features
from minisandbox.runtime.selftest import run_self_test
from tests import observer, test_sandbox, test_snapshots
from tests import test_disk as test_state_disk
from tests.probes import test_disk, test_root_switch
from tests.probes.conftest import probe_dir
from tests.probes.lab import with_layer
from tests.test_disk import on_disk

__all__ = ["on_disk", "probe_dir"]

pytestmark = pytest.mark.slow  # all in all

CONFORMANCE = (test_sandbox, test_snapshots, test_state_disk, test_disk, test_root_switch)
"""Their tests are run here once more, on the supervisor of this module."""


@pytest.fixture
async def supervisor(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    """A supervisor whose launcher does not use what newer kernels can do."""
    monkeypatch.setattr(opening, "open_launcher", partial(open_launcher, overlay_by_path=True))
    async with open_supervisor(state_dir=state_dir, self_test=False) as opened:
        yield opened


def _tests_of(module: types.ModuleType) -> dict[str, object]:
    """Return the tests of a module that take a supervisor or a sandbox from their fixtures, by name."""
    tests = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    return {
        name: test
        for name, test in tests.items()
        if inspect.isfunction(test) and not {"supervisor", "sandbox"}.isdisjoint(inspect.signature(test).parameters)
    }


globals().update({name: test for module in CONFORMANCE for name, test in _tests_of(module).items()})


async def test_overlays_are_made_by_path_here(supervisor: Supervisor) -> None:
    """Else this module would test nothing: the launcher has its second mount, and paths below it are used."""
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run(["cat", "/proc/self/mountinfo"])
        mounts = Path(f"/proc/{observer.launcher().pid}/mountinfo").read_text()
    features = {
        each.name: each.ok
        for each in find_features(Seen(mounts=result.stdout.decode(), usage=result.usage, landlock_abi=0))
    }

    assert ["/", "/x"] == sorted(line.split()[4] for line in mounts.splitlines())
    assert "lowerdir=/x/l/0" in result.stdout.decode()
    assert (None, True, None) == tuple(
        features[name] for name in ("overlay by descriptor", "snapshots in memory", "landlock")
    )


async def test_sealed_layers_are_attached_each_in_a_namespace_of_its_own(supervisor: Supervisor) -> None:
    """And no mount of the launcher's stays: each would be copied at every start."""
    launcher = observer.launcher()
    before = Path(f"/proc/{launcher.pid}/mountinfo").read_text()
    async with supervisor.open_sandbox() as sandbox:
        snapshots = []
        for number in range(3):
            await sandbox.run(f"echo {number} >/tmp/{number}")
            snapshots.append(await sandbox.snapshot())
        namespaces = {os.readlink(f"/proc/self/fd/{layer.namespace_fd}") for layer in snapshots[-1].layers}
        seen = await sandbox.run("cat /tmp/*")
    for snapshot in snapshots:
        await snapshot.close()

    assert b"0\n1\n2\n" == seen.stdout
    assert 3 == len(namespaces) and os.readlink(f"/proc/{launcher.pid}/ns/mnt") not in namespaces
    assert before == Path(f"/proc/{launcher.pid}/mountinfo").read_text()


async def test_self_test_passes(supervisor: Supervisor) -> None:
    """Every layer of the defence holds."""
    await run_self_test(supervisor)


async def test_upper_layers_cover_lower_ones(supervisor: Supervisor, tmp_path: Path) -> None:
    """What is in two layers is that of the upper one, what is in one is there, and binds come on top."""
    (tmp_path / "top/etc").mkdir(parents=True)
    (tmp_path / "top/etc/hostname").write_text("covered\n")
    (tmp_path / "bound").mkdir()
    (tmp_path / "bound/file").write_text("bound\n")
    rootfs = with_layer(supervisor, tmp_path / "top")
    binds = [Bind(source=tmp_path / "bound", target="/bound")]
    async with supervisor.open_sandbox(rootfs=rootfs, binds=binds) as sandbox:
        result = await sandbox.run(
            "cat /etc/hostname /bound/file; ls /x /etc/passwd; echo x >/etc/hostname && cat /etc/hostname"
        )

    assert b"covered\nbound\n/etc/passwd\nx\n" == result.stdout
    assert "covered\n" == (tmp_path / "top/etc/hostname").read_text()
