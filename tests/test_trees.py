"""Directories in and out of a sandbox: all of it, or an error that says what and why."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from minisandbox import (
    Bind,
    BrokenError,
    FileTransferError,
    HostError,
    Limits,
    ProtocolError,
    Sandbox,
    Supervisor,
    TreeBounds,
    UsageError,
    open_supervisor,
)
from minisandbox.kernel.protocol import Stage
from minisandbox.runtime.command import common_request
from minisandbox.runtime.supervision import supervise
from minisandbox.runtime.tree_stream import END, Entry, Kind, encode_entry, leads_out, padding, read_entries
from tests.archives import retyped

NAMES = st.one_of(
    st.sampled_from(["a", "b", "...", "-", "x" * 255, "☕", "a\nb", os.fsdecode(b"\xff\xfe"), " ", "*", "'\"\\"]),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=80),
).filter(lambda name: name not in (".", "..") and len(os.fsencode(name)) <= 255)
FILES = st.tuples(st.binary(max_size=2000), st.integers(0, 0o777), st.integers(0, 2**33 - 1))
TREES = st.recursive(FILES, lambda below: st.dictionaries(NAMES, below, max_size=5), max_leaves=30)
DIRECTORIES = st.dictionaries(NAMES, TREES, max_size=6)

Tree = dict[str, "Tree | tuple[bytes, int, int]"]


def make(path: Path, tree: Tree) -> None:
    """Make a tree of files (content, mode, time) on the host."""
    path.mkdir()
    for name, what in tree.items():
        if isinstance(what, dict):
            make(path / name, what)
        else:
            content, mode, mtime = what
            (path / name).write_bytes(content)
            (path / name).chmod(mode)
            os.utime(path / name, (mtime, mtime))


def facts(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is below a directory of the host: type and mode, and content, target or time; names of one file."""
    found: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for path in sorted(root.rglob("*")):
        name, status = str(path.relative_to(root)), path.lstat()
        if stat.S_ISLNK(status.st_mode):
            found[name] = ("link", os.readlink(path))
        elif stat.S_ISDIR(status.st_mode):
            found[name] = ("directory", stat.S_IMODE(status.st_mode))
        else:
            same = first.setdefault(status.st_ino, name)
            found[name] = (same, stat.S_IMODE(status.st_mode), path.read_bytes(), int(status.st_mtime))
    return found


