"""Where the holes of a sparse file in a tar archive are, in the two ways in which GNU tar writes that today.

"Old GNU" has the map in the header of the member and in blocks after it, pax 1.0 as lines before its data (GNU tar
manual, "Storing Sparse Files"). The older pax formats 0.0 and 0.1 are refused.
"""

from __future__ import annotations

import tarfile

from minisandbox.images.stream import Source

Segments = list[tuple[int, int]]
"""Place and length of each piece of a file that is no hole."""

MAX_SEGMENTS = 200_000
"""More pieces than any real file was seen with."""

_OLD_MAP, _OLD_ENTRIES, _OLD_EXTENDED, _OLD_SIZE = 386, 4, 482, slice(483, 495)
_BLOCK_ENTRIES, _BLOCK_EXTENDED = 21, 504
_DIGITS = 20


def read_old_map(source: Source, header: bytes, stored: int) -> tuple[int, Segments]:
    """Return real size and pieces of a member of type "S", of which `stored` bytes are in the archive."""
    try:
        size = _octal(header[_OLD_SIZE])
        segments = _entries(header[_OLD_MAP:], _OLD_ENTRIES)
        extended = header[_OLD_EXTENDED]
        while extended:
            block = source.read_exact(tarfile.BLOCKSIZE)
            segments += _entries(block, _BLOCK_ENTRIES)
            extended = block[_BLOCK_EXTENDED]
            _check_count(source, len(segments))
    except ValueError as error:
        raise source.refuse(f"damaged at byte {source.position}: no map of a sparse file") from error
    return size, _checked(source, size, segments, stored)


def _octal(field: bytes) -> int:
    """Return a number of a header: octal digits, or after a byte 0x80 in binary. Raises ValueError."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    return int(field.strip(b"\0 ") or b"0", 8)


def read_pax_map(source: Source, records: dict[bytes, bytes], stored: int) -> tuple[int, Segments, int]:
    """Return real size and pieces of a member by its pax records, and how much of its data the map took."""
    if (records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")) != (b"1", b"0"):
        raise source.refuse(
            f"a sparse file of an old format at byte {source.position}; pack it anew with a current tar"
        )
    begun = source.position
    size = _number(source, records.get(b"GNU.sparse.realsize", b""))
    lines = _Lines(source, stored)
    count = lines.read_number()
    _check_count(source, count)
    segments = [(lines.read_number(), lines.read_number()) for _ in range(count)]
    taken = source.position - begun
    return size, _checked(source, size, segments, stored - taken), taken


class _Lines:
    """Numbers, one a line, in whole blocks of the data of a member."""

    def __init__(self, source: Source, stored: int) -> None:
        self._source, self._left, self._text = source, stored, b""

    def read_number(self) -> int:
        while b"\n" not in self._text:
            if self._left < tarfile.BLOCKSIZE or len(self._text) > _DIGITS:
                raise self._source.refuse(f"damaged at byte {self._source.position}: no map of a sparse file")
            self._text += self._source.read_exact(tarfile.BLOCKSIZE)
            self._left -= tarfile.BLOCKSIZE
        line, _, self._text = self._text.partition(b"\n")
        return _number(self._source, line)


def _number(source: Source, text: bytes) -> int:
    if not text.isdigit() or len(text) >= _DIGITS:
        raise source.refuse(f"damaged at byte {source.position}: no number in the map of a sparse file")
    return int(text)


def _entries(block: bytes, count: int) -> Segments:
    fields = [_octal(block[at : at + 12]) for at in range(0, count * 24, 12)]
    return [(place, length) for place, length in zip(fields[::2], fields[1::2], strict=True) if place or length]


def _check_count(source: Source, count: int) -> None:
    if count > MAX_SEGMENTS:
        raise source.refuse(f"a sparse file of {count} pieces at byte {source.position}; {MAX_SEGMENTS} are allowed")


def _checked(source: Source, size: int, segments: Segments, stored: int) -> Segments:
    """Return the pieces when they lie in the file one after another and are as long as the data together."""
    end = 0
    for place, length in segments:
        if place < end or length < 0:
            break
        end = place + length
    else:
        if 0 <= end <= size < 1 << 63 and sum(length for _, length in segments) == stored:
            return segments
    raise source.refuse(f"damaged at byte {source.position}: the map of a sparse file does not fit its data")
