"""The content of a file in pieces, each with its place in it; where there is none is a hole."""

from __future__ import annotations

import os
from collections.abc import Iterable


def write_pieces(fd: int, size: int, pieces: Iterable[tuple[int, bytes]]) -> None:
    """Write a whole file; its end may be a hole. Raises OSError."""
    end = 0
    for place, data in pieces:
        end = place + len(data)
        _write_at(fd, data, place)
    if end != size:
        os.ftruncate(fd, size)


def _write_at(fd: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, place)
        view, place = view[written:], place + written