def archive(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> io.BytesIO:
    """Return a tar archive in memory."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    file.seek(0)
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    """Return the header of a member of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


async def listed(sandbox: Sandbox, path: str) -> set[str]:
    """Return the paths below a directory inside."""
    result = await sandbox.run(["find", path, "-mindepth", "1", "-printf", "%P\\0"])
    return {os.fsdecode(name) for name in result.stdout.split(b"\0")[:-1]}


# ---- there and back


@pytest.mark.slow
@pytest.mark.requires_root
@settings(max_examples=25, deadline=None)
@given(st.lists(DIRECTORIES, min_size=1, max_size=4))
def test_trees_come_back_as_they_were(state_dir: Path, trees: list[Tree]) -> None:
    """Whatever names, contents, modes and times of files: what comes out is what went in, through archives as well."""

    async def there_and_back(directory: Path) -> None:
        async with open_supervisor(state_dir=state_dir) as supervisor, supervisor.open_sandbox() as sandbox:
            for number, tree in enumerate(trees):
                there, back, packed = (directory / f"{kind}{number}" for kind in ("there", "back", "packed"))
                make(there, tree)
                await sandbox.put_tree(there, f"/tmp/{number}")
                await sandbox.get_tree(f"/tmp/{number}", back)
                assert facts(there) == facts(back)
                with packed.open("w+b") as file:
                    await sandbox.get_tree(f"/tmp/{number}", file)
                    file.seek(0)
                    await sandbox.put_tree(file, f"/tmp/{number}a")
                shutil.rmtree(back)
                await sandbox.get_tree(f"/tmp/{number}a", back)
                assert facts(there) == facts(back)

    with tempfile.TemporaryDirectory() as directory:
        trio.run(there_and_back, Path(directory))


async def test_what_is_in_a_tree_arrives(sandbox: Sandbox, tmp_path: Path) -> None:
    """Links, names of one file, long names, empty directories and times; the report counts files and bytes."""
    there = tmp_path / "there"
    make(there, {"d": {"e": {}, "f": (b"content", 0o640, 1000)}, "x" * 200: {"y" * 200: (b"", 0o755, 0)}})
    (there / "d/again").hardlink_to(there / "d/f")
    (there / "absolute").symlink_to("/etc/passwd")
    (there / "d/inside").symlink_to("../" + "x" * 200)
    put = await sandbox.put_tree(there, "/tmp/tree", user=1000)
    shown = await sandbox.run("cd /tmp/tree; stat -c '%U %u %a %h %Y %s' d/f; readlink absolute; stat -c %a . d")
    got = await sandbox.get_tree("/tmp/tree", tmp_path / "back")
    (there / "absolute").unlink()

    assert (3, 7, ()) == (put.files, put.bytes, put.skipped)
    assert b"UNKNOWN 1000 640 2 1000 7\n/etc/passwd\n755\n755\n" == shown.stdout.replace(b"user", b"UNKNOWN")
    assert (3, 7) == (got.files, got.bytes)
    assert [("absolute", "is a link that leads out of the tree: /etc/passwd")] == list(got.skipped)
    assert facts(there) == facts(tmp_path / "back")


@pytest.mark.requires_root
async def test_set_id_bits_and_owners_stay_behind(sandbox: Sandbox, tmp_path: Path) -> None:
    """Row 14: what comes out belongs to who asked for it and runs as who runs it; what goes in likewise."""
    await sandbox.run("mkdir /tmp/t; cd /tmp/t; echo x > s; chown 5:6 s; chmod 6755 s; mkdir d; chmod 3777 d")
    await sandbox.get_tree("/tmp/t", tmp_path / "plain")
    await sandbox.get_tree("/tmp/t", tmp_path / "owned", keep_owners=True)
    plain, owned = (os.stat(tmp_path / name / "s") for name in ("plain", "owned"))
    (tmp_path / "plain/s").chmod(0o6755)
    await sandbox.put_tree(tmp_path / "plain", "/tmp/u")
    inside = await sandbox.run("stat -c '%a %u' /tmp/u/s")

    assert (0o100755, os.geteuid()) == (plain.st_mode, plain.st_uid)
    assert (0o100755, 5, 6) == (owned.st_mode, owned.st_uid, owned.st_gid)
    assert 0o41777 == os.stat(tmp_path / "plain/d").st_mode
    assert b"755 0\n" == inside.stdout


async def test_unreadable_directories_can_be_got_and_deleted(sandbox: Sandbox, tmp_path: Path) -> None:
    """Report 36: modes inside are no obstacle for root, nor for whoever gets the tree."""
    await sandbox.run(
        "mkdir -p /tmp/t/a/b; echo x > /tmp/t/a/b/f; chmod 000 /tmp/t/a/b/f /tmp/t/a/b; chmod 500 /tmp/t/a"
    )
    report = await sandbox.get_tree("/tmp/t", tmp_path / "out")

    assert 1 == report.files
    assert [0o700, 0o700, 0] == [stat.S_IMODE(path.stat().st_mode) for path in sorted((tmp_path / "out").rglob("*"))]
    shutil.rmtree(tmp_path / "out")


@pytest.mark.requires_root
async def test_special_files_are_skipped_and_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    """Tool report 56: neither a FIFO blocks nor a device is read, in either direction."""
    there = tmp_path / "there"
    make(there, {"f": (b"x", 0o644, 0)})
    os.mkfifo(there / "fifo")
    os.mknod(there / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    put = await sandbox.put_tree(there, "/tmp/t")
    await sandbox.run("cd /tmp/t; mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'")
    got = await sandbox.get_tree("/tmp/t", tmp_path / "back")
    devices = await sandbox.get_tree("/dev", tmp_path / "dev")

    assert (("fifo", "is a FIFO"), ("null", "is a device")) == put.skipped
    assert [("pipe", "is a FIFO"), ("s", "is a socket")] == sorted(got.skipped)
    assert ("null", "is a device") in devices.skipped
    assert 0 == devices.files


async def test_proc_is_skipped(sandbox: Sandbox, tmp_path: Path) -> None:
    """Files that the kernel makes up have no size to be packed by, and are nobody's data."""
    with pytest.raises(FileTransferError):
        await sandbox.get_tree("/proc", tmp_path / "proc")

    assert [] == list(tmp_path.iterdir())


async def test_a_file_with_many_names_goes_over_once(sandbox: Sandbox, tmp_path: Path) -> None:
    """A thousand names of a megabyte are a megabyte in the stream."""
    await sandbox.run("mkdir /tmp/t; cd /tmp/t; head -c 1M /dev/zero > 0; for i in $(seq 999); do ln 0 $i; done")
    report = await sandbox.get_tree("/tmp/t", tmp_path / "out")

    assert (1000, 1 << 20) == (report.files, report.bytes)
    assert 1000 == os.stat(tmp_path / "out/7").st_nlink


async def test_what_is_there_already_is_replaced_or_filled(sandbox: Sandbox, tmp_path: Path) -> None:
    """Files and links are replaced, never written through; directories keep their mode, and what else is in them."""
    there = tmp_path / "there"
    make(there, {"f": (b"new", 0o600, 0), "l": (b"new", 0o600, 0), "d": {"g": (b"new", 0o600, 0)}})
    await sandbox.run(
        "mkdir -p /tmp/t/d; cd /tmp/t; echo victim > /tmp/victim; echo old > f; ln f other; ln -s ../victim l; "
        "chmod 751 d; echo kept > d/kept"
    )
    await sandbox.put_tree(there, "/tmp/t")
    shown = await sandbox.run("cd /tmp/t; cat f l d/g d/kept other ../victim; stat -c %a d f")

    assert b"newnewnewkept\nold\nvictim\n751\n600\n" == shown.stdout


async def test_binds_are_part_of_a_tree(supervisor: Supervisor, tmp_path: Path) -> None:
    """A writable one is filled, a read-only one refuses, both are read."""
    make(tmp_path / "rw", {})
    make(tmp_path / "ro", {"old": (b"old", 0o644, 0)})
    make(tmp_path / "new", {"new": (b"new", 0o644, 0)})
    (tmp_path / "rw").chmod(0o777)
    tmp_path.chmod(0o700)
    binds = [
        Bind(source=tmp_path / "rw", target="/t/rw", writable=True),
        Bind(source=tmp_path / "ro", target="/t/ro"),
    ]
    async with supervisor.open_sandbox(binds=binds) as sandbox:
        await sandbox.put_tree(tmp_path / "new", "/t/rw")
        with pytest.raises(FileTransferError) as caught:
            await sandbox.put_tree(tmp_path / "new", "/t/ro")
        await sandbox.get_tree("/t", tmp_path / "out")

    assert errno.EROFS == caught.value.errno
    assert {"ro", "ro/old", "rw", "rw/new"} == set(facts(tmp_path / "out"))
    assert b"new" == (tmp_path / "rw/new").read_bytes()


# ---- archives


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
async def test_archives_of_others_are_unpacked(sandbox: Sandbox, mode: str) -> None:
    """Compressed or not, with or without entries for directories, with names of one file and long names."""
    packed = archive(
        (member("./deep/er/f"), b"1"),
        (member("deep/again", tarfile.LNKTYPE, "deep/er/f"), b""),
        (member("./l", tarfile.SYMTYPE, "deep"), b""),
        (member("d" * 150 + "/"), b""),
        (member("x" * 90 + "/" + "y" * 200, mode=0o4755), b"2"),
        (member("deep/er", tarfile.DIRTYPE, mode=0o750), b""),
        (member("null", tarfile.CHRTYPE), b""),
        mode=mode,
    )
    report = await sandbox.put_tree(packed, "/tmp/t")
    shown = await sandbox.run("cd /tmp/t; cat l/er/f deep/again x*/y*; stat -c %h deep/er/f; stat -c %a x*/y*")

    assert (("null", "is a device"),) == report.skipped
    assert b"1122\n755\n" == shown.stdout


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "broken"),
        (b"x" * 2000, "broken"),
        (b"\x1f\x8b\x08" + b"x" * 100, "broken"),
        (archive((member("f"), bytes(100_000))).getvalue()[:50_000], "broken"),
        (archive((member("f"), b"x"), mode="w:gz").getvalue()[:-20], "broken"),
    ],
    ids=["empty", "junk", "gzip", "cut", "cut-gzip"],
)
async def test_a_broken_archive_is_refused(sandbox: Sandbox, data: bytes, said: str) -> None:
    """It is an error that says so, and the sandbox can be used on."""
    with pytest.raises(UsageError, match=said):
        await sandbox.put_tree(io.BytesIO(data), "/tmp/t")

    assert (await sandbox.run("true")).ok


