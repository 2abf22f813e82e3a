"""Tar archives in every dialect, from tar(1) and by hand, and what is no tar archive at all."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisandbox.errors import RootfsError
from minisandbox.images import Bounds, StateDir, import_image, store_layer
from minisandbox.images.skeleton import Entry, tree_digest, write_tree
from minisandbox.images.stream import FileSlice, SeekingSource, Source
from minisandbox.images.tar import MAX_EXTENDED_BYTES, Member, read_members
from tests.archives import Item, directory, file, hard_link, pack, symlink
from tests.test_layer import top_made, trees

DIALECTS = ["gnu", "posix"]
LONG = "/".join(["x" * 200] * 4)


def refuse(message: str) -> RootfsError:
    """Make an error."""
    return RootfsError(message, Path("archive.tar"))


def members(archive: bytes, max_bytes: int = 1 << 40) -> list[tuple[Member, bytes]]:
    """Return every member with its content, holes as zeros."""
    found = []
    for member in read_members(Source(io.BytesIO(archive), refuse, max_bytes)):
        content = bytearray(member.size)
        for place, data in member.read_pieces():
            content[place : place + len(data)] = data
        found.append((member, bytes(content)))
    return found


def run_tar(top: Path, *options: str) -> bytes:
    """Pack a directory by tar(1)."""
    command = ["tar", "--create", "--directory", str(top), *options, "."]
    return subprocess.run(command, capture_output=True, check=True).stdout


@pytest.mark.requires_root
@pytest.mark.parametrize("options", [[f"--format={name}"] for name in DIALECTS] + [["--sparse", "--format=posix"]])
@settings(max_examples=25, deadline=None)
@given(tree=trees())
def test_tree_packed_and_imported_is_the_same_tree(options: list[str], tree: dict[str, Entry]) -> None:
    """Its digest is that of the layer that the tree itself would be."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        write_tree(tree, top_made(place / "tree"))
        (place / "tree.tar").write_bytes(run_tar(place / "tree", "--numeric-owner", *options))
        state = StateDir.open(place / "state")
        (layer,) = import_image(state, place / "tree.tar", "tree").layers
        stored = store_layer(state, lambda top: write_tree(tree, top))

    assert tree_digest(tree) == stored.digest == layer.digest


@pytest.mark.requires_root
@settings(max_examples=25, deadline=None)
@given(tree=trees())
def test_tree_copied_is_the_same_tree(tree: dict[str, Entry]) -> None:
    """The same of a directory, without an archive between."""
    with tempfile.TemporaryDirectory() as temporary:
        write_tree(tree, top_made(Path(temporary, "tree")))
        (layer,) = import_image(StateDir.open(Path(temporary, "state")), Path(temporary, "tree"), "tree").layers

    assert tree_digest(tree) == layer.digest


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_targets_are_whole(format: int) -> None:
    """In whichever header they are."""
    name = LONG[:250].replace("/", "x", 1) if format == tarfile.USTAR_FORMAT else LONG
    if format == tarfile.USTAR_FORMAT:
        name = "d" * 120 + "/" + "f" * 90
    items = [file(name, b"content"), symlink("link", LONG if format != tarfile.USTAR_FORMAT else "x" * 100)]

    found = members(pack(*items, format=format))

    assert [item.name for item in items] == [member.name.decode() for member, _ in found]
    assert items[1].target.encode() == found[1][0].target
    assert b"content" == found[0][1]


