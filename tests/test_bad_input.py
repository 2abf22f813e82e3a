"""What cannot be done is refused with a typed error that says what to do, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minisandbox import (
    Bind,
    BusyError,
    CommandNotExecutableError,
    CommandNotFoundError,
    HostError,
    Limits,
    PolicyError,
    RootfsError,
    Sandbox,
    SandboxError,
    StateError,
    Supervisor,
    UsageError,
    open_supervisor,
)
from minisandbox.errors import exit_code
from tests import observer

LONGEST_PATH = "/" + "d/" * 3000


@pytest.fixture
async def unchanged(sandbox: Sandbox) -> Any:
    """Check that the sandbox and this process are afterwards as before, and that the sandbox still runs commands."""
    look = "ls -lR /tmp /root /etc /run /dev/shm; ps -e -o comm="
    await sandbox.run(look)
    before = (await sandbox.run(look)).stdout, observer.descriptors()
    yield
    assert before == ((await sandbox.run(look)).stdout, observer.descriptors())


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("command", "kind", "code", "says"),
    [
        (["/no/such/program"], CommandNotFoundError, 127, "/no/such/program"),
        (["no-such-program", "x"], CommandNotFoundError, 127, "no-such-program"),
        ([""], CommandNotFoundError, 127, "not found"),
        (["/etc/passwd/x"], CommandNotFoundError, 127, "/etc/passwd/x"),
        (["/etc/passwd"], CommandNotExecutableError, 126, "/etc/passwd"),
        (["/etc"], CommandNotExecutableError, 126, "/etc"),
        ([], UsageError, 64, "program"),
        (["echo", "a\0b"], UsageError, 64, "NUL"),
        (["\0"], UsageError, 64, "NUL"),
        (["echo", "\ud800"], UsageError, 64, "encode"),
        (["true", *["x" * 100_000] * 31], UsageError, 64, "file or stdin"),
        (["true", "x" * (3 << 20)], UsageError, 64, "file or stdin"),
        (["true", *["x"] * 230_000], UsageError, 64, "file or stdin"),
        ("x" * 131_072, UsageError, 64, "file or stdin"),
        (["true", None], UsageError, 64, "None"),
        (5, UsageError, 64, "int"),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:20],
)
async def test_a_command_that_cannot_be_run(
    sandbox: Sandbox, command: Any, kind: type[SandboxError], code: int, says: str
) -> None:
    """Tool report 33: missing (127), not executable (126), empty, with NUL, of 3 MiB: it never ran."""
    with pytest.raises(kind, match=says) as caught:
        await sandbox.run(command)

    assert code == exit_code(caught.value)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cwd": "/no/such/place"}, "/no/such/place"),
        ({"cwd": "/etc/passwd"}, "/etc/passwd"),
        ({"cwd": "/tmp\0"}, "NUL"),
        ({"cwd": LONGEST_PATH}, "4095"),
        ({"cwd": ""}, "directory"),
        ({"user": "no-such-user"}, "no-such-user"),
        ({"user": ""}, "user"),
        ({"user": -1}, "-1"),
        ({"user": 65_535}, "65535"),
        ({"user": "a\0"}, "user"),
        ({"env": {"": "x"}}, "environment"),
        ({"env": {"A=B": "x"}}, "A=B"),
        ({"env": {"A": "x\0y"}}, "NUL"),
        ({"env": {"A\0": "x"}}, "NUL"),
        ({"env": {"A": "x" * 200_000}}, "longer"),
        ({"stdin": "text"}, "bytes"),
        ({"limits": Limits(memory_bytes=1 << 20)}, "memory_bytes"),
        ({"limits": Limits(cpus=0.5)}, "cpus"),
        ({"limits": Limits(disk_bytes=1 << 20)}, "disk_bytes"),
        ({"limits": Limits(disk_inodes=100)}, "disk_inodes"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_an_option_that_cannot_be(sandbox: Sandbox, options: dict[str, Any], says: str) -> None:
    """A directory, user, variable, stdin or limit that is not possible is told before anything runs."""
    with pytest.raises(UsageError, match=says):
        await sandbox.run(["touch", "/tmp/ran"], **options)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda sandbox: sandbox.read_file("/etc/passwd", max_bytes=-1), "max_bytes"),
        (lambda sandbox: sandbox.write_file("/tmp/x", "text"), "bytes"),
        (lambda sandbox: sandbox.write_file("/tmp/x", b"", mode=0o4755), "0o4755"),
        (lambda sandbox: sandbox.write_file("/tmp/x", b"", mode=-1), "mode"),
        (lambda sandbox: sandbox.write_file("/tmp/x", b"", user="no-such-user"), "no-such-user"),
        (lambda sandbox: sandbox.write_file("x", b""), "absolute"),
        (lambda sandbox: sandbox.open_terminal([]), "program"),
    ],
)
async def test_a_call_that_cannot_be(sandbox: Sandbox, call: Callable[[Sandbox], Any], says: str) -> None:
    """Bounds, modes, users and types of file transfers are checked first."""
    with pytest.raises(UsageError, match=says):
        await call(sandbox)


@pytest.mark.parametrize("name", Limits.__struct_fields__)
@pytest.mark.parametrize("value", [0, -1, -0.5, math.nan, math.inf, 1 << 60, "1G", True])
def test_a_limit_that_cannot_be(name: str, value: Any) -> None:
    """Zero, negative, infinite, absurdly large or no number at all: the error names the limit."""
    with pytest.raises(UsageError, match=name):
        Limits(**{name: value})


def directory_without_recipe(tmp_path: Path) -> Path:
    """A file that is no recipe and no policy."""
    (tmp_path / "broken.toml").write_text("format = 1\nunknown = 2\n")
    return tmp_path / "broken.toml"


@pytest.mark.enforces("cpus-limit")
@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"rootfs": "no-such-rootfs"}, UsageError, "no-such-rootfs"),
        ({"rootfs": "/no/such.toml"}, (UsageError, RootfsError), "/no/such.toml"),
        ({"rootfs": "BROKEN"}, RootfsError, "broken.toml"),
        ({"policy": "no-such-policy"}, UsageError, "no-such-policy"),
        ({"policy": "/no/such.toml"}, PolicyError, "/no/such.toml"),
        ({"policy": "BROKEN"}, PolicyError, "broken.toml:2"),
        ({"binds": [Bind(source=Path("/no/such"), target="/x")]}, UsageError, "/no/such"),
        ({"hostname": ""}, UsageError, "hostname"),
        ({"hostname": "x" * 65}, UsageError, "hostname"),
        ({"hostname": "a\0b"}, UsageError, "hostname"),
        ({"env": {"A": "x\0"}}, UsageError, "NUL"),
        ({"env": {"": "x"}}, UsageError, "environment"),
        ({"lifetime_s": 0}, UsageError, "lifetime_s"),
        ({"lifetime_s": -1}, UsageError, "lifetime_s"),
        ({"lifetime_s": math.nan}, UsageError, "lifetime_s"),
        ({"lifetime_s": 1e-9}, SandboxError, "lifetime|gone"),
        ({"limits": Limits(cpus=1e-9)}, UsageError, "cpus"),
        ({"limits": Limits(disk_inodes=1)}, UsageError, "disk_inodes"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_sandbox_that_cannot_be_opened(
    supervisor: Supervisor, tmp_path: Path, options: dict[str, Any], kind: type[SandboxError], says: str
) -> None:
    """The error says which part cannot be; no slot is lost and the next sandbox opens."""
    broken = str(directory_without_recipe(tmp_path))
    given: dict[str, Any] = {name: broken if value == "BROKEN" else value for name, value in options.items()}
    with pytest.raises(kind, match=says):
        async with supervisor.open_sandbox(**given) as sandbox:
            await sandbox.run(["true"])
    async with supervisor.open_sandbox() as sandbox:
        result = await sandbox.run(["echo", "alive"])

    assert (b"alive\n", ()) == (result.stdout, supervisor.quarantined)


async def test_a_bind_on_a_file_of_the_rootfs_names_the_step(supervisor: Supervisor, tmp_path: Path) -> None:
    """What only the kernel can find out comes with stage, error number and the number of the mount."""
    bind = Bind(source=tmp_path, target="/etc/passwd/below")
    with pytest.raises(SandboxError, match="Not a directory") as caught:
        async with supervisor.open_sandbox(binds=[bind]):
            pass

    assert getattr(caught.value, "stage", None) == "bind"


async def test_one_sandbox_too_many_is_busy(state_dir: Path) -> None:
    """Who does not want to wait is told what to do; closing one makes room."""
    async with open_supervisor(state_dir=state_dir, max_sandboxes=1) as supervisor:
        async with supervisor.open_sandbox():
            with pytest.raises(BusyError, match="max_sandboxes"):
                async with supervisor.open_sandbox(deadline_s=0):
                    pass
        for _ in range(5):
            async with supervisor.open_sandbox() as sandbox:
                assert (await sandbox.run(["true"])).ok


@pytest.mark.parametrize("number", [0, -1, 1 << 40])
async def test_a_number_of_sandboxes_that_cannot_be(state_dir: Path, number: int) -> None:
    """None at all, or more than there are ids for."""
    with pytest.raises((UsageError, HostError)):
        async with open_supervisor(state_dir=state_dir, max_sandboxes=number):
            pass


@pytest.mark.requires_root
async def test_a_state_directory_that_cannot_be(tmp_path: Path) -> None:
    """A file in its place is an error of the state, before anything is started."""
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="file"):
        async with open_supervisor(state_dir=tmp_path / "file"):
            pass


@pytest.mark.requires_root
async def test_a_full_state_disk_is_an_error_of_ours(tmp_path: Path) -> None:
    """Report 7: it is told as what it is, and not as a result of a program."""
    async with observer.mounted("tmpfs", tmp_path, "size=64k,nr_inodes=16,mode=700"):
        with pytest.raises(SandboxError, match="No space left"):
            async with open_supervisor(state_dir=tmp_path) as supervisor, supervisor.open_sandbox():
                pass
