"""What is told of a run as a whole: policies compared, tasks, time, and which episodes should be looked at.

Values only, made of summaries; those that are masked count in no mean of rewards. This module does no I/O.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from minisandbox.judge.spec import Outcome
from minisandbox.judge.verdict import Suspicion
from minisandbox.rollout.spec import End, Episode

T = TypeVar("T")

REWARD_BINS: tuple[tuple[str, Callable[[float], bool]], ...] = (
    ("below 0", lambda reward: reward < 0),
    ("0", lambda reward: reward == 0),
    ("to ¼", lambda reward: 0 < reward <= 0.25),
    ("to ½", lambda reward: 0.25 < reward <= 0.5),
    ("to ¾", lambda reward: 0.5 < reward <= 0.75),
    ("below 1", lambda reward: 0.75 < reward < 1),
    ("1", lambda reward: reward >= 1),
)
"""Nothing and all of it stand alone, since most rewards are one of them."""

UNJUDGED = "unjudged"
"""What stands for a verdict where there is none."""

MOST_BINS = 60
_BIN_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """An episode in a line. `number` is its own within a report."""

    number: int
    episode: str
    task: str
    policy: str
    sample: int
    reward: float | None
    verdict: str
    end: End
    why: str
    suspicious: Suspicion
    quarantine: bool
    evidence: tuple[str, ...]
    turns: int
    tokens: int
    finished: float
    """Unix time."""
    seconds: float
    phases: dict[str, float]
    """Seconds of each phase; queueing is before `seconds` begin."""
    faults: tuple[str, ...]
    """Names of the errors of tries in which we failed."""


class PolicyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a policy."""

    policy: str
    episodes: int
    masked: int
    mean_reward: float | None
    reward_ci95: float | None
    """Half the width of the interval in which the mean lies with 95 %, as if episodes were independent."""
    accepted: int
    tasks: int
    tasks_solved: int
    """With at least one sample accepted."""
    suspicious: int
    quarantined: int
    mean_turns: float
    mean_tokens: float
    median_seconds: float
    rewards: dict[str, int]
    outcomes: dict[str, int]
    ends: dict[str, int]


class TaskStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How long a task takes."""

    task: str
    episodes: int
    median_seconds: float
    longest_seconds: float
    slowest: int
    """The number of the episode that took longest."""
    mean_reward: float | None
    phases: dict[str, float]


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes that were finished in a part of the run."""

    start_s: float
    rewarded: int
    masked: int


class Flaky(msgspec.Struct, frozen=True, kw_only=True):
    """A task in which samples of one policy differ in their reward."""

    task: str
    policy: str
    mean_reward: float
    spread: float
    samples: tuple[tuple[int, float], ...]
    """Number of the episode and its reward."""


def count(values: Iterable[str]) -> dict[str, int]:
    """Return how often each value is there, most often first."""
    return dict(Counter(values).most_common())


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, None of nothing."""
    return statistics.fmean(values) if values else None


def ci95(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of the mean; None of fewer than two."""
    return 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _grouped(summaries: Iterable[Summary], key: Callable[[Summary], T]) -> dict[T, list[Summary]]:
    groups: dict[T, list[Summary]] = defaultdict(list)
    for summary in summaries:
        groups[key(summary)].append(summary)
    return groups


def rewards_of(summaries: Iterable[Summary]) -> list[float]:
    """Return the rewards of those that have one."""
    return [summary.reward for summary in summaries if summary.reward is not None]


def policy_statistics(summaries: Sequence[Summary], policies: Sequence[str]) -> list[PolicyStatistics]:
    """Return what is told of each policy, in the order in which they were given, others after them."""
    groups = _grouped(summaries, lambda summary: summary.policy)
    names = [*policies, *sorted(groups.keys() - set(policies))]
    return [_policy(name, groups[name]) for name in names if name in groups]


def _policy(name: str, summaries: Sequence[Summary]) -> PolicyStatistics:
    rewards = rewards_of(summaries)
    accepted = [each for each in summaries if each.verdict == Outcome.AC.value and each.reward is not None]
    return PolicyStatistics(
        policy=name,
        episodes=len(summaries),
        masked=len(summaries) - len(rewards),
        mean_reward=mean(rewards),
        reward_ci95=ci95(rewards),
        accepted=len(accepted),
        tasks=len({each.task for each in summaries}),
        tasks_solved=len({each.task for each in accepted}),
        suspicious=sum(each.suspicious is not Suspicion.NONE for each in summaries),
        quarantined=sum(each.quarantine for each in summaries),
        mean_turns=statistics.fmean(each.turns for each in summaries),
        mean_tokens=statistics.fmean(each.tokens for each in summaries),
        median_seconds=statistics.median(each.seconds for each in summaries),
        rewards={label: sum(map(belongs, rewards)) for label, belongs in REWARD_BINS},
        outcomes=count(each.verdict for each in summaries),
        ends=count(each.end.value for each in summaries),
    )


