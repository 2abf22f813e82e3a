"""Files carried in and out of a sandbox that does its best to have another file carried."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from minisandbox import Bind, FileTransferError, Sandbox, Supervisor
from minisandbox.images.tree import remove_tree
from tests.probes.lab import SANDBOXED, Defence, policy_of, run_outside

SECRET = b"secret of the host"


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of the host, the only one of its directory, which nobody inside is to read or write."""
    directory = tmp_path / "canary"
    directory.mkdir()
    (directory / "file").write_bytes(SECRET)
    return directory / "file"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory of the host that is bound writable at /shared: what is made inside is seen from both sides."""
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory


@contextlib.asynccontextmanager
async def sharing(supervisor: Supervisor, shared: Path) -> AsyncIterator[Sandbox]:
    """A sandbox with the shared directory."""
    async with supervisor.open_sandbox(binds=[Bind(source=shared, target="/shared", writable=True)]) as sandbox:
        yield sandbox


LINKS: dict[str, Callable[[Path], tuple[str, str]]] = {
    "absolute": lambda canary: (f"ln -s {canary} /shared/x", "/shared/x"),
    "climbing": lambda canary: (f"ln -s {'../' * 32}{canary} /shared/x", "/shared/x"),
    "of a directory": lambda canary: (f"ln -s {canary.parent} /shared/d", "/shared/d/file"),
    "of the root": lambda canary: ("ln -s / /shared/d", f"/shared/d{canary}"),
    "of two steps": lambda canary: (f"ln -s {canary} /tmp/y; ln -s /tmp/y /shared/x", "/shared/x"),
    "of procfs": lambda canary: ("ln -s /proc/self/root /shared/d", f"/shared/d{canary}"),
    "of init": lambda canary: ("ln -s /proc/1/root /shared/d", f"/shared/d{canary}"),
    "of a descriptor": lambda canary: ("ln -s /proc/self/fd/0 /shared/x", "/shared/x"),
    "none, but dots": lambda canary: (":", f"/shared{'/..' * 32}{canary}"),
    "none, but procfs": lambda canary: (":", f"/proc/self/root{canary}"),
    "none, but init": lambda canary: (":", f"/proc/1/root{canary}"),
}
"""What to do inside, and which path to carry then."""


@pytest.mark.parametrize("name", LINKS)
async def test_link_carries_nothing_out(supervisor: Supervisor, shared: Path, canary: Path, name: str) -> None:
    """Row 10: a link at the end is an error, one on the way leads to what is inside; never to the host's file."""
    script, path = LINKS[name](canary)
    async with sharing(supervisor, shared) as sandbox:
        made = await sandbox.run(script)
        with pytest.raises(FileTransferError) as caught:
            await sandbox.read_file(path)

    assert made.ok
    assert caught.value.errno in (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EINVAL)


@pytest.mark.parametrize("path", ["/tmp/x", "/proc/self/root/etc/passwd", "/proc/self/cwd/etc/passwd", "/tmp/d/passwd"])
async def test_link_is_refused_where_it_leads_to_a_file_inside_too(sandbox: Sandbox, path: str) -> None:
    """Rows 10 and 11: not at the end, nor one of procfs on the way; a plain one on the way is followed, but inside.

    Defence off: `cat` inside follows all of them.
    """
    await sandbox.run("ln -s /etc/passwd /tmp/x; ln -s /etc /tmp/d")
    followed = await sandbox.run(["cat", path])
    if path == "/tmp/d/passwd":
        assert followed.stdout == await sandbox.read_file(path)
    else:
        for transfer in (sandbox.read_file(path), sandbox.write_file(path, b"changed")):
            with pytest.raises(FileTransferError) as caught:
                await transfer
            assert errno.ELOOP == caught.value.errno

    assert followed.stdout.startswith(b"root:")
    assert followed.stdout == (await sandbox.run(["cat", path])).stdout


@pytest.mark.parametrize("name", LINKS)
async def test_link_carries_nothing_in(supervisor: Supervisor, shared: Path, canary: Path, name: str) -> None:
    """Row 11: nor is the host's file written, or another one made beside it."""
    script, path = LINKS[name](canary)
    async with sharing(supervisor, shared) as sandbox:
        await sandbox.run(script)
        with contextlib.suppress(FileTransferError):
            await sandbox.write_file(path, b"overwritten")

    assert SECRET == canary.read_bytes()
    assert [canary] == list(canary.parent.iterdir())


@pytest.mark.parametrize("name", ["absolute", "climbing", "of a directory", "of two steps"])
async def test_link_is_followed_with_the_defence_off(
    supervisor: Supervisor, shared: Path, canary: Path, name: str
) -> None:
    """Rows 10 and 11, defence off: who opens the very path on the host, gets the host's file."""
    script, path = LINKS[name](canary)
    script = script.replace("/tmp/y", "/shared/y", 1).replace("-s /tmp/y", f"-s {shared}/y")
    async with sharing(supervisor, shared) as sandbox:
        await sandbox.run(script)
    on_host = shared / path.removeprefix("/shared/")
    read = on_host.read_bytes()
    on_host.write_bytes(b"overwritten")

    assert SECRET == read
    assert b"overwritten" == canary.read_bytes()


FLIP = """
import os, sys
target = sys.argv[1]
os.chdir("/shared")
os.makedirs("real")
open("real/file", "wb").write(b"of the sandbox")
def put(name, target):
    os.symlink(target, "new")
    os.rename("new", name)
print("flipping", flush=True)
while True:
    put("x", "real/file")
    put("d", "real")
    put("x", target + "/file")
    put("d", target)
    os.link("real/file", "new")
    os.rename("new", "x")
"""
"""Has x and d name now a file and a directory of the sandbox, now links to those of the host."""


