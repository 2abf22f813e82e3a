"""Trees that want out: names, links and members that lead elsewhere, made inside or forged on the way.

Each is tried on what is ours, and on something that trusts what it gets, which shows that the probe is a live one.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minisandbox import FileTransferError, ProtocolError, Sandbox, SandboxError, UsageError
from minisandbox.runtime.tree_host import HostTarget
from minisandbox.runtime.tree_pump import Tally, TreeBounds, receive
from minisandbox.runtime.tree_stream import END, Entry, Kind, encode_entry, padding
from tests.archives import retyped

CANARY = b"of the host"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the host with a canary, beside the one that is made."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "canary").write_bytes(CANARY)
    return directory


def entries(kind: str, outside: Path) -> list[tuple[Entry, bytes]]:
    """Return what a forged stream says, each a way to reach the directory outside."""
    away = str(outside)
    file = Entry(Kind.FILE, "d/new", mode=0o6777, size=3)
    return {
        "link-then-file": [(Entry(Kind.SYMLINK, "d", target=away), b""), (file, b"bad")],
        "up-then-file": [(Entry(Kind.SYMLINK, "d", target="../outside"), b""), (file, b"bad")],
        "link-by-link": [
            (Entry(Kind.DIRECTORY, "e", mode=0o755), b""),
            (Entry(Kind.DIRECTORY, "e/e", mode=0o755), b""),
            (Entry(Kind.SYMLINK, "e/e/up", target="../.."), b""),
            (Entry(Kind.SYMLINK, "d", target="e/e/up/../outside"), b""),
            (file, b"bad"),
        ],
        "link-then-directory": [
            (Entry(Kind.SYMLINK, "d", target=away), b""),
            (Entry(Kind.DIRECTORY, "d/new", mode=0o777), b""),
        ],
        "file-then-link": [
            (Entry(Kind.FILE, "d", mode=0o644, size=1), b"x"),
            (Entry(Kind.SYMLINK, "d", target=away), b""),
            (file, b"bad"),
        ],
        "over-a-link": [
            (Entry(Kind.SYMLINK, "d", target=f"{away}/canary"), b""),
            (Entry(Kind.FILE, "d", mode=0o644, size=3), b"bad"),
        ],
        "second-name-behind-link": [
            (Entry(Kind.SYMLINK, "e", target=away), b""),
            (Entry(Kind.FILE, "e/canary", mode=0o644, size=3, inode="1:1"), b"bad"),
            (Entry(Kind.LINK, "g", inode="1:1"), b""),
        ],
    }[kind]


KINDS = (
    "link-then-file",
    "up-then-file",
    "link-by-link",
    "link-then-directory",
    "file-then-link",
    "over-a-link",
    "second-name-behind-link",
)


def stream(said: list[tuple[Entry, bytes]]) -> bytes:
    """Return the bytes of a stream that says this."""
    data = encode_entry(Entry(Kind.DIRECTORY, ".", mode=0o755))
    for entry, content in said:
        data += _with_inode(entry) + content + padding(len(content))
    return data + END


def _with_inode(entry: Entry) -> bytes:
    if not entry.inode:
        return encode_entry(entry)
    record = b"29 MINISANDBOX.inode=%s\n" % entry.inode.encode()
    record = b"%d%s" % (len(record), record[2:])
    header = bytearray(encode_entry(Entry(Kind.FILE, "pax", size=len(record))))
    header[156:157] = b"x"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + record + padding(len(record)) + encode_entry(entry)


async def take(data: bytes, target: Path) -> tuple[tuple[str, str], ...]:
    """Make a directory of a stream as `get_tree` does, and return what was skipped."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, data)
    os.close(write_fd)
    made, tally = HostTarget(target, keep_owners=os.geteuid() == 0), Tally(None)
    try:
        await trio.to_thread.run_sync(receive, read_fd, made, tally, TreeBounds(), "/t")
        made.commit()
    finally:
        made.close()
        os.close(read_fd)
    return tally.report().skipped


def trust(said: list[tuple[Entry, bytes]], target: Path) -> None:
    """Make a directory of the same, following every name."""
    target.mkdir()
    names: dict[str, str] = {}
    for entry, content in said:
        path = target / entry.path
        if entry.kind is Kind.SYMLINK:
            path.unlink(missing_ok=True)
            path.symlink_to(entry.target)
        elif entry.kind is Kind.DIRECTORY:
            path.mkdir()
        elif entry.kind is Kind.LINK:
            os.link(target / names[entry.inode], path)
        else:
            names[entry.inode] = entry.path
            path.write_bytes(content)