async def test_an_archive_that_was_got_is_one_that_tar_reads(sandbox: Sandbox) -> None:
    """Nothing of our own is in it, and neither owners nor set-id bits nor links that lead out."""
    await sandbox.run(
        f"mkdir -p /tmp/t/{'d' * 150}; cd /tmp/t; echo 1 > f; ln f {'d' * 150}/g; ln -s f l; ln -s ../.. out; mkfifo p;"
        " chown 7:8 f; chmod 6755 f"
    )
    file = io.BytesIO()
    report = await sandbox.get_tree("/tmp/t", file)
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        members = {info.name: (info.type, info.mode, info.uid, info.linkname) for info in tar}

    names = {".", "d" * 150, f"{'d' * 150}/g", "f", "l"}
    one, other = sorted((f"{'d' * 150}/g", "f"), key=lambda name: members[name][0] == tarfile.LNKTYPE)
    assert names == set(members)
    assert (tarfile.REGTYPE, 0o755, 0, "") == members[one]
    assert (tarfile.LNKTYPE, 0o755, 0, one) == members[other]
    assert ["out", "p"] == sorted(path for path, _why in report.skipped)


# ---- what cannot be


@pytest.mark.parametrize(
    ("setup", "path", "number"),
    [
        ("", "/tmp/nosuch", errno.ENOENT),
        ("echo x > /tmp/f", "/tmp/f", errno.ENOTDIR),
        ("ln -s /etc /tmp/l", "/tmp/l", errno.ENOTDIR),
        ("", "/proc/self/root", errno.ENOTDIR),
    ],
)
async def test_what_is_no_directory_cannot_be_got(
    sandbox: Sandbox, tmp_path: Path, setup: str, path: str, number: int
) -> None:
    """The error names it and says why; nothing is made on the host."""
    await sandbox.run(setup)
    with pytest.raises(FileTransferError, match=path) as caught:
        await sandbox.get_tree(path, tmp_path / "out")

    assert number == caught.value.errno
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setup", "path", "number", "named"),
    [
        ("", "/tmp/nosuch/t", errno.ENOENT, "/tmp/nosuch/t"),
        ("ln -s /etc /tmp/t", "/tmp/t", errno.ENOTDIR, "/tmp/t"),
        ("echo x > /tmp/t", "/tmp/t", errno.ENOTDIR, "/tmp/t"),
        ("mkdir -p /tmp/t; ln -s /tmp /tmp/t/d", "/tmp/t", errno.ENOTDIR, "/tmp/t/d"),
        ("mkdir -p /tmp/t/f", "/tmp/t", errno.EISDIR, "/tmp/t/f"),
        ("", "/proc/t", errno.ENOENT, "/proc/t"),
    ],
)
async def test_what_cannot_be_put_is_named(
    sandbox: Sandbox, tmp_path: Path, setup: str, path: str, number: int, named: str
) -> None:
    """Report 33: the error is typed, and names the entry that could not be made."""
    make(tmp_path / "there", {"d": {"e": (b"x", 0o644, 0)}, "f": (b"x", 0o644, 0)})
    await sandbox.run(setup)
    with pytest.raises(FileTransferError, match=named) as caught:
        await sandbox.put_tree(tmp_path / "there", path)

    assert number == caught.value.errno
    assert (await sandbox.run("true")).ok


