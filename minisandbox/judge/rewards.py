"""The strict reader of rewards that a script wrote. A driver runs it, so it needs the standard library alone."""

from __future__ import annotations

import json
import math
import re
from typing import Any

REWARD_MAX_BYTES = 4096
_NUMBER = re.compile(rb"\s*\+?([0-9]{1,20}\.?[0-9]{0,40}|\.[0-9]{1,40})\s*")


class BadRewardError(ValueError):
    """A reward that is none."""


def read_rewards(text: bytes | None, document: bytes | None, names: tuple[str, ...]) -> dict[str, float]:
    """Return the rewards of both files, of exactly these names. Raises BadRewardError for anything doubtful."""
    if text is None and document is None:
        raise BadRewardError("no reward was written")
    rewards: dict[str, float] = {}
    if document is not None:
        rewards = _of_json(document)
        if set(rewards) != set(names):
            raise BadRewardError("reward.json has other names than the task")
    if text is not None:
        if len(names) != 1:
            raise BadRewardError("reward.txt has one number, and the task more names")
        value = _of_text(text)
        if rewards.get(names[0], value) != value:
            raise BadRewardError("reward.txt and reward.json differ")
        rewards[names[0]] = value
    return rewards


def _of_text(text: bytes) -> float:
    if not _NUMBER.fullmatch(text):
        raise BadRewardError("reward.txt is no number")
    return _checked(float(text))


def _of_json(document: bytes) -> dict[str, float]:
    try:
        value = json.loads(document.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # also what is no UTF-8
        raise BadRewardError(error.args[0] if isinstance(error, BadRewardError) else "reward.json is no JSON") from None
    if type(value) is not dict or not all(type(number) in (int, float) for number in value.values()):
        raise BadRewardError("reward.json is no object of numbers")
    return {name: _checked(number) for name, number in value.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise BadRewardError("reward.json has a name twice")
    return dict(pairs)


def _refuse(name: str) -> None:
    raise BadRewardError(f"reward.json has {name}")


def _checked(number: float) -> float:
    if not 0 <= number <= 1 or not math.isfinite(number):
        raise BadRewardError("a reward is from 0 to 1")
    return float(number)
