"""Episodes as rows of the tables and back, and the digest that tells whether a row was changed. Pure: no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from minisandbox.errors import RecordError
from minisandbox.judge.spec import canonical
from minisandbox.judge.verdict import Verdict
from minisandbox.rollout.redact import Redactor
from minisandbox.rollout.schema import BYTES, INLINE_BYTES, JSON, PREVIEW_BYTES, WITH_LARGE
from minisandbox.rollout.spec import Action, Attempt, Episode, EpisodeKey, Outcome, Trajectory, Turn
from minisandbox.spec import Usage

T = TypeVar("T")

Row = dict[str, Any]
ReadBlob = Callable[[str], bytes]

MOST_NUMBER = (1 << 63) - 1
"""The largest that a table can hold."""


@dataclass(frozen=True, slots=True)
class Insert:
    """A row for a table. A value that is too large for it is in `large` by its column, for a blob."""

    table: str
    row: Row
    large: Mapping[str, bytes]


def redact_turn(turn: Turn, redactor: Redactor) -> Turn:
    """Return a turn as it is kept."""
    data = redactor.plain(dict(turn.data))
    plain = msgspec.to_builtins(msgspec.structs.replace(turn, data={}), builtin_types=(bytes,))
    return _keep({**redactor.values(plain), "data": data}, Turn)


def redact_episode(episode: Episode, redactor: Redactor) -> Episode:
    """Return an episode as it is kept. Raises RecordError where a pattern matches what nothing can stand in for."""
    turns = tuple(redact_turn(turn, redactor) for turn in episode.trajectory.turns)
    bare = msgspec.structs.replace(episode, trajectory=msgspec.structs.replace(episode.trajectory, turns=()))
    kept = _keep(redactor.values(msgspec.to_builtins(bare, builtin_types=(bytes,))), Episode)
    return msgspec.structs.replace(
        kept, key=episode.key, trajectory=msgspec.structs.replace(kept.trajectory, turns=turns)
    )


def _keep(plain: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(plain, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise RecordError(
            f"a {kind.__name__.lower()} cannot be kept: {error}; does a pattern of secrets match what is none?"
        ) from error


def _read(plain: Any, kind: type[T]) -> T:
    return msgspec.convert(plain, kind, builtin_types=(bytes,))


def episode_digest(episode: Episode) -> str:
    """Return the digest of an episode as it is kept."""
    return hashlib.sha256(canonical(episode)).hexdigest()


def turn_inserts(number: int, turn: Turn) -> Iterator[Insert]:
    """Yield the rows of a turn of episode `number`."""
    action = msgspec.to_builtins(turn.action, builtin_types=(bytes,))
    action["action"] = action.pop("type")
    rest = {name: getattr(turn, name) for name in ("started_s", "think_s", "act_s")}
    place = {"episode": number, "turn": turn.index}
    data = canonical(turn.data) if turn.data else None
    yield _insert("turns", {**place, **action, **rest, "tokens": min(turn.tokens, MOST_NUMBER), "data": data})
    outcome = msgspec.to_builtins(turn.outcome, builtin_types=(bytes,))
    usage = outcome.pop("usage") or {}
    yield _insert("results", {**place, **outcome, **usage})


def episode_inserts(number: int, episode: Episode, session: int, redacted: int) -> Iterator[Insert]:
    """Yield all rows of an episode."""
    for turn in episode.trajectory.turns:
        yield from turn_inserts(number, turn)
    for at, attempt in enumerate(episode.attempts):
        yield _insert("attempts", {"episode": number, "attempt": at, **msgspec.to_builtins(attempt)})
    if episode.verdict is not None:
        yield from _verdict_inserts(number, episode.verdict)
    yield _insert("episodes", _episode_row(number, episode) | {"session": session, "redacted": redacted})


def _episode_row(number: int, episode: Episode) -> Row:
    key, trajectory = episode.key, episode.trajectory
    branched_from, branched_after = trajectory.branched_from or (None, None)
    names = ("seed", "task_digest", "group", "started", "seconds", "queued_s", "opened_s", "judged_s", "judge_episode")
    return {
        "episode": number,
        "task": key.task,
        "policy": key.policy,
        "sample": key.sample,
        "reward": episode.reward,
        "verdict": None if episode.verdict is None else episode.verdict.decision.verdict.value,
        "end": trajectory.end.value,
        "why": trajectory.why,
        "turns": len(trajectory.turns),
        "tokens": min(sum(turn.tokens for turn in trajectory.turns), MOST_NUMBER),
        **{name: getattr(episode, name) for name in names},
        "warm": episode.warm,
        "limits_hit": canonical(trajectory.limits_hit),
        "artifacts": trajectory.artifacts,
        "branched_from": branched_from,
        "branched_after": branched_after,
        "digest": episode_digest(episode),
    }


def _verdict_inserts(number: int, verdict: Verdict) -> Iterator[Insert]:
    decision, reward = verdict.decision, verdict.reward
    row = {
        "episode": number,
        "verdict": decision.verdict.value,
        **{name: getattr(decision, name) for name in ("score", "passed", "failed", "total")},
        "reward": reward.value,
        "mask": reward.mask,
        "quarantine": reward.quarantine,
        "suspicious": decision.suspicious.value,
        "integrity": decision.integrity.value,
        "claimed": decision.claimed.value,
        "penalty": reward.policy,
        "decision_sha256": verdict.decision_sha256,
        "whole": canonical(verdict),
    }
    yield _insert("verdicts", row)
    for item in decision.evidence:
        plain = msgspec.to_builtins(item)
        yield _insert("evidence", {"episode": number, **plain, "paths": canonical(item.paths)})


def _insert(table: str, row: Row) -> Insert:
    large: dict[str, bytes] = {}
    for name, value in row.items():
        if isinstance(value, str | bytes):
            content = value if isinstance(value, bytes) else value.encode()
            is_text = isinstance(value, str) or name not in BYTES
            if len(content) > INLINE_BYTES and table in WITH_LARGE:
                large[name] = content
                row[name] = None if name in JSON else _cell(content[:PREVIEW_BYTES], is_text)
            else:
                row[name] = _cell(content, is_text)
        elif isinstance(value, bool):
            row[name] = int(value)
    return Insert(table, row, large)


def _cell(content: bytes, is_text: bool) -> str | bytes:
    """Return text where it can be shown as such: a text is cut in the middle of a character at most."""
    if is_text:
        return content.decode(errors="ignore")
    try:
        return content if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return content


def whole_row(row: Row, large: Mapping[str, str], read: ReadBlob) -> Row:
    """Return a row with its blobs in it, bytes as bytes again, and without columns that say nothing."""
    whole = {name: value for name, value in row.items() if value is not None}
    for name, sha256 in large.items():
        content = read(sha256)
        whole[name] = content if name in BYTES else content.decode()
    for name in BYTES & whole.keys():
        if isinstance(whole[name], str):
            whole[name] = whole[name].encode()
    return whole


_OF_A_TURN = ("started_s", "think_s", "act_s", "tokens")
_USAGE = frozenset(Usage.__struct_fields__)


def turn_of(row: Row, result: Row) -> Turn:
    """Return the turn of rows that are whole."""
    data = msgspec.json.decode(row["data"]) if "data" in row else {}
    action = {name: value for name, value in row.items() if name not in (*_OF_A_TURN, "episode", "turn", "data")}
    action["type"] = action.pop("action")
    if "executable" in action:
        action["executable"] = bool(action["executable"])
    usage = {name: result[name] for name in _USAGE & result.keys()} if "wall_time_s" in result else None
    if usage is not None:
        usage |= dict.fromkeys(_USAGE - usage.keys())
    outcome = {name: value for name, value in result.items() if name not in (*_USAGE, "episode", "turn")}
    outcome |= {"truncated": bool(result["truncated"]), "usage": usage}
    return Turn(
        index=row["turn"],
        action=msgspec.convert(action, Action, builtin_types=(bytes,)),
        outcome=_read(outcome, Outcome),
        data=data,
        **{name: row[name] for name in _OF_A_TURN},
    )


def episode_of(row: Row, turns: Sequence[Turn], attempts: Sequence[Row], verdict: str | bytes | None) -> Episode:
    """Return the episode of rows that are whole. Raises RecordError where it is not the one that was kept."""
    trajectory = {
        "end": row["end"],
        "why": row["why"],
        "limits_hit": msgspec.json.decode(row["limits_hit"]),
        "artifacts": row["artifacts"],
        "branched_from": None if row["branched_from"] is None else [row["branched_from"], row["branched_after"]],
    }
    names = ("seed", "task_digest", "group", "started", "seconds", "queued_s", "opened_s", "judged_s", "judge_episode")
    plain = [
        {name: attempt[name] for name in ("error", "message", "seconds")} | {"retryable": bool(attempt["retryable"])}
        for attempt in attempts
    ]
    key = EpisodeKey(task=row["task"], policy=row["policy"], sample=row["sample"])
    episode = Episode(
        key=key,
        trajectory=msgspec.structs.replace(_read(trajectory, Trajectory), turns=tuple(turns)),
        verdict=None if verdict is None else msgspec.json.decode(verdict, type=Verdict),
        attempts=tuple(_read(attempt, Attempt) for attempt in plain),
        warm=bool(row["warm"]),
        **{name: row[name] for name in names},
    )
    if episode_digest(episode) != row["digest"]:
        raise RecordError(f"the records of {key.id} are damaged: they have another digest than when they were kept")
    return episode
