"""Root file systems that are traps: links and files where the launcher mounts something.

Each is a layer on top of that of the `host` rootfs. A canary of the host lies where the trap points to.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox import Bind, StartError, Supervisor, UsageError
from tests.probes.lab import PROBE, probe_bind, run_outside, with_layer

Trap = Callable[[Path, Path], None]
"""Sets a trap at a path of a layer; the second path is the canary, a directory of the host."""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A directory of the host with one file, which must stay as it is."""
    directory = tmp_path / "canary"
    directory.mkdir()
    (directory / "file").write_text("untouched")
    return directory


def is_untouched(canary: Path) -> bool:
    """Return whether a canary is as it was made, and nothing is mounted on it."""
    return not canary.is_mount() and ["file"] == os.listdir(canary) and (canary / "file").read_text() == "untouched"


def link_out(place: Path, canary: Path) -> None:
    """A link to a directory of the host by its path there."""
    place.symlink_to(canary)


def link_up(place: Path, canary: Path) -> None:
    """The same, climbing out first."""
    place.symlink_to("../" * 32 + str(canary))


def link_inside(place: Path, canary: Path) -> None:
    """A link to a directory that is inside, too."""
    place.symlink_to("etc")


def link_to_proc(place: Path, canary: Path) -> None:
    """A link through /proc to the root of whoever follows it."""
    place.symlink_to("/proc/self/root")


def plain_file(place: Path, canary: Path) -> None:
    """A file where a directory is wanted."""
    place.write_text("file")


def fifo(place: Path, canary: Path) -> None:
    """A FIFO, on which a careless open would wait for ever."""
    os.mkfifo(place)


TRAPS = [link_out, link_up, link_inside, link_to_proc, plain_file, fifo]


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
@pytest.mark.parametrize("name", ["dev", "proc"])
async def test_start_refuses_what_is_no_directory(
    supervisor: Supervisor, layer: Path, canary: Path, name: str, trap: Trap
) -> None:
    """Rows 6, 7 and 8: /dev and /proc must be directories of the image's own; the next start is as any other."""
    trap(layer / name, canary)
    with pytest.raises(StartError) as caught:
        async with supervisor.open_sandbox(rootfs=with_layer(supervisor, layer)):
            pass
    async with supervisor.open_sandbox() as sandbox:
        after = await sandbox.run(["/bin/true"])

    assert name == caught.value.stage
    assert is_untouched(canary)
    assert after.ok


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
@pytest.mark.parametrize("target", ["/trap", "/trap/deeper/still"])
async def test_bind_goes_through_no_link(
    supervisor: Supervisor, layer: Path, canary: Path, tmp_path: Path, trap: Trap, target: str
) -> None:
    """Row 7: the target of a bind is found step by step inside; neither a step nor the end may be a link."""
    shown = tmp_path / "shown"
    shown.mkdir()
    trap(layer / "trap", canary)
    with pytest.raises(StartError) as caught:
        bind = Bind(source=shown, target=target)
        async with supervisor.open_sandbox(rootfs=with_layer(supervisor, layer), binds=[bind]):
            pass

    assert "bind" == caught.value.stage
    assert is_untouched(canary)
    assert [] == os.listdir(shown)


@pytest.mark.requires_root
@pytest.mark.parametrize("trap", [link_out, link_up], ids=lambda trap: trap.__name__)
def test_mount_follows_a_link_with_the_defence_off(tmp_path: Path, canary: Path, trap: Trap) -> None:
    """Rows 6, 7 and 8, defence off: mount(8) by path follows the link, and covers the host's directory."""
    (tmp_path / "image").mkdir()
    trap(tmp_path / "image" / "dev", canary)
    script = f"mount -t tmpfs trap {tmp_path}/image/dev && ls -A {canary}"

    assert "" == run_outside(["sh", "-c", script], tmp_path)
    assert is_untouched(canary)


DEVICE_LINKS = ("null", "console", "shm", "pts/0", "ptmx", "tty", "stdin")

USE_DEVICES = """
for name in null console shm/x pts/0 ptmx tty; do echo written 2>/dev/null > /dev/$name; done
stat -c %F /dev/null; stat -f -c %T /dev; cat /inner-canary
"""


async def test_links_below_dev_are_covered(supervisor: Supervisor, layer: Path, canary: Path) -> None:
    """Rows 6 and 7: what an image ships below /dev is never seen: the launcher's tree lies over all of it.

    Defence off does not exist, since no other /dev can be asked for; the link that would be written to is checked.
    """
    (layer / "inner-canary").write_text("untouched")
    for number, name in enumerate(DEVICE_LINKS):
        link = layer / "dev" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(canary / "file" if number % 2 else "/inner-canary")
    async with supervisor.open_sandbox(rootfs=with_layer(supervisor, layer)) as sandbox:
        result = await sandbox.run(USE_DEVICES)

    assert b"character special file\ntmpfs\nuntouched" == result.stdout
    assert is_untouched(canary)


@pytest.mark.parametrize("target", ["/probe-elsewhere", "../../../../probe-elsewhere"])
@pytest.mark.parametrize("name", ["tmp", "run", "var", "etc", "root"])
async def test_link_elsewhere_resolves_inside(supervisor: Supervisor, layer: Path, name: str, target: str) -> None:
    """Row 7: the launcher mounts nothing on /tmp, /run and others; a link there leads to a place of the sandbox."""
    (layer / name).symlink_to(target)
    async with supervisor.open_sandbox(rootfs=with_layer(supervisor, layer)) as sandbox:
        await sandbox.run(["mkdir", "/probe-elsewhere"])
        await sandbox.write_file(f"/{name}/file", b"written")
        read = await sandbox.run(["cat", "/probe-elsewhere/file"])

    assert b"written" == read.stdout
    assert not Path("/probe-elsewhere").exists()


async def test_proc_of_the_image_is_covered(supervisor: Supervisor, layer: Path) -> None:
    """Row 8: a directory with files like those of procfs is covered by a real one (statfs(2): PROC_SUPER_MAGIC)."""
    fake = layer / "proc" / "self" / "attr"
    fake.mkdir(parents=True)
    (fake / "exec").write_text("fake")
    async with supervisor.open_sandbox(rootfs=with_layer(supervisor, layer)) as sandbox:
        result = await sandbox.run(
            "stat -f -c %T /proc /proc/self /proc/sys; cat /proc/self/comm; ls /proc/self/attr/exec"
        )

    assert result.stdout.startswith(b"proc\nproc\nproc\ncat\n")
    assert b"fake" not in result.stdout


@pytest.mark.parametrize("target", ["/proc", "/proc/self", "/proc/1/attr", "/dev", "/dev/null", "/dev/shm"])
def test_nothing_can_be_bound_on_proc_and_dev(tmp_path: Path, target: str) -> None:
    """Row 8: what the launcher has put there cannot be replaced by a policy, either."""
    with pytest.raises(UsageError):
        Bind(source=tmp_path, target=target)


async def test_image_can_hold_the_probe(supervisor: Supervisor, layer: Path, probe_dir: Path) -> None:
    """Rows 6 to 8: a layer without a trap starts as any other, so it was the traps that were refused."""
    (layer / "dev").mkdir()
    (layer / "proc").mkdir()
    rootfs = with_layer(supervisor, layer)
    async with supervisor.open_sandbox(rootfs=rootfs, binds=[probe_bind(probe_dir)]) as sandbox:
        result = await sandbox.run([PROBE, "ids"])

    assert result.ok
