"""What came of the episodes of a run so far, counted by policy. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from minisandbox.rollout.spec import End, Episode

NO_VERDICT = "none"
"""How an episode is counted that has no verdict at all."""


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one policy. `mean_reward` is of those episodes that have a reward."""

    episodes: int
    masked: int
    mean_reward: float | None
    verdicts: dict[str, int]
    ends: dict[str, int]


@dataclass(slots=True)
class _Counts:
    episodes: int = 0
    rewards: list[float] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)


class Tally:
    """Counts episodes as they end."""

    def __init__(self) -> None:
        self._policies: dict[str, _Counts] = {}
        self.retries = self.failed = self.turns = 0

    def add(self, episode: Episode) -> None:
        """Count one."""
        counts = self._policies.setdefault(episode.key.policy, _Counts())
        counts.episodes += 1
        if episode.reward is not None:
            counts.rewards.append(episode.reward)
        counts.verdicts[episode.verdict.decision.verdict.value if episode.verdict else NO_VERDICT] += 1
        counts.ends[episode.trajectory.end.value] += 1
        self.retries += len(episode.attempts)
        self.turns += len(episode.trajectory.turns)
        self.failed += episode.trajectory.end is End.INFRASTRUCTURE

    @property
    def episodes(self) -> int:
        """How many were counted."""
        return sum(counts.episodes for counts in self._policies.values())

    def summaries(self) -> dict[str, PolicySummary]:
        """Return what came of each policy."""
        return dict(self._summarised())

    def _summarised(self) -> Iterator[tuple[str, PolicySummary]]:
        for name, counts in self._policies.items():
            rewards = counts.rewards
            yield (
                name,
                PolicySummary(
                    episodes=counts.episodes,
                    masked=counts.episodes - len(rewards),
                    mean_reward=sum(rewards) / len(rewards) if rewards else None,
                    verdicts=dict(counts.verdicts.most_common()),
                    ends=dict(counts.ends.most_common()),
                ),
            )
