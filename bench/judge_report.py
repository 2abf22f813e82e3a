"""What comes of a measurement of verdicts: values, goals and tables. It only prints."""

from __future__ import annotations

import msgspec
from rich.console import Console

from bench.report import Goal, empty_table, milliseconds, print_measurement
from bench.samples import Machine, Timed
from bench.tools import Rate, per_second


class JudgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One whole measurement."""

    format: int = 1
    machine: Machine
    subjects: dict[str, Timed]
    rates: dict[str, dict[int, list[Rate]]]
    """Verdicts of a kind, by the number at once, one for each round."""

    def p50(self, key: str) -> float:
        """Return a median in seconds."""
        return self.subjects[key].quantile(0.5)

    def ratio(self, key: str, base: str) -> float:
        """Return a median as a multiple of another."""
        return self.p50(key) / self.p50(base)

    def rate(self, kind: str, at_once: int) -> float:
        """Return verdicts in a second over all rounds."""
        return per_second(self.rates[kind][at_once])

    def stages(self, kind: str) -> dict[str, float]:
        """Return the seconds of each stage of a verdict with its ingest, at the median."""
        return {
            "ingest": self.p50("ingest"),
            "cell": self.p50(f"{kind}_cell"),
            "plan, decide, record": max(0.0, self.p50(f"{kind}_verdict") - self.p50(f"{kind}_cell")),
        }

    def shares(self, kind: str) -> dict[str, float]:
        """Return the share of each stage, as a percentage."""
        stages = self.stages(kind)
        return {name: 100 * seconds / sum(stages.values()) for name, seconds in stages.items()}


KINDS = ("function", "stdio")
JUDGE_GOALS: tuple[Goal[JudgeReport], ...] = (
    Goal("p50, function verdict / bare test", lambda report: report.ratio("function_verdict", "bare_test"), at_most=2),
    Goal(
        "p50, stdio verdict / start, run, gone",
        lambda report: report.ratio("stdio_verdict", "start_run_gone"),
        at_most=1.5,
    ),
)


def print_judge(console: Console, report: JudgeReport) -> None:
    """Print everything that was measured, and what it means for the goals."""
    times = empty_table("in milliseconds", ("p50", "p90", "p99", "n"))
    for timed in report.subjects.values():
        times.add_row(timed.label, *milliseconds(timed.seconds), str(len(timed.seconds)))
    places = sorted(next(iter(report.rates.values())))
    rates = empty_table("verdicts in a second, by the number at once", map(str, places))
    for kind in report.rates:
        rates.add_row(kind, *(f"{report.rate(kind, place):,.0f}" for place in places))
    shares = empty_table("share of each stage, in %", report.shares(KINDS[0]))
    for kind in KINDS:
        shares.add_row(kind, *(f"{share:.0f}" for share in report.shares(kind).values()))
    print_measurement(console, report, JUDGE_GOALS, (times, rates, shares))
