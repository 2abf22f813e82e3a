"""What comes of a measurement: the values that are written as JSON, and the quantities that follow from them."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from bench.tools import Rate, per_second

BASE = "bare"
"""The subject that all others are compared with."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the figures depend on, as it was when the measurement began."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    load_1min: float
    measured_at: str

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / 2**30:.0f} GiB"
        return f"{self.cpu}, {self.cores} cores, {memory}, Linux {self.kernel}, Python {self.python}"


def quantile(seconds: Sequence[float], fraction: float) -> float:
    """Return the time that this fraction kept within: one that was measured."""
    return sorted(seconds)[math.ceil(fraction * len(seconds)) - 1]


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """Every time that was measured of one subject."""

    label: str
    seconds: list[float]

    def quantile(self, fraction: float) -> float:
        """Return the time that this fraction kept within, in seconds."""
        return quantile(self.seconds, fraction)


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured of one subject. `rates` holds one for each round, by the number at once."""

    label: str
    command: tuple[str, ...]
    latency_s: list[float]
    rates: dict[int, list[Rate]]

    def latency(self, fraction: float) -> float:
        """Return the time that this fraction of the starts kept within, in seconds."""
        return quantile(self.latency_s, fraction)

    def throughput(self, at_once: int) -> float:
        """Return the starts in a second over all rounds."""
        return per_second(self.rates[at_once])

    def best_throughput(self) -> float:
        """Return that of the number at once that suits the subject best."""
        return max(self.throughput(at_once) for at_once in self.rates)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement. `skipped` says why a subject is missing."""

    format: int = 1
    machine: Machine
    samples: dict[str, Samples]
    skipped: dict[str, str]

    def ratio(self, key: str, fraction: float = 0.5) -> float:
        """Return a quantile of a subject's latency as a multiple of the bare median."""
        return self.samples[key].latency(fraction) / self.samples[BASE].latency(0.5)


def look_at_machine() -> Machine:
    """Return the facts of this host."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return Machine(
        cpu=models[0].partition(": ")[2] if models else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        python=platform.python_version(),
        load_1min=os.getloadavg()[0],
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
