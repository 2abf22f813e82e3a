"""Root file systems that are traps: links, files and devices where the launcher mounts, opens or executes something.

Each is a layer on top of that of the `host` rootfs. A canary of the host lies where the trap points to.
"""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox import Bind, Rootfs, StartError, Supervisor, build_rootfs
from minisandbox.errors import UsageError
from minisandbox.images.layer import Layer
from tests.probes.lab import OUTSIDE, PROBE, SANDBOXED, Defence, policy_of, probe_bind, run_outside, skip_without_capability

pytestmark = pytest.mark.requires_root

Trap = Callable[[Path, Path], None]
"""Sets a trap at a path of a layer; the second path is the canary, a directory of the host."""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A directory of the host with one file, which must stay as it is."""
    directory = tmp_path / "canary"
    directory.mkdir()
    (directory / "file").write_text("untouched")
    return directory


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """An empty layer to set traps in."""
    directory = tmp_path / "layer"
    directory.mkdir()
    directory.chmod(0o755)
    return directory


def with_layer(supervisor: Supervisor, layer: Path) -> Rootfs:
    """Return the `host` rootfs with one more layer on top."""
    host = build_rootfs(supervisor.state, "host")
    top = Layer(digest=f"sha256:{secrets.token_hex(32)}", path=layer)
    return Rootfs(name="trap", layers=(top, *host.layers), binds=host.binds, env=host.env)


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


@pytest.mark.parametrize("trap", [link_out, link_up], ids=lambda trap: trap.__name__)
@pytest.mark.parametrize("name", ["tmp", "run", "var", "etc", "root"])
async def test_link_elsewhere_resolves_inside(
    supervisor: Supervisor, layer: Path, canary: Path, name: str, trap: Trap
) -> None:
    """Row 7: the launcher mounts nothing on /tmp, /run and others; a link there leads to a place of the sandbox."""
    trap(layer / name, canary)
    async with supervisor.open_sandbox(rootfs=with_layer(supervisor, layer)) as sandbox:
        await sandbox.run(["mkdir", "-p", str(canary)])
        written = await sandbox.run(f"echo changed > /{name}/file && cat {canary}/file")
        await sandbox.write_file(f"/{name}/other", b"changed")

    assert b"changed\n" == written.stdout
    assert is_untouched(canary)


async def test_proc_of_the_image_is_covered(supervisor: Supervisor, layer: Path) -> None:
    """Row 8: a directory with files like those of procfs is covered by a real one (statfs(2): PROC_SUPER_MAGIC)."""
    fake = layer / "proc" / "self" / "attr"
    fake.mkdir(parents=True)
    (fake / "exec").write_text("fake")
    async with supervisor.open_sandbox(rootfs=with_layer(supervisor, layer)) as sandbox:
        result = await sandbox.run("stat -f -c %T /proc /proc/self /proc/sys; cat /proc/self/comm; ls /proc/self/attr/exec")

    assert result.stdout.startswith(b"proc\nproc\nproc\ncat\n")
    assert b"fake" not in result.stdout


@pytest.mark.parametrize("target", ["/proc", "/proc/self", "/proc/1/attr", "/dev", "/dev/null", "/dev/shm"])
def test_nothing_can_be_bound_on_proc_and_dev(tmp_path: Path, target: str) -> None:
    """Row 8: what the launcher has put there cannot be replaced by a policy, either."""
    with pytest.raises(UsageError):
        Bind(source=tmp_path, target=target)


NODES = {
    "zero": (stat.S_IFCHR, 1, 5),
    "mem": (stat.S_IFCHR, 1, 1),
    "tun": (stat.S_IFCHR, 10, 200),
    "fuse": (stat.S_IFCHR, 10, 229),
    "console": (stat.S_IFCHR, 5, 1),
    "terminal": (stat.S_IFCHR, 4, 0),
    "disk": (stat.S_IFBLK, 8, 0),
    "loop": (stat.S_IFBLK, 7, 0),
}

OPEN_ALL = """
import errno, os, sys
for name in os.listdir(sys.argv[1]):
    try:
        os.close(os.open(os.path.join(sys.argv[1], name), os.O_RDONLY | os.O_NONBLOCK))
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """A directory with devices, which everybody may open as far as their mode goes."""
    skip_without_capability("CAP_MKNOD")
    directory = tmp_path / "layer" / "nodes"
    directory.mkdir(parents=True)
    (tmp_path / "layer").chmod(0o755)
    for name, (kind, major, minor) in NODES.items():
        os.mknod(directory / name, kind | 0o666, os.makedev(major, minor))
        (directory / name).chmod(0o666)
    return directory