async def test_who_may_not_write_there_cannot_put(sandbox: Sandbox, tmp_path: Path) -> None:
    """A tree is put with the rights of the user that will own it."""
    make(tmp_path / "there", {"f": (b"x", 0o644, 0)})
    with pytest.raises(FileTransferError) as caught:
        await sandbox.put_tree(tmp_path / "there", "/root/t", user=1000)

    assert errno.EACCES == caught.value.errno


@pytest.mark.parametrize("limits", [Limits(disk_bytes=4 << 20), Limits(disk_inodes=100)], ids=["bytes", "inodes"])
async def test_a_full_disk_is_an_error_that_says_so(supervisor: Supervisor, tmp_path: Path, limits: Limits) -> None:
    """Report 33: nothing is silently left out, no half file is left, and a tree can be got from a full disk."""
    tree: Tree = {f"{number:03}": (bytes(50_000), 0o644, 0) for number in range(200)}
    make(tmp_path / "there", tree)
    async with supervisor.open_sandbox(limits=limits) as sandbox:
        with pytest.raises(FileTransferError, match="disk limit") as caught:
            await sandbox.put_tree(tmp_path / "there", "/tmp/t")
        report = await sandbox.get_tree("/tmp/t", tmp_path / "back")
        await sandbox.run("rm -r /tmp/t")
        await sandbox.write_file("/tmp/fits", b"x")

    assert errno.ENOSPC == caught.value.errno
    assert 0 < report.files < 200
    assert all((50_000 == path.stat().st_size) for path in (tmp_path / "back").iterdir())
    assert f"/tmp/t/{report.files:03}" == caught.value.path


