"""Compressed streams: each format in parts and padded, damaged and cut off, and bombs that cost nothing."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.images.compression import CHUNK_BYTES, CorruptError, Decompressed

ROOT = Path(__file__).parents[1]


def _find_zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return None


ZSTD = _find_zstd()
HAS_ZSTD = ZSTD is not None
CONTENT = b"".join(b"%d\n" % number for number in range(100_000)) + os.urandom(100_000)

FORMATS = [
    pytest.param("", id="plain"),
    "gzip",
    "bzip2",
    "xz",
    pytest.param("zstd", marks=pytest.mark.skipif(not HAS_ZSTD, reason="this Python has no module for zstd")),
]


def squeeze(format: str, content: bytes) -> bytes:
    """Compress content."""
    match format:
        case "gzip":
            return gzip.compress(content)
        case "bzip2":
            return bz2.compress(content)
        case "xz":
            return lzma.compress(content)
        case "zstd":
            # The checksum is the default of zstd(1), though not of its library.
            return bytes(ZSTD.compress(content, options={ZSTD.CompressionParameter.checksum_flag: 1}))
    return content


def unpack(content: bytes, size: int = CHUNK_BYTES) -> bytes:
    """Return what a stream unpacks to, read `size` bytes at a time."""
    stream = Decompressed(io.BytesIO(content))
    unpacked = b""
    while data := stream.read(size):
        assert len(data) <= size
        unpacked += data
    assert b"" == stream.read(size)
    return unpacked


@pytest.mark.parametrize("size", [1000, CHUNK_BYTES, 1 << 24])
@pytest.mark.parametrize("format", FORMATS)
def test_every_format_unpacks(format: str, size: int) -> None:
    """Whatever is read at a time."""
    packed = squeeze(format, CONTENT)

    assert format == Decompressed(io.BytesIO(packed)).format
    assert CONTENT == unpack(packed, size)


@pytest.mark.parametrize("format", FORMATS)
def test_empty_content_unpacks(format: str) -> None:
    """To nothing."""
    assert b"" == unpack(squeeze(format, b""))


@pytest.mark.parametrize("format", FORMATS[1:])
def test_parts_one_after_another_are_one_stream(format: str) -> None:
    """As programs that compress in parallel write it, and with the padding that tapes leave behind."""
    packed = squeeze(format, b"one ") + squeeze(format, b"") + squeeze(format, b"two")

    assert b"one two" == unpack(packed)
    assert b"one two" == unpack(packed + bytes(10_000))


@pytest.mark.parametrize("format", FORMATS[1:])
def test_stream_that_ends_too_early_is_an_error(format: str) -> None:
    """Wherever it is cut."""
    packed = squeeze(format, CONTENT)
    for length in (len(packed) - 1, len(packed) // 2, 30):
        with pytest.raises(CorruptError, match=f"the {format} data ends too early"):
            unpack(packed[:length])


@pytest.mark.parametrize("format", FORMATS[1:])
def test_damaged_stream_is_an_error(format: str) -> None:
    """A wrong byte in the middle, and junk after the end."""
    packed = bytearray(squeeze(format, CONTENT))
    packed[len(packed) // 2] ^= 0xFF
    for damaged in (bytes(packed), squeeze(format, b"x") + b"junk that is no part"):
        with pytest.raises(CorruptError, match=format):
            unpack(damaged)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"]))
def test_junk_unpacks_to_itself_or_is_an_error(junk: bytes, magic: bytes) -> None:
    """Never anything else."""
    if magic == b"\x28\xb5\x2f\xfd" and not HAS_ZSTD:
        magic = b""
    try:
        unpacked = unpack(magic + junk)
    except CorruptError:
        return

    assert magic + junk == unpacked or magic


def test_name_that_looks_compressed_is_not(tmp_path: Path) -> None:
    """A plain archive may begin with a file that is called BZh."""
    (tmp_path / "BZh").touch()
    packed = subprocess.run(["tar", "-C", tmp_path, "-c", "BZh"], stdout=subprocess.PIPE, check=True).stdout

    assert packed == unpack(packed)


BOMB = """
import io, resource, sys
from minisandbox.images.compression import Decompressed
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
stream = Decompressed(open(sys.argv[1], "rb"))
for _ in range(1000):
    assert stream.read(1 << 16)
"""


@pytest.mark.parametrize("format", FORMATS[1:])
def test_bomb_costs_what_is_read_of_it(format: str, tmp_path: Path) -> None:
    """A gibibyte of zeros in a file of a megabyte, read in part by a process that may have half of that."""
    part = squeeze(format, bytes(1 << 24))
    (tmp_path / "bomb").write_bytes(part * 64)

    ran = subprocess.run([sys.executable, "-c", BOMB, tmp_path / "bomb"], env={"PYTHONPATH": str(ROOT)})

    assert 0 == ran.returncode


def test_xz_that_needs_too_much_memory_is_refused() -> None:
    """Its header alone can ask for 4 GiB."""
    packed = bytearray(lzma.compress(b"small"))
    header = slice(12, 12 + 4 * packed[12])  # of the first block: the xz file format, section 3.1
    assert b"\x21\x01" == packed[14:16]  # LZMA2, whose one property is the size of its dictionary
    packed[16] = 40
    packed[header.stop : header.stop + 4] = zlib.crc32(packed[header]).to_bytes(4, "little")

    with pytest.raises(CorruptError, match="xz"):
        unpack(bytes(packed))


def test_gzip_checksum_counts() -> None:
    """Content that unpacks but is not what was packed."""
    packed = bytearray(gzip.compress(b"content"))
    packed[-8:-4] = (zlib.crc32(b"other")).to_bytes(4, "little")

    with pytest.raises(CorruptError, match="damaged gzip data"):
        unpack(bytes(packed))