def task_statistics(summaries: Sequence[Summary]) -> list[TaskStatistics]:
    """Return how long each task takes, that with the longest median first."""
    tasks = [_task(task, each) for task, each in _grouped(summaries, lambda summary: summary.task).items()]
    return sorted(tasks, key=lambda task: (-task.median_seconds, task.task))


def _task(task: str, summaries: Sequence[Summary]) -> TaskStatistics:
    slowest = max(summaries, key=lambda summary: summary.seconds)
    return TaskStatistics(
        task=task,
        episodes=len(summaries),
        median_seconds=statistics.median(each.seconds for each in summaries),
        longest_seconds=slowest.seconds,
        slowest=slowest.number,
        mean_reward=mean(rewards_of(summaries)),
        phases={name: statistics.fmean(each.phases[name] for each in summaries) for name in summaries[0].phases},
    )


def throughput(summaries: Sequence[Summary]) -> tuple[int, list[Bin]]:
    """Return the seconds of a bin, and all bins from the first episode that was finished to the last."""
    if not summaries:
        return _BIN_SECONDS[0], []
    first = min(each.finished - each.seconds for each in summaries)
    last = max(each.finished for each in summaries)
    width = next((each for each in _BIN_SECONDS if (last - first) / each < MOST_BINS), None)
    width = width or math.ceil((last - first) / MOST_BINS)
    groups = _grouped(summaries, lambda summary: int((summary.finished - first) // width))
    return width, [_bin(at * width, groups.get(at, [])) for at in range(int((last - first) // width) + 1)]


def _bin(start_s: float, summaries: Sequence[Summary]) -> Bin:
    rewarded = len(rewards_of(summaries))
    return Bin(start_s=start_s, rewarded=rewarded, masked=len(summaries) - rewarded)


def flaky(summaries: Sequence[Summary]) -> list[Flaky]:
    """Return where samples differ, what differs most first."""
    found = []
    for (task, policy), group in _grouped(summaries, lambda summary: (summary.task, summary.policy)).items():
        rewards = rewards_of(group)
        if len(set(rewards)) > 1:
            samples = sorted((each for each in group if each.reward is not None), key=lambda each: each.sample)
            found.append(
                Flaky(
                    task=task,
                    policy=policy,
                    mean_reward=statistics.fmean(rewards),
                    spread=statistics.pstdev(rewards),
                    samples=tuple((each.number, each.reward) for each in samples if each.reward is not None),
                )
            )
    return sorted(found, key=lambda each: (-each.spread, each.task, each.policy))


def suspects(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the episodes that there is evidence against, or that are in quarantine, the worst first."""
    weights = {suspicion: at for at, suspicion in enumerate(Suspicion)}
    found = [each for each in summaries if each.suspicious is not Suspicion.NONE or each.quarantine]
    return sorted(found, key=lambda each: (-weights[each.suspicious], not each.quarantine, each.number))


def summary_of(number: int, episode: Episode) -> Summary:
    """Return an episode in a line."""
    verdict, trajectory = episode.verdict, episode.trajectory
    failures = verdict.observations.failures if verdict is not None else ()
    return Summary(
        number=number,
        episode=episode.key.id,
        task=episode.key.task,
        policy=episode.key.policy,
        sample=episode.key.sample,
        reward=episode.reward,
        verdict=UNJUDGED if verdict is None else verdict.decision.verdict.value,
        end=trajectory.end,
        why="; ".join(text for text in (trajectory.why, *failures) if text),
        suspicious=Suspicion.NONE if verdict is None else verdict.decision.suspicious,
        quarantine=verdict is not None and verdict.reward.quarantine,
        evidence=() if verdict is None else tuple(dict.fromkeys(item.code for item in verdict.decision.evidence)),
        turns=len(trajectory.turns),
        tokens=sum(turn.tokens for turn in trajectory.turns),
        finished=episode.started + episode.seconds,
        seconds=episode.seconds,
        phases={
            "queue": episode.queued_s,
            "open": episode.opened_s,
            "think": sum(turn.think_s for turn in trajectory.turns),
            "act": sum(turn.act_s for turn in trajectory.turns),
            "judge": episode.judged_s,
        },
        faults=tuple(attempt.error for attempt in episode.attempts),
    )
