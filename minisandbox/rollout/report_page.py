"""The report of a run as one page of HTML that asks nobody for anything: style, script, charts and trajectories in it.

Templates escape whatever they are given, the script makes text nodes alone, and the page forbids every script and style
but its own by their digests: three reasons why nothing that a policy wrote is ever markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from minisandbox.judge.spec import Outcome
from minisandbox.rollout import charts
from minisandbox.rollout.records import Records
from minisandbox.rollout.report import Report, make_report
from minisandbox.rollout.shown import visible_content, visible_line
from minisandbox.rollout.spec import End
from minisandbox.rollout.statistics import UNJUDGED, PolicyStatistics, Summary, TaskStatistics
from minisandbox.rollout.trajectories import CHUNK_EPISODES, MOST_EACH, Chunks, characters_each

PAGE = Path(__file__).with_name("page")
SLOWEST_SHOWN = 20
COLUMNS = (
    *("number", "task", "policy", "sample", "reward", "verdict", "end"),
    *("suspicious", "quarantine", "evidence", "turns", "tokens", "seconds", "differ"),
)
"""Of the table of episodes."""


def write_page(records: Records, target: Path) -> Report:
    """Write the page of a run's records and return the report that it shows. It replaces the file, whole or not at all.

    Raises RecordError when the records cannot be read, OSError when the page cannot be written.
    """
    turns = records.rows("SELECT count(*) AS turns FROM turns")[0]["turns"]
    chunks = Chunks(characters_each(turns))
    report = make_report(records, lambda _, episode: chunks.add(episode))
    page = render(report, records.instructions(), chunks.packed())
    new = target.with_name(f"{target.name}.new")
    new.write_text(page, encoding="utf-8")
    new.rename(target)
    return report


def render(report: Report, instructions: Mapping[str, str], chunks: Sequence[str]) -> str:
    """Return the page."""
    css, script = (PAGE / "report.css").read_text(), (PAGE / "report.js").read_text()
    policy = f"default-src 'none'; script-src {_source(script)}; style-src {_source(css)}"
    asked = {visible_line(task): visible_content(text, MOST_EACH) for task, text in instructions.items()}
    return (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            charts=_charts(report),
            csp=f"{policy}; base-uri 'none'; form-action 'none'",
            css=css,
            script=script,
            rows=data_block({"columns": COLUMNS, "rows": _rows(report), "chunk": CHUNK_EPISODES}),
            instructions=data_block(asked),
            chunks=chunks,
        )
    )


def data_block(value: Any) -> str:
    """Return JSON that is safe within a script element, whatever it says: no character of it can end one."""
    text = msgspec.json.encode(value).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _source(text: str) -> str:
    """Return how a page's policy names a style or a script (CSP Level 3, "hash-source")."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "line": visible_line,
        "duration": charts.duration,
        "when": _when,
        "level": _level,
        "fact": _fact,
    }
    return environment


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _fact(name: str, value: str) -> str:
    """Return a fact of a machine in words, a size in units that are read."""
    if name.endswith("_bytes") and value.isascii() and value.isdigit():
        return f"{visible_line(name.removesuffix('_bytes'))} {int(value[:30]) / (1 << 30):.1f} GiB"
    return f"{visible_line(name)} {visible_line(value)}"


def _level(reward: float) -> str:
    """Return which of six looks a reward has: b below 0, 0 to 4 from nothing to all."""
    return "b" if reward < 0 else "4" if reward >= 1 else str(min(3, 1 + int(reward * 3))) if reward > 0 else "0"


def _rows(report: Report) -> list[list[Any]]:
    differing = {(each.task, each.policy) for each in report.flaky}
    return [_row(summary, (summary.task, summary.policy) in differing) for summary in report.summaries]


def _row(summary: Summary, differs: bool) -> list[Any]:
    words = (visible_line(summary.task), visible_line(summary.policy), summary.sample, summary.reward)
    ended = (summary.verdict, summary.end.value, summary.suspicious.value, summary.quarantine)
    counts = (summary.turns, summary.tokens, round(summary.seconds, 4), differs)
    return [summary.number, *words, *ended, " ".join(summary.evidence), *counts]


def _charts(report: Report) -> dict[str, Any]:
    low = min([0.0, *(policy.mean_reward or 0.0 for policy in report.policies)])
    has_negative = any(policy.rewards["below 0"] for policy in report.policies)
    tasks = report.tasks[:SLOWEST_SHOWN]
    phases = [_own_phases(task) for task in tasks]
    longest = max((sum(each.values()) for each in phases), default=1.0)
    return {
        "intervals": [charts.interval(policy, low) for policy in report.policies],
        "histograms": [_histogram(at, policy, has_negative) for at, policy in enumerate(report.policies)],
        "outcomes": [_bar(policy.policy, _in_order(policy.outcomes, _OUTCOMES)) for policy in report.policies],
        "outcome_names": _names([policy.outcomes for policy in report.policies], _OUTCOMES),
        "ends": [_bar(policy.policy, _in_order(policy.ends, _ENDS)) for policy in report.policies],
        "end_names": _names([policy.ends for policy in report.policies], _ENDS),
        "throughput": charts.columns(report.throughput, report.bin_s),
        "phases": [
            charts.stacked(each, longest, visible_line(task.task), " s", "p-")
            for task, each in zip(tasks, phases, strict=True)
        ],
        "phase_names": list(phases[0]) if phases else [],
    }


def _own_phases(task: TaskStatistics) -> dict[str, float]:
    """Return the phases of a task but for the queue, which tells of the load and not of the task."""
    return {name: seconds for name, seconds in task.phases.items() if name != "queue"}


_OUTCOMES = (*(outcome.value for outcome in reversed(Outcome)), UNJUDGED)
_ENDS = tuple(end.value for end in End)


def _names(counts: Sequence[Mapping[str, int]], order: Sequence[str]) -> list[str]:
    return [name for name in order if any(name in each for each in counts)]


def _in_order(counts: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    return {name: counts[name] for name in order if name in counts}


def _bar(label: str, counts: Mapping[str, int]) -> charts.Chart:
    return charts.stacked(counts, sum(counts.values()), visible_line(label))


def _histogram(at: int, policy: PolicyStatistics, has_negative: bool) -> charts.Chart:
    counts = {name: number for name, number in policy.rewards.items() if has_negative or name != "below 0"}
    return charts.histogram(counts, f"s{at % 8}", f"rewards of {visible_line(policy.policy)}")
