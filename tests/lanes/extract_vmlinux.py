"""Extracts the kernel from a bzImage, since decompressing it takes a guest without KVM several seconds at each boot.

Usage: extract_vmlinux.py BZIMAGE VMLINUX. What it writes is an ELF file with a PVH entry, which qemu -kernel takes.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

ELF = b"\x7fELF"


def from_zstd(packed: bytes) -> bytes:
    """Return what zstd unpacks; what follows its frame makes it fail only after it has written that."""
    return subprocess.run(["zstd", "-dc"], input=packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


UNPACKERS: dict[bytes, Callable[[bytes], bytes]] = {
    b"\xfd7zXZ\0": lambda packed: lzma.LZMADecompressor().decompress(packed),
    b"\x28\xb5\x2f\xfd": from_zstd,
    b"\x1f\x8b\x08": lambda packed: zlib.decompressobj(31).decompress(packed),
}
"""By the first bytes of a stream."""


def candidates(image: bytes) -> Iterator[bytes]:
    """Yield what is unpacked at each place where a compressed stream may begin."""
    for magic, unpack in UNPACKERS.items():
        position = image.find(magic)
        while position >= 0:
            try:
                yield unpack(image[position:])
            except (lzma.LZMAError, zlib.error):
                pass  # a chance match of the first bytes
            position = image.find(magic, position + 1)


def main(bzimage: str, vmlinux: str) -> None:
    """Write the first candidate that is a program."""
    kernel = next((each for each in candidates(Path(bzimage).read_bytes()) if each.startswith(ELF)), None)
    if kernel is None:
        raise SystemExit(f"no kernel in {bzimage} that is packed with xz, zstd or gzip")
    Path(vmlinux).write_bytes(kernel)


if __name__ == "__main__":
    main(*sys.argv[1:])
