"""How a submission that must be fast is measured against a reference, as values and pure functions.

A ratio is CPU time of the submission over that of the reference, in one round, on the same inputs, each less the time
of a module that does nothing. Many ratios make one decision, or none: noise must not decide, so what is too near to a
bound is told as undecided, and is nobody's score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.spec import Outcome

AGREE = 0.75
"""The share of rounds that must be on the side of a bound on which the median is."""

LEAST_WORK_S = 0.03
"""Less work of the reference than this cannot be told from the noise of a start, which is a few milliseconds."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A test of speed."""

    id: str
    at_most: float
    """How much CPU time a submission may use, as a multiple of that of the reference."""

    def __post_init__(self) -> None:
        if not 0.0 < self.at_most < math.inf:
            raise UsageError("at_most is a multiple of the reference's time, above 0")


class PerformanceWork(msgspec.Struct, frozen=True, kw_only=True, tag="performance"):
    """A function that must give the answers of a reference, and faster, or not much slower."""

    module: str
    """A name that can be imported with the submission on the path; the reference is imported by it, too."""
    function: str
    reference: bytes
    """The source of a module whose function is right."""
    inputs: bytes
    """The source of a module with make(seed, number), which returns the arguments of a call as a tuple or list."""
    bounds: tuple[Bound, ...]
    calls: int = 10
    """How many calls a round has, each with an input of its own."""
    tolerance: float | None = None
    rounds: int = 5
    """How many rounds there are at least."""
    most_rounds: int = 15
    margin: float = 0.05
    """How near to a bound, as a share of it, the median may be and yet decide nothing."""
    floor: float | None = None
    """A ratio below which nobody believes it without a look."""

    def __post_init__(self) -> None:
        if not 1 <= self.calls <= 10_000 or not 3 <= self.rounds <= self.most_rounds <= 101:
            raise UsageError("a task of speed has 1 to 10,000 calls, and 3 <= rounds <= most_rounds <= 101")
        check_tolerance(self.tolerance)
        if not 0.0 <= self.margin < 1.0 or not 0.0 <= (self.floor or 0.0) < math.inf:
            raise UsageError("margin is from 0 and below 1, and floor a multiple of the reference's time")


def check_tolerance(tolerance: float | None) -> None:
    """Raise UsageError for a tolerance that is none."""
    if tolerance is not None and not 0.0 <= tolerance < math.inf:
        raise UsageError(f"tolerance is {tolerance}; it is a number from 0")


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one round used, in seconds of CPU time."""

    submission_s: float
    reference_s: float
    nothing_s: float
    """Of a module that does nothing, which was called as often, with the same arguments."""

    @property
    def ratio(self) -> float:
        """How much the submission used of what the reference did."""
        return max(0.0, self.submission_s - self.nothing_s) / (self.reference_s - self.nothing_s)

    @property
    def tells(self) -> bool:
        """Whether the reference did enough to be compared with."""
        return self.reference_s - self.nothing_s >= LEAST_WORK_S


def outcome_of_ratios(ratios: Sequence[float], at_most: float, margin: float) -> Outcome | None:
    """Return AC when they are below a bound, TLE when they are above it, None when they do not tell."""
    middle = median(ratios)
    below = sum(ratio <= at_most for ratio in ratios) / len(ratios)
    if middle <= at_most / (1.0 + margin) and below >= AGREE:
        return Outcome.AC
    if middle >= at_most * (1.0 + margin) and 1.0 - below >= AGREE:
        return Outcome.TLE
    return None


def outcomes_of(work: PerformanceWork, ratios: Sequence[float]) -> Mapping[str, Outcome] | None:
    """Return what came of each bound; None as long as one of them, or the floor, is undecided."""
    bounds = {bound.id: outcome_of_ratios(ratios, bound.at_most, work.margin) for bound in work.bounds}
    told = {name: outcome for name, outcome in bounds.items() if outcome is not None}
    return told if len(told) == len(bounds) and is_excessive(work, ratios) is not None else None


def is_excessive(work: PerformanceWork, ratios: Sequence[float]) -> bool | None:
    """Return whether it is faster than anybody believes; None when they do not tell."""
    if not work.floor:
        return False
    outcome = outcome_of_ratios(ratios, work.floor, work.margin)
    return None if outcome is None else outcome is Outcome.AC
