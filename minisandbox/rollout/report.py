"""The report of a run as a value: read from its records once, from the first to the last. It prints and draws nothing.

It blocks: call it in a thread where something else runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from minisandbox.errors import RecordError
from minisandbox.rollout.records import Records
from minisandbox.rollout.spec import Episode
from minisandbox.rollout.statistics import (
    Bin,
    Flaky,
    PolicyStatistics,
    Summary,
    TaskStatistics,
    flaky,
    mean,
    policy_statistics,
    rewards_of,
    summary_of,
    suspects,
    task_statistics,
    throughput,
)

SCHEMA = "msb.report/1"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One time that the run was begun, or begun again."""

    begun: float
    version: str
    machine: dict[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that is told of a run but for its trajectories. What `report --json` prints."""

    name: str
    """Of the directory."""
    made: float
    policies_asked: tuple[str, ...]
    samples: int
    seed: int
    options: dict[str, Any]
    sessions: tuple[Session, ...]
    episodes: int
    masked: int
    quarantined: int
    mean_reward: float | None
    seconds: float
    """From the first episode that began to the last that was finished."""
    sandbox_seconds: float
    """Of all episodes together."""
    unfinished: tuple[str, ...]
    """Ids of episodes that have turns and no end: they go on, or the run was stopped."""
    policies: tuple[PolicyStatistics, ...]
    tasks: tuple[TaskStatistics, ...]
    bin_s: float
    throughput: tuple[Bin, ...]
    flaky: tuple[Flaky, ...]
    suspects: tuple[Summary, ...]
    masks: tuple[Summary, ...]
    """Episodes without a reward."""
    faults: dict[str, int]
    """Errors of ours in tries, by class, those that a retry made good among them."""
    events: dict[str, int]
    damaged: tuple[str, ...]
    """What is said of episodes whose records are not whole; they count nowhere else."""
    summaries: tuple[Summary, ...]
    schema: str = SCHEMA


def make_report(records: Records, each: Callable[[Summary, Episode], object] = lambda *_: None) -> Report:
    """Return the report, and call `each` with every episode that is whole.

    Raises RecordError when the records cannot be read at all; an episode that is damaged is only named.
    """
    summaries: list[Summary] = []
    damaged: list[str] = []
    for episode in records.episodes():
        if isinstance(episode, RecordError):
            damaged.append(str(episode))
        else:
            summaries.append(summary_of(len(summaries), episode))
            each(summaries[-1], episode)
    return _report(records, summaries, damaged)


def _report(records: Records, summaries: list[Summary], damaged: list[str]) -> Report:
    run = records.run()
    width, bins = throughput(summaries)
    faults = Counter(fault for summary in summaries for fault in summary.faults)
    first = min((summary.finished - summary.seconds for summary in summaries), default=0.0)
    return Report(
        name=records.directory.resolve().name,
        made=time.time(),
        policies_asked=run.policies,
        samples=run.samples,
        seed=run.seed,
        options=run.options,
        sessions=tuple(
            Session(begun=begun, version=version, machine=facts) for begun, version, facts in records.sessions()
        ),
        episodes=len(summaries),
        masked=sum(summary.reward is None for summary in summaries),
        quarantined=sum(summary.quarantine for summary in summaries),
        mean_reward=mean(rewards_of(summaries)),
        seconds=max((summary.finished for summary in summaries), default=0.0) - first,
        sandbox_seconds=sum(summary.seconds for summary in summaries),
        unfinished=tuple(key.id for key in records.unfinished()),
        policies=tuple(policy_statistics(summaries, run.policies)),
        tasks=tuple(task_statistics(summaries)),
        bin_s=float(width),
        throughput=tuple(bins),
        flaky=tuple(flaky(summaries)),
        suspects=tuple(suspects(summaries)),
        masks=tuple(summary for summary in summaries if summary.reward is None),
        faults=dict(faults.most_common()),
        events=records.event_counts(),
        damaged=tuple(damaged),
        summaries=tuple(summaries),
    )
