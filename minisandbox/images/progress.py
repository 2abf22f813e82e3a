"""How far a build is: what a caller is told while it runs. It never prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from minisandbox.images.compression import Readable

INTERVAL_S = 0.1
"""Nobody is told more often."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a build is at one moment."""

    step: str
    """What is being done, in a few words."""
    files: int
    """Files written in this step."""
    done_bytes: int
    """Bytes of this step's input that were read."""
    total_bytes: int | None
    """How many there are; None where nobody knows."""


Report = Callable[[Progress], object]
"""Is called while a build runs. What it raises ends the build, of which nothing is left."""


class Meter:
    """Counts what is done and tells `report` now and then."""

    def __init__(self, report: Report | None = None) -> None:
        self._report = report
        self._step, self._files, self._done_bytes = "", 0, 0
        self._total_bytes: int | None = None
        self._told_at = 0.0

    def begin(self, step: str, total_bytes: int | None = None) -> None:
        """Begin a step."""
        self._step, self._files, self._done_bytes, self._total_bytes = step, 0, 0, total_bytes
        self._tell(time.monotonic())

    def add_file(self) -> None:
        """Count a file."""
        self._files += 1
        self._tell_if_due()

    def add_bytes(self, count: int) -> None:
        """Count bytes that were read."""
        self._done_bytes += count
        self._tell_if_due()

    def reading(self, raw: Readable) -> Readable:
        """Return a reader of the same bytes that counts them."""
        return _CountingReader(raw, self)

    def _tell_if_due(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= INTERVAL_S:
            self._tell(now)

    def _tell(self, now: float) -> None:
        self._told_at = now
        if self._report is not None:
            self._report(Progress(self._step, self._files, self._done_bytes, self._total_bytes))


class _CountingReader:
    def __init__(self, raw: Readable, meter: Meter) -> None:
        self._raw, self._meter = raw, meter

    def read(self, size: int, /) -> bytes:
        data = self._raw.read(size)
        self._meter.add_bytes(len(data))
        return data