async def test_a_target_that_is_there_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    """Nothing is merged into what may be a trap: a directory must be new or empty, and no link."""
    make(tmp_path / "full", {"f": (b"", 0o644, 0)})
    make(tmp_path / "empty", {})
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "file").touch()
    await sandbox.run("mkdir /tmp/t; echo x > /tmp/t/x")
    for name in ("full", "link", "file", "no/such"):
        with pytest.raises(UsageError):
            await sandbox.get_tree("/tmp/t", tmp_path / name)
    await sandbox.get_tree("/tmp/t", tmp_path / "empty")

    assert {"full", "empty", "link", "file"} == {path.name for path in tmp_path.iterdir()}
    assert ["x"] == os.listdir(tmp_path / "empty")


@pytest.mark.parametrize("bounds", [TreeBounds(max_bytes=1000), TreeBounds(max_entries=5)], ids=["bytes", "entries"])
async def test_a_tree_beyond_its_bounds_is_refused(sandbox: Sandbox, tmp_path: Path, bounds: TreeBounds) -> None:
    """Row 45: neither a huge sparse file nor many small ones fill the host; nothing of them stays."""
    await sandbox.run("mkdir /tmp/t; cd /tmp/t; truncate -s 1T sparse; touch 1 2 3 4 5 6")
    with pytest.raises(FileTransferError, match="bounds"):
        await sandbox.get_tree("/tmp/t", tmp_path / "out", bounds=bounds)

    assert [] == list(tmp_path.iterdir())
    assert (await sandbox.run("true")).ok


@pytest.mark.requires_root
async def test_a_full_host_is_our_error(sandbox: Sandbox, tmp_path: Path) -> None:
    """It is no fault of what is in the sandbox, and nothing stays."""
    os.mkdir(tmp_path / "small")
    await trio.run_process(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(tmp_path / "small")])
    try:
        await sandbox.run("mkdir /tmp/t; head -c 1M /dev/urandom > /tmp/t/f")
        with pytest.raises(HostError, match="No space"):
            await sandbox.get_tree("/tmp/t", tmp_path / "small/out")
        left = os.listdir(tmp_path / "small")
    finally:
        await trio.run_process(["umount", str(tmp_path / "small")])

    assert [] == left


@pytest.mark.parametrize("depth", [250, 400])
async def test_a_deep_tree_is_cut_off_and_told(sandbox: Sandbox, tmp_path: Path, depth: int) -> None:
    """Row 45: as deep as 255 directories it comes out; what lies deeper is reported."""
    await sandbox.run(f"mkdir /tmp/t; cd /tmp/t; for i in $(seq {depth}); do mkdir d; cd -P d; done; echo x > f")
    report = await sandbox.get_tree("/tmp/t", tmp_path / "out")

    assert (1 if depth < 256 else 0) == report.files
    assert ([] if depth < 256 else ["/".join("d" * 256)]) == [path for path, _why in report.skipped]
    shutil.rmtree(tmp_path / "out")