def untouched(outside: Path) -> bool:
    """Return whether there is the canary and nothing else, with one name."""
    (canary,) = outside.iterdir()
    return canary.read_bytes() == CANARY and canary.stat().st_nlink == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_forged_stream_stays_below_its_directory(tmp_path: Path, outside: Path, kind: str) -> None:
    """Rows 10, 14: whatever a sandbox says is in its tree, nothing is written or linked through a link."""
    skipped = await take(stream(entries(kind, outside)), tmp_path / "made")

    assert untouched(outside)
    assert skipped
    assert all(not path.is_symlink() or path.resolve().is_relative_to(tmp_path / "made") for path in _all(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_stream_gets_out_where_it_is_trusted(tmp_path: Path, outside: Path, kind: str) -> None:
    """Rows 10, 14, defence off: each of them reaches the canary's directory if names are followed."""
    trust(entries(kind, outside), tmp_path / "made")
    reached = [path for path in outside.iterdir() if path.name != "canary" or path.read_bytes() != CANARY]

    assert reached


def _all(directory: Path) -> Iterator[Path]:
    return (directory / "made").rglob("*")


@pytest.mark.parametrize("kind", ["no-stream", "device"])
async def test_a_stream_that_is_none_makes_nothing(tmp_path: Path, outside: Path, kind: str) -> None:
    """Row 14: other types or other bytes: it ends, typed."""
    data = {
        "no-stream": os.urandom(4096),
        "device": retyped(encode_entry(Entry(Kind.FILE, "sda", mode=0o666)), b"4") + END,
    }[kind]
    with pytest.raises(ProtocolError):
        await take(data, tmp_path / "made")

    assert not (tmp_path / "made").exists()
    assert untouched(outside)


async def test_a_link_is_no_tree_and_no_way_out_of_one(sandbox: Sandbox, tmp_path: Path) -> None:
    """Row 10: `/out` that is a link to a file or directory of the host's names is an error; in a tree it is skipped."""
    await sandbox.run(
        "ln -s /etc/passwd /tmp/out; ln -s /etc /tmp/etc; mkdir /tmp/t; cd /tmp/t; ln -s /etc/passwd a;"
        " ln -s ../../../../etc/passwd b; mkdir d; ln -s ../../etc d/c; ln -s d/../.. e"
    )
    for path in ("/tmp/out", "/tmp/etc"):
        with pytest.raises(FileTransferError):
            await sandbox.get_tree(path, tmp_path / "made")
    report = await sandbox.get_tree("/tmp/t", tmp_path / "made")
    got = {str(path.relative_to(tmp_path / "made")) for path in _all(tmp_path)}

    assert {"d"} == got
    assert ["a", "b", "d/c", "e"] == sorted(path for path, _why in report.skipped)


async def test_links_get_out_with_a_copy_that_follows_them(sandbox: Sandbox, tmp_path: Path) -> None:
    """Row 10, defence off: the same link, kept as it is on the host, leads to the host's own file."""
    await sandbox.run("mkdir /tmp/t; ln -s /etc/passwd /tmp/t/a")
    target = (await sandbox.run("readlink /tmp/t/a")).stdout.decode().strip()
    (tmp_path / "a").symlink_to(target)

    assert Path("/etc/passwd").read_bytes() == (tmp_path / "a").read_bytes()


async def test_what_is_put_never_goes_through_a_link(sandbox: Sandbox, tmp_path: Path) -> None:
    """Row 11: `a` that becomes a link to `/`, before or while a tree is put into it, catches nothing."""
    (tmp_path / "there/a").mkdir(parents=True)
    for number in range(50):
        (tmp_path / f"there/a/planted{number}").touch()
    await sandbox.run("mkdir -p /tmp/t; ln -s / /tmp/t/a")
    with pytest.raises(FileTransferError):
        await sandbox.put_tree(tmp_path / "there", "/tmp/t")
    swap = "rm -rf /tmp/t/a; cd /tmp/t; while :; do mkdir -p a; mv -T a b; ln -s / a; rm a; mv -T b a; rm -rf a; done"
    async with await sandbox.start(swap):
        failures = 0
        for _ in range(30):
            try:
                await sandbox.put_tree(tmp_path / "there", "/tmp/t")
            except FileTransferError:
                failures += 1
    inside = await sandbox.run("ls / | grep -c planted")

    assert b"0\n" == inside.stdout
    assert not [name for name in os.listdir("/") if name.startswith("planted")]


async def test_a_path_that_is_followed_goes_through_the_link(sandbox: Sandbox) -> None:
    """Row 11, defence off: whoever names the path itself gets to where the link leads, which is inside all the same."""
    await sandbox.run("mkdir -p /tmp/t; ln -s / /tmp/t/a")
    await sandbox.write_file("/tmp/t/a/planted", b"")

    assert (await sandbox.run("test -e /planted")).ok
    assert not Path("/planted").exists()


@pytest.mark.enforces("single-id")
@pytest.mark.parametrize("defence", ["ours", "chown -R"])
async def test_a_hard_link_gives_away_no_file(sandbox: Sandbox, tmp_path: Path, defence: str) -> None:
    """Row 13: putting a tree for a user over names of another's files changes none of these; `chown -R` would."""
    (tmp_path / "there/d").mkdir(parents=True)
    (tmp_path / "there/d/secret").write_bytes(b"new")
    await sandbox.run(
        "mkdir -p /tmp/t/d; cd /tmp; echo of root > secret; chmod 600 secret; chmod 777 t t/d; ln secret t/d/secret"
    )
    if defence == "ours":
        await sandbox.put_tree(tmp_path / "there", "/tmp/t", user=1000)
        await sandbox.get_tree("/tmp/t", tmp_path / "back", keep_owners=os.geteuid() == 0)
    else:
        await sandbox.run("chown -R 1000 /tmp/t")
    result = await sandbox.run("cat secret; stat -c '%u %a' secret", cwd="/tmp")

    assert (b"of root\n0 600\n" == result.stdout) is (defence == "ours")


async def test_what_is_removed_on_the_host_was_made_there(sandbox: Sandbox, tmp_path: Path, outside: Path) -> None:
    """Row 13: giving up a tree removes its own files and links, not what they lead to."""
    await sandbox.run("mkdir -p /tmp/t/d; cd /tmp/t; ln -s d l; echo x > d/f; ln d/f g; truncate -s 1G z")
    with pytest.raises(FileTransferError):
        await sandbox.get_tree("/tmp/t", tmp_path / "made", bounds=TreeBounds(max_bytes=1000))

    assert ["outside"] == os.listdir(tmp_path)
    assert untouched(outside)


def archive(kind: str, outside: Path) -> bytes:
    """Return a tar archive of which one member wants out."""
    info = tarfile.TarInfo("x")
    info.mode = 0o4755
    if kind == "up":
        info.name = "../outside/new"
    elif kind == "absolute":
        info.name = f"{outside}/new"
    elif kind == "hard-link":
        info.type, info.linkname = tarfile.LNKTYPE, f"{outside}/canary"
    elif kind == "hard-link-up":
        info.type, info.linkname = tarfile.LNKTYPE, "../outside/canary"
    elif kind == "device":
        info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 1
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(info)
    return file.getvalue()


ARCHIVES = ("up", "absolute", "hard-link", "hard-link-up", "device", "set-id")


@pytest.mark.parametrize("kind", ARCHIVES)
async def test_a_member_that_wants_out_is_refused_or_harmless(sandbox: Sandbox, outside: Path, kind: str) -> None:
    """Row 14: names and links that lead out are errors, devices are skipped, set-id bits dropped."""
    error: SandboxError | None = None
    try:
        await sandbox.put_tree(io.BytesIO(archive(kind, outside)), "/tmp/t")
    except UsageError as refused:
        error = refused
    found = await sandbox.run("find /tmp/t /tmp/outside -mindepth 1 -printf '%p %y %m\\n' 2>/dev/null")

    assert untouched(outside)
    assert (kind in ("device", "set-id")) is (error is None)
    assert (b"/tmp/t/x f 755\n" if kind == "set-id" else b"") == found.stdout


@pytest.mark.requires_root
@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_member_gets_out_where_it_is_trusted(tmp_path: Path, outside: Path, kind: str) -> None:
    """Row 14, defence off: an extraction that trusts the archive does what it says."""
    made = tmp_path / "made"
    made.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive(kind, outside))) as tar:
        tar.extractall(made, filter="fully_trusted")
    reached = len(list(outside.iterdir())) > 1 or (outside / "canary").stat().st_nlink > 1
    special = [
        path for path in made.iterdir() if stat.S_ISCHR(path.stat().st_mode) or path.stat().st_mode & stat.S_ISUID
    ]

    assert reached or special