@contextlib.asynccontextmanager
async def flipping(supervisor: Supervisor, shared: Path, canary: Path) -> AsyncIterator[Sandbox]:
    """A sandbox in which the names flip for the length of the block."""
    async with sharing(supervisor, shared) as sandbox:
        async with await sandbox.start(["python3", "-c", FLIP, str(canary.parent)]) as process:
            await process.stdout.receive_some()
            yield sandbox


@pytest.mark.parametrize("path", ["/shared/x", "/shared/d/file"])
async def test_name_that_changes_carries_nothing(supervisor: Supervisor, shared: Path, canary: Path, path: str) -> None:
    """Rows 10 and 11: what is opened is what is carried, so there is no moment between check and use."""
    read = set()
    async with flipping(supervisor, shared, canary) as sandbox:
        for _ in range(60):
            with contextlib.suppress(FileTransferError):
                read.add(await sandbox.read_file(path))
            with contextlib.suppress(FileTransferError):
                await sandbox.write_file(path, b"of the sandbox")

    assert {b"of the sandbox"} >= read
    assert SECRET == canary.read_bytes()
    assert [canary] == list(canary.parent.iterdir())


@pytest.mark.parametrize("name", ["x", "d/file"])
async def test_name_that_changes_is_followed_with_the_defence_off(
    supervisor: Supervisor, shared: Path, canary: Path, name: str
) -> None:
    """Rows 10 and 11, defence off: who opens such a name on the host, sooner or later gets the host's file."""
    read = set()
    async with flipping(supervisor, shared, canary):
        with trio.fail_after(10):
            while SECRET not in read:
                with contextlib.suppress(OSError):
                    read.add((shared / name).read_bytes())
                await trio.lowlevel.checkpoint()

    assert SECRET in read


@pytest.mark.requires_root
@pytest.mark.parametrize("defence", SANDBOXED, ids=lambda defence: defence.value)
async def test_owner_of_a_foreign_file_stays(supervisor: Supervisor, tmp_path: Path, defence: Defence) -> None:
    """Row 13: root inside cannot give himself, link or remove what is shown to him read-only."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "file").write_bytes(SECRET)
    os.chown(foreign / "file", 1234, 1234)
    async with supervisor.open_sandbox(
        policy=policy_of(defence), binds=[Bind(source=foreign, target="/foreign")]
    ) as sandbox:
        done = await sandbox.run(
            "chown -R 0:0 /foreign; chmod -R 7777 /foreign; ln /foreign/file /tmp/x; rm -rf /foreign/*"
        )
    status = (foreign / "file").stat()

    assert not done.ok or b"" != done.stderr
    assert (1234, 1234, 0o644, 1) == (status.st_uid, status.st_gid, status.st_mode & 0o7777, status.st_nlink)


@pytest.mark.requires_root
async def test_owner_of_a_foreign_file_changes_with_the_defence_off(supervisor: Supervisor, shared: Path) -> None:
    """Row 13, defence off: bound writable, the same files belong to root inside."""
    (shared / "file").write_bytes(SECRET)
    os.chown(shared / "file", 1234, 1234)
    async with sharing(supervisor, shared) as sandbox:
        await sandbox.run("chown -R 0:0 /shared")

    assert 0 == (shared / "file").stat().st_uid


@pytest.mark.requires_root
def test_removing_a_tree_of_ours_spares_what_it_links_to(tmp_path: Path, canary: Path) -> None:
    """Row 13: the one recursion of ours over trees goes through no link, and takes of a hard link its name alone."""
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    os.link(canary, tree / "hard")
    (tree / "soft").symlink_to(canary.parent)
    (tree / "sub" / "up").symlink_to("../" * 32 + str(canary.parent))
    os.chown(canary, 1234, 1234)
    remove_tree(tree)

    assert not tree.exists()
    assert (SECRET, 1234) == (canary.read_bytes(), canary.stat().st_uid)


@pytest.mark.requires_root
def test_recursion_through_links_with_the_defence_off(tmp_path: Path, canary: Path) -> None:
    """Row 13, defence off: a `chown -RL` goes through the same links and takes the host's file."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "soft").symlink_to(canary.parent)
    run_outside(["chown", "-RL", "1234", tmp_path / "tree"], tmp_path)

    assert 1234 == canary.stat().st_uid


@pytest.mark.parametrize("make", ["mkfifo /tmp/x", "ln -s /dev/zero /tmp/x", "mkdir /tmp/x", "ln -s x /tmp/x"])
async def test_what_is_no_file_is_not_waited_for(sandbox: Sandbox, make: str) -> None:
    """Row 10: neither a FIFO nor a device nor a loop of links keeps a transfer waiting.

    Defence off: `cat` of the FIFO inside does wait, until it is killed.
    """
    await sandbox.run(make)
    with trio.fail_after(5):
        for transfer in (sandbox.read_file("/tmp/x"), sandbox.write_file("/tmp/x", b"x")):
            with pytest.raises(FileTransferError):
                await transfer
    if make.startswith("mkfifo"):
        with trio.move_on_after(0.2) as scope:
            await sandbox.run(["cat", "/tmp/x"])

        assert scope.cancelled_caught


def test_canary_is_a_secret(canary: Path) -> None:
    """Rows 10 and 11: the canary can be read on the host at all."""
    assert SECRET == subprocess.run(["cat", canary], capture_output=True, check=True).stdout
