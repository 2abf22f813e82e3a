"""Functions that must be fast: the kernel's clock decides, on inputs that nobody could know, and noise does not."""

from __future__ import annotations

from pathlib import Path

from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from minisandbox.judge.timing import Bound, PerformanceWork
from tests.judge.submissions import judged

REFERENCE = """def total(numbers):
    made = []
    for _ in range(40):
        made = sorted(numbers, key=lambda each: -each)
    return sum(made)
"""
FAST = "def total(numbers):\n    return sum(numbers)\n"
INPUTS = """import random

def make(seed, number):
    random.seed(seed * 1000 + number)
    return ([random.randrange(1 << 30) for _ in range(4000)],)
"""
WORK = PerformanceWork(
    module="solution",
    function="total",
    reference=REFERENCE.encode(),
    inputs=INPUTS.encode(),
    bounds=(Bound(id="no slower", at_most=1.4), Bound(id="ten times faster", at_most=0.1)),
    calls=4,
    rounds=3,
)


async def test_what_is_faster_passes_and_replays(judge: Judge, tmp_path: Path) -> None:
    """Both bounds, and judging it again on the same inputs decides the same."""
    first = await judged(judge, tmp_path / "a", {"solution.py": FAST}, WORK)
    again = await judge.replay(first.episode)

    assert (Outcome.AC, 2) == (first.verdict.decision.verdict, first.verdict.decision.passed)
    assert again.same