async def test_long_paths_are_told(sandbox: Sandbox, tmp_path: Path) -> None:
    """A path that the kernel would not take at once is reported, not cut."""
    name = "d" * 250
    await sandbox.run(f"mkdir /tmp/t; cd /tmp/t; for i in $(seq 20); do mkdir {name}; cd -P {name}; done; echo x > f")
    report = await sandbox.get_tree("/tmp/t", tmp_path / "out")

    assert 0 == report.files
    assert 1 == len(report.skipped)
    shutil.rmtree(tmp_path / "out")


# ---- while it runs


async def test_a_tree_that_changes_is_packed_all_the_same(sandbox: Sandbox, tmp_path: Path) -> None:
    """Files that grow, shrink, come and go: each is as it was at some time, or reported, and nothing else breaks."""
    churn = (
        "mkdir /tmp/t; cd /tmp/t; for i in 1 2 3 4 5 6; do head -c 300000 /dev/zero > f$i; done; touch /tmp/ready;"
        " while :; do : > f1; head -c 900000 /dev/zero > f1; rm -rf d; mkdir d; mv f2 d/f2; touch d/{1..50};"
        " mv d/f2 f2; ln -sf / d; rm -f d; done"
    )
    with trio.fail_after(60):
        async with sandbox.open_session() as session, trio.open_nursery() as nursery:
            nursery.start_soon(session.run, churn)
            await sandbox.run("until test -e /tmp/ready; do sleep 0.01; done")
            for number in range(20):
                report = await sandbox.get_tree("/tmp/t", tmp_path / f"out{number}")
                assert report.files >= 4
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("direction", ["put", "get"])
async def test_a_cancelled_transfer_leaves_nothing_outside(sandbox: Sandbox, tmp_path: Path, direction: str) -> None:
    """The host has no half file, no process is left, and the sandbox can be used on."""
    with trio.fail_after(30), trio.CancelScope() as scope:
        if direction == "get":
            await sandbox.run("mkdir /tmp/t; truncate -s 1T /tmp/t/endless")
            await sandbox.get_tree(
                "/tmp/t",
                tmp_path / "out",
                progress=lambda files, size: scope.cancel(),
                bounds=TreeBounds(max_bytes=1 << 50),
            )
        else:
            await sandbox.put_tree(_Endless(), "/tmp/t", progress=lambda files, size: scope.cancel())

    assert scope.cancelled_caught
    assert [] == list(tmp_path.iterdir())
    assert (await sandbox.run("true")).ok