@pytest.mark.parametrize("format", ["gnu", "posix"])
def test_sparse_files_have_their_holes(tmp_path: Path, format: str) -> None:
    """Those with a few pieces, with more than a header holds, nothing but a hole, and a hole at the end."""
    top = top_made(tmp_path / "tree")
    expected = {}
    for name, pieces, size in (("few", 3, 1 << 22), ("many", 200, 1 << 24), ("hole", 0, 1 << 20)):
        with open(top / name, "wb") as made:
            for piece in range(pieces):
                made.seek(piece * (size // pieces) + (8192 if piece else 0))
                made.write(b"%d" % piece * 100)
            made.truncate(size)
        expected[name] = (top / name).read_bytes()

    archive = run_tar(top, "--sparse", f"--format={format}")
    found = {member.name.decode(): content for member, content in members(archive) if member.size}

    assert len(archive) < 4 << 20
    assert expected == {os.path.basename(name): content for name, content in found.items()}


def test_older_sparse_formats_are_refused_by_name(tmp_path: Path) -> None:
    """Rather than unpacked to something else."""
    (top_made(tmp_path / "tree") / "hole").write_bytes(b"")
    os.truncate(tmp_path / "tree" / "hole", 1 << 20)

    with pytest.raises(RootfsError, match="sparse file of an old format"):
        members(run_tar(tmp_path / "tree", "--sparse", "--format=posix", "--sparse-version=0.1"))


def test_extended_header_overrides_the_plain_one() -> None:
    """Large numbers, fractions of a second, attributes, names of any bytes."""
    pax = {"uid": "60000", "gid": "7", "mtime": "12.5", "path": "caf\udce9", "SCHILY.xattr.user.note": "n\0=\n"}
    ((member, content),) = members(pack(file("short", b"abc", pax=pax)))

    assert (b"caf\xe9", 60000, 7, 12_500_000_000) == (member.name, member.uid, member.gid, member.mtime_ns)
    assert {b"user.note": b"n\0=\n"} == member.xattrs
    assert b"abc" == content


def test_global_header_holds_for_all_that_follow() -> None:
    """As git-archive(1) writes one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"gid": "9"}) as archive:
        for name in ("a", "b"):
            archive.addfile(file(name).header())

    assert [9, 9] == [member.gid for member, _ in members(buffer.getvalue())]


@pytest.mark.parametrize(("written", "read"), [(-1e9, 0), (1e12, 1 << 33), (0, 0)])
def test_times_that_no_file_system_keeps_are_moved(written: float, read: int) -> None:
    """To the nearest that all do."""
    ((member, _),) = members(pack(file("f", mtime=written), format=tarfile.GNU_FORMAT))

    assert read * 10**9 == member.mtime_ns


def header(**fields: bytes) -> bytes:
    """Return a block with a right checksum, with fields as the bytes that are given."""
    places = {"name": 0, "mode": 100, "uid": 108, "gid": 116, "size": 124, "mtime": 136, "type": 156, "link": 157}
    block = bytearray(512)
    block[100:156] = b"0000644\0" + b"0000000\0" * 2 + b"00000000000\0" * 2 + b" " * 8
    block[257:265] = b"ustar\x0000"
    for name, value in {"name": b"f", "type": b"0", **fields}.items():
        block[places[name] : places[name] + len(value)] = value
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


END = bytes(1024)
PAX_DIGITS = b"65000 comment=" + b"1" * (65000 - 15) + b"\n"


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (b"", "ends too early, at byte 0"),
        (b"plain text, not an archive\n" * 100, "this is no tar archive: "),
        (header()[:-1] + b"x" + END, "this is no tar archive: "),
        (header() + b"junk" * 128 + END, "damaged at byte 512"),
        (header(), "ends too early, at byte 512"),
        (header(size=b"00000002000\0") + b"x" * 512, "ends too early, at byte 1024"),
        (header(size=b"\xff" * 12) + END, "a negative number"),
        (header(uid=b"\xff" * 8) + END, "a negative number"),
        (header(type=b"x", size=b"77777777777\0") + END, "extended headers of 8589934591 bytes"),
        (header(type=b"L", size=b"\x80" + b"\xff" * 11) + END, "extended headers of"),
        (header(type=b"x", size=b"00000000004\0") + b"junk".ljust(512, b"\0") + END, "no pax record"),
        (header(type=b"x", size=b"00000000004\0") + b"0 a=".ljust(512, b"\0") + END, "no pax record"),
        (header(type=b"x", size=b"00000000006\0") + b"99 a=b".ljust(512, b"\0") + END, "no pax record"),
        (header(type=b"M") + END, "member 'f' has the unknown type b'M'"),
        (pack(file("f", pax={"size": "1e3"})), "its size is no number"),
        (pack(file("f", pax={"uid": "-1"})), "its uid is no number"),
        (pack(file("f", pax={"mtime": "soon"})), "is no time"),
        (pack(file("f", pax={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})), "no number in the map"),
        (
            pack(
                file(
                    "f",
                    b"1\n0\n100\n".ljust(512, b"\0"),
                    pax={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "100"},
                )
            ),
            "does not fit its data",
        ),
    ],
)
def test_damaged_archive_is_refused_by_name(archive: bytes, message: str) -> None:
    """It says which and where, and takes no time over it."""
    with pytest.raises(RootfsError, match=rf"^archive.tar: .*{message}"):
        members(archive)


@pytest.mark.parametrize("count", [1, 16])
def test_extended_headers_are_bounded_together(count: int) -> None:
    """One, or many before one member: the names and attributes of a file take no more than a mebibyte."""
    size = MAX_EXTENDED_BYTES // count + 1000
    record = b"%d comment=" % size
    body = record + b"x" * (size - len(record) - 1) + b"\n"
    block = header(type=b"x", size=b"%011o\0" % size) + body + bytes(-size % 512)

    with pytest.raises(RootfsError, match="extended headers of"):
        members(block * count + header() + END)


def test_extended_header_of_digits_takes_no_time() -> None:
    """Expressions that backtrack over it need hours for a few of them (CVE-2024-6232)."""
    block = header(type=b"x", size=b"%011o\0" % len(PAX_DIGITS)) + PAX_DIGITS + bytes(-len(PAX_DIGITS) % 512)

    found = members((block + header()) * 50 + END)

    assert 50 == len(found)


def test_archive_cut_off_anywhere_is_refused() -> None:
    """At every block and between: no part of an archive passes for a whole one."""
    archive = pack(directory("d"), file("d/f", b"x" * 1000), hard_link("h", "d/f"), symlink("l", "d"))
    whole = len(archive.rstrip(b"\0"))

    for length in range(0, whole, 100):
        with pytest.raises(RootfsError, match="ends too early"):
            members(archive[:length])
    assert 4 == len(members(archive))


def test_more_bytes_than_allowed_are_refused() -> None:
    """Those of the archive, whatever is in them."""
    archive = pack(file("f", bytes(10_000)))

    with pytest.raises(RootfsError, match=r"unpacks to more than 8000 bytes.*max_bytes"):
        members(archive, max_bytes=8000)
    assert 1 == len(members(archive, max_bytes=len(archive)))


@given(st.binary(max_size=2000))
def test_junk_is_an_error_of_the_archive(junk: bytes) -> None:
    """Whatever it is."""
    with pytest.raises(RootfsError, match=r"archive\.tar"):
        members(junk)


ARCHIVE = pack(
    directory("d"), file("d/f", b"x" * 600, pax={"SCHILY.xattr.user.a": "b"}), file(LONG), symlink("l", LONG)
)


@given(st.lists(st.tuples(st.integers(0, len(ARCHIVE) - 1), st.integers(0, 255)), min_size=1, max_size=20))
@settings(max_examples=300)
def test_archive_with_wrong_bytes_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    """No byte of it makes us fail in any other way."""
    damaged = bytearray(ARCHIVE)
    for place, value in changes:
        damaged[place] = value
    try:
        found = members(bytes(damaged))
    except RootfsError:
        return

    assert len(found) <= 4


def test_jumping_over_content_finds_the_same_members(tmp_path: Path) -> None:
    """Where the archive is not compressed, content that nobody asks for is not read."""
    (tmp_path / "a.tar").write_bytes(ARCHIVE)
    with open(tmp_path / "a.tar", "rb") as opened:
        source = SeekingSource(FileSlice(opened.fileno()), refuse, 1 << 40)
        jumped = [(member.name, member.offset, member.size) for member in read_members(source)]

    assert [(member.name, member.offset, member.size) for member, _ in members(ARCHIVE)] == jumped


def test_jumping_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    """A file that is shorter than it says."""
    (tmp_path / "a.tar").write_bytes(pack(file("f", bytes(1 << 20)))[: 1 << 19])
    with open(tmp_path / "a.tar", "rb") as opened:
        source = SeekingSource(FileSlice(opened.fileno()), refuse, 1 << 40)
        with pytest.raises(RootfsError, match="ends too early"):
            list(read_members(source))


@pytest.mark.requires_root
@pytest.mark.parametrize("bounds", [Bounds(max_files=3), Bounds(max_bytes=5000)])
def test_bounds_hold_for_what_is_unpacked(tmp_path: Path, bounds: Bounds) -> None:
    """More files, implied directories included, or larger ones with their holes."""
    items: list[Item] = [file("a/b/c/d")] if bounds.max_files == 3 else [file("f", bytes(6000))]
    (tmp_path / "a.tar").write_bytes(pack(*items))
    state = StateDir.open(tmp_path / "state")

    with pytest.raises(RootfsError, match=r"max_files|max_bytes"):
        import_image(state, tmp_path / "a.tar", "a", bounds=bounds)
    assert [] == [*os.listdir(state.layers), *os.listdir(state.path / "tmp")]
    assert import_image(state, tmp_path / "a.tar", "a").layers


@pytest.mark.requires_root
def test_hole_counts_as_the_bytes_that_it_reads_as(tmp_path: Path) -> None:
    """Else a kilobyte could be an exbibyte inside."""
    top = top_made(tmp_path / "tree")
    (top / "hole").touch()
    os.truncate(top / "hole", 1 << 40)
    (tmp_path / "a.tar").write_bytes(run_tar(top, "--sparse"))
    state = StateDir.open(tmp_path / "state")

    with pytest.raises(RootfsError, match=r"member './hole': .*max_bytes"):
        import_image(state, tmp_path / "a.tar", "a", bounds=Bounds(max_bytes=1 << 39))
    (layer,) = import_image(state, tmp_path / "a.tar", "a", bounds=Bounds(max_bytes=1 << 41)).layers
    status = (layer.path / "hole").stat()

    assert (1 << 40, 0) == (status.st_size, status.st_blocks)