@pytest.mark.parametrize("writable", [False, True, None], ids=["read-only bind", "writable bind", "layer"])
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_device_of_an_image_cannot_be_opened(
    supervisor: Supervisor, nodes: Path, defence: Defence, writable: bool | None
) -> None:
    """Row 26: a node that an image or a bound directory ships is no way to the device, whatever its mode."""
    rootfs = with_layer(supervisor, nodes.parent)
    binds = [] if writable is None else [Bind(source=nodes, target="/nodes", writable=writable)]
    async with supervisor.open_sandbox(rootfs=rootfs, policy=policy_of(defence), binds=binds) as sandbox:
        result = await sandbox.run(["python3", "-c", OPEN_ALL, "/nodes"])

    assert dict.fromkeys(NODES, "EACCES") == dict(line.split() for line in result.stdout.decode().splitlines())


def test_device_can_be_opened_with_the_defence_off(nodes: Path, tmp_path: Path) -> None:
    """Row 26, defence off: outside, on a file system that is not mounted nodev, the harmless one of them opens."""
    outcomes = dict(line.split() for line in run_outside(["python3", "-c", OPEN_ALL, nodes], tmp_path).splitlines())
    if outcomes["zero"] == "EACCES":
        pytest.skip(f"{tmp_path} of this host is mounted nodev")

    assert "ok" == outcomes["zero"]


@pytest.fixture
def privileged_files(layer: Path, probe_dir: Path) -> Path:
    """A layer with copies of the probe: setuid root, setgid root, and with file capabilities."""
    skip_without_capability("CAP_SETFCAP")
    for name, mode in {"setuid": 0o4755, "setgid": 0o2755, "capable": 0o755}.items():
        (layer / name).write_bytes((probe_dir / "probe").read_bytes())
        (layer / name).chmod(mode)
    # version 2, effective, every capability (capabilities(7), struct vfs_cap_data)
    capabilities = (0x02000001).to_bytes(4, "little") + b"\xff\xff\xff\xff\0\0\0\0\xff\x01\0\0\0\0\0\0"
    os.setxattr(layer / "capable", "security.capability", capabilities)
    return layer


@pytest.mark.parametrize("user", [1000, "nobody", 65534])
@pytest.mark.parametrize("name", ["setuid", "setgid", "capable"])
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_privileged_file_gives_no_privilege(
    supervisor: Supervisor, privileged_files: Path, defence: Defence, name: str, user: str | int
) -> None:
    """Row 27: a user of the sandbox who executes it is who he was, and no capability comes with it."""
    rootfs = with_layer(supervisor, privileged_files)
    async with supervisor.open_sandbox(rootfs=rootfs, policy=policy_of(defence)) as sandbox:
        ids = await sandbox.run([f"/{name}", "ids"], user=user)

    uid = 65534 if user == "nobody" else user
    assert f"{uid} {uid} {uid} {uid} 0\n" == ids.stdout.decode()


@pytest.mark.parametrize(("name", "expected"), [("setuid", "1000 0 1000 1000"), ("setgid", "1000 1000 1000 0")])
def test_setuid_file_gives_privilege_with_the_defence_off(privileged_files: Path, name: str, expected: str) -> None:
    """Row 27, defence off: the same files outside."""
    assert expected == _run_as_user(privileged_files / name).rpartition(" ")[0]


def test_capable_file_gives_privilege_with_the_defence_off(privileged_files: Path) -> None:
    """Row 27, defence off: the same file outside."""
    assert "0" != _run_as_user(privileged_files / "capable").split()[-1]


def _run_as_user(program: Path) -> str:
    """Run a program of the host as uid 1000, by descriptor: the directories of the tests are closed to others."""
    with open(program, "rb") as file:
        if os.fstatvfs(file.fileno()).f_flag & os.ST_NOSUID:
            pytest.skip(f"{program.parent} of this host is mounted nosuid")
        command = [*OUTSIDE[:1], "--mount", "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
        words = [*command, f"/proc/self/fd/{file.fileno()}", "ids"]
        done = subprocess.run(words, pass_fds=[file.fileno()], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_image_can_hold_the_probe(supervisor: Supervisor, layer: Path, probe_dir: Path) -> None:
    """Rows 6 to 8, 26, 27: a layer without a trap starts as any other, so it was the traps that were refused."""
    (layer / "dev").mkdir()
    (layer / "proc").mkdir()
    rootfs = with_layer(supervisor, layer)
    async with supervisor.open_sandbox(rootfs=rootfs, binds=[probe_bind(probe_dir)]) as sandbox:
        result = await sandbox.run([PROBE, "ids"])

    assert result.ok