class _Endless:
    """An archive without an end."""

    def __init__(self) -> None:
        self._one = archive((member("f"), b"x")).getvalue()[:1024]
        self._at = 0

    def read(self, size: int, /) -> bytes:
        begin, self._at = self._at, (self._at + size) % 1024
        return (self._one * (size // 1024 + 2))[begin : begin + size]


async def test_progress_is_told_and_its_error_ends_the_transfer(sandbox: Sandbox, tmp_path: Path) -> None:
    """It ends with the whole; what it raises goes to the caller."""
    make(tmp_path / "there", {str(number): (b"12", 0o644, 0) for number in range(100)})
    told: list[tuple[int, int]] = []
    await sandbox.put_tree(tmp_path / "there", "/tmp/t", progress=lambda files, size: told.append((files, size)))
    with pytest.raises(ZeroDivisionError):
        await sandbox.get_tree("/tmp/t", tmp_path / "back", progress=lambda files, size: files / 0)

    assert (100, 200) == told[-1]
    assert ["there"] == os.listdir(tmp_path)


async def test_the_end_of_the_sandbox_is_told(supervisor: Supervisor, tmp_path: Path) -> None:
    """A transfer that is under way then is broken, and leaves nothing outside."""
    async with supervisor.open_sandbox(lifetime_s=1.0) as sandbox:
        await sandbox.run("mkdir /tmp/t; truncate -s 1T /tmp/t/endless")
        with pytest.raises(BrokenError):
            await sandbox.get_tree("/tmp/t", io.BufferedWriter(_Sink()), bounds=TreeBounds(max_bytes=1 << 50))


class _Sink(io.RawIOBase):
    """Takes everything."""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        return len(data)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_hundred_thousand_files_take_seconds(supervisor: Supervisor, tmp_path: Path) -> None:
    """Neither direction keeps a list of them, nor takes longer than a copy on the host would by an order."""
    there = tmp_path / "there"
    there.mkdir()
    for directory in range(100):
        make(there / f"{directory}", {f"{number}": (b"%d" % number, 0o644, 0) for number in range(1000)})
    told: list[int] = []
    async with supervisor.open_sandbox(limits=Limits(disk_inodes=200_000, disk_bytes=1 << 30)) as sandbox:
        with trio.fail_after(120):
            put = await sandbox.put_tree(there, "/tmp/t", progress=lambda files, size: told.append(files))
            file = io.BytesIO()
            got = await sandbox.get_tree("/tmp/t", file)

    assert (100_000, 100_000) == (put.files, got.files)
    assert sorted(told) == told
    assert len(told) > 2


async def test_64_mebibytes_arrive_whole(sandbox: Sandbox, tmp_path: Path) -> None:
    """Report 32: no size of a file is an argument of anything."""
    data = os.urandom(1 << 20) * 64
    make(tmp_path / "there", {"f": (data, 0o644, 0)})
    await sandbox.put_tree(tmp_path / "there", "/tmp/t")
    await sandbox.get_tree("/tmp/t", tmp_path / "back")

    assert data == (tmp_path / "back/f").read_bytes()


# ---- the reader inside


def _header(kind: bytes, path: str, size: int = 0, target: str = "") -> bytes:
    return retyped(encode_entry(Entry(Kind.FILE, path, size=size, target=target)), kind)


def _records(data: bytes) -> bytes:
    return _header(b"x", "p", len(data)) + data + padding(len(data)) + encode_entry(Entry(Kind.FILE, "f")) + END


@pytest.mark.parametrize(
    ("data", "stage"),
    [
        (b"", Stage.TREE_STREAM),
        (encode_entry(Entry(Kind.FILE, "f"))[:300], Stage.TREE_STREAM),
        (encode_entry(Entry(Kind.FILE, "f", size=1000)) + b"x" * 999, Stage.TREE_STREAM),
        (b"x" * 512, Stage.TREE_STREAM),
        (encode_entry(Entry(Kind.FILE, "f"))[:-1] + b"x" + END, Stage.TREE_STREAM),
        (_header(b"3", "f") + END, Stage.TREE_STREAM),
        (_header(b"x", "f", 20000) + bytes(21000), Stage.TREE_STREAM),
        (_header(b"x", "f", 1 << 40) + bytes(21000), Stage.TREE_STREAM),
        (_records(b"junk"), Stage.TREE_STREAM),
        (_records(b"0 path=x\n"), Stage.TREE_STREAM),
        (_records(b"9 path=x\n9"), Stage.TREE_STREAM),
        (_records(b"99999 path=x\n"), Stage.TREE_STREAM),
        (_records(b"10 path=x\0\n"), Stage.TREE_STREAM),
        (_records(b"11 size=9x\n"), Stage.TREE_STREAM),
        (_records(b"28 size=9999999999999999999\n"), Stage.TREE_STREAM),
        (encode_entry(Entry(Kind.FILE, "")) + END, Stage.TREE_STREAM),
        (encode_entry(Entry(Kind.FILE, "..")) + END, Stage.TREE_STREAM),
        (encode_entry(Entry(Kind.FILE, "d/")) + END, Stage.TREE_STREAM),
        (encode_entry(Entry(Kind.FILE, "../escaped")) + END, Stage.FILE_WRITE),
        (encode_entry(Entry(Kind.FILE, "/escaped")) + END, Stage.FILE_WRITE),
        (encode_entry(Entry(Kind.FILE, "/tmp/escaped")) + END, Stage.FILE_WRITE),
        (encode_entry(Entry(Kind.SYMLINK, "l", target="/tmp")) + encode_entry(Entry(Kind.FILE, "l/escaped")) + END,
         Stage.FILE_WRITE),
        (encode_entry(Entry(Kind.LINK, "escaped", target="../passwd")) + END, Stage.FILE_WRITE),
        (encode_entry(Entry(Kind.LINK, "l", target="nosuch")) + END, Stage.FILE_WRITE),
    ],
)  # fmt: skip
async def test_the_reader_inside_trusts_no_stream(sandbox: Sandbox, data: bytes, stage: Stage) -> None:
    """Row 14: cut, forged or out of bounds: it fails with its stage, crashes never, and makes nothing outside."""
    await sandbox.run("cp /etc/passwd /tmp/passwd")
    command = sandbox.new_command(Limits())
    read_fd, write_fd = os.pipe()
    request = common_request("unpack", command, [read_fd]).option("path", "/tmp/t").option("capabilities", 14)
    await sandbox.start_command(command, request)
    os.close(read_fd)
    with contextlib.suppress(BrokenPipeError):
        os.write(write_fd, data)
    os.close(write_fd)
    await supervise(command, Limits())
    sandbox.finish(command)

    assert command.outcome.failure is not None
    assert stage == command.outcome.failure.stage
    assert os.WIFEXITED(command.outcome.wait_status or 0)
    assert {"t", "passwd"} == {name for name in await listed(sandbox, "/tmp") if not name.startswith("t/")}
    assert not [name for name in await listed(sandbox, "/tmp/t") if "escaped" in name]


# ---- the stream


@given(
    st.builds(
        Entry,
        kind=st.just(Kind.FILE),
        path=st.lists(NAMES, min_size=1, max_size=6).map("/".join),
        mode=st.integers(0, 0o7777),
        uid=st.integers(0, 65534),
        gid=st.integers(0, 65534),
        size=st.integers(0, 1 << 40),
        mtime=st.integers(0, (1 << 33) - 1),
        target=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300),
        inode=st.just(""),
        error=st.just(0),
    )
)
def test_an_entry_survives_the_stream(entry: Entry) -> None:
    """What is read is what was written, long names and large sizes too."""
    data = io.BytesIO(encode_entry(entry) + bytes(1024))

    assert entry == next(read_entries(data.read))


@given(st.integers(0, 3 * 512), st.integers(0, 255), st.binary(max_size=600))
def test_junk_is_no_stream(at: int, value: int, junk: bytes) -> None:
    """A changed byte or a cut gives other entries or a ProtocolError, and each path stays inside."""
    data = bytearray(encode_entry(Entry(Kind.FILE, "d" * 150, size=3)) + b"abc" + padding(3) + junk)
    if at < len(data):
        data[at] = value
    stream = io.BytesIO(bytes(data) + bytes(1024))

    def read(size: int) -> bytes:
        return stream.read(size).ljust(size, b"\0") if size < 1 << 20 else bytes(size)

    try:
        for entry in read_entries(read):
            stream.read(min(entry.size, 1 << 20) + -entry.size % 512)
            assert not entry.path.startswith("/")
            assert ".." not in entry.path.split("/")
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "path", ["/", "/etc/passwd", "..", "../x", "a/../b", "a//b", "a/.", "./a", "a/", "a\0b", "x/" * 300 + "x"]
)
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    """Row 14: whatever the other side says, no entry has such a path."""
    with pytest.raises(ProtocolError):
        list(read_entries(io.BytesIO(_forged(path.encode())).read))


def _forged(path: bytes) -> bytes:
    record = b" path=" + path + b"\n"
    length = next(length for length in range(len(record), 5000) if length == len(record) + len(str(length)))
    records = b"%d" % length + record
    header = bytearray(encode_entry(Entry(Kind.FILE, "p", size=len(records))))
    header[156:157] = b"x"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + records + padding(len(records)) + encode_entry(Entry(Kind.FILE, "f")) + bytes(1024)


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("l", "a", False),
        ("l", ".", False),
        ("d/l", "..", False),
        ("d/e/l", "../../x", False),
        ("d/l", "./../x", False),
        ("l", "/", True),
        ("l", "..", True),
        ("d/l", "../..", True),
        ("l", "a/../..", True),
        ("l", "a/..", True),
        ("d/l", "../a/..", True),
        ("l", "", False),
    ],
)
def test_links_that_lead_out_are_told_apart(path: str, target: str, out: bool) -> None:
    """ ".." counts at the beginning only: behind a name it could go up from wherever another link leads."""
    assert out is leads_out(path, target)
