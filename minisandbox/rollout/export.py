"""Episodes as rows for other programs: JSON lines, or Parquet. One row an episode, its turns in it.

It blocks: call it in a thread where something else runs.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from minisandbox.errors import HostError, RecordError, UsageError
from minisandbox.judge.spec import canonical
from minisandbox.rollout.records import Records
from minisandbox.rollout.schema import BYTES
from minisandbox.rollout.spec import Episode, Turn
from minisandbox.spec import Usage

EXTRA = "pip install minisandbox[parquet]"
GROUP_EPISODES = 200
"""How many episodes of a Parquet file are held in memory at once."""

_ACTION = ("command", "code", "stdin", "path", "content", "executable", "old", "new", "note", "wall_time_s")
_OUTCOME = ("stdout", "stderr", "truncated", "exit_code", "signal", "error")


ROW_NAMES = (
    *("episode", "task", "policy", "sample", "group", "instruction", "reward", "masked", "quarantine", "verdict"),
    *("score", "passed", "total", "suspicious", "integrity", "evidence", "decision_sha256", "end", "why", "limits_hit"),
    *("artifacts", "branched_from", "branched_after", "seed", "task_digest", "judge_episode", "started", "seconds"),
    *("queued_s", "opened_s", "judged_s", "warm", "faults", "turns"),
)
TURN_NAMES = (
    *("turn", "action", *_ACTION, *_OUTCOME, "exit_reason", "usage", "started_s", "think_s", "act_s", "tokens", "data"),
)


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What an export did."""

    episodes: int
    damaged: tuple[str, ...] = ()
    """What is said of episodes whose records are not whole, and which are left out."""


def episode_row(episode: Episode, instruction: str | None) -> dict[str, Any]:
    """Return an episode as plain values, bytes as they are. Every row has the same names."""
    key, trajectory, verdict = episode.key, episode.trajectory, episode.verdict
    decision = None if verdict is None else verdict.decision
    branched = trajectory.branched_from or (None, None)
    times = ("started", "seconds", "queued_s", "opened_s", "judged_s")
    return {
        "episode": key.id,
        "task": key.task,
        "policy": key.policy,
        "sample": key.sample,
        "group": episode.group,
        "instruction": instruction,
        "reward": episode.reward,
        "masked": episode.reward is None,
        "quarantine": verdict is not None and verdict.reward.quarantine,
        "verdict": None if decision is None else decision.verdict.value,
        "score": None if decision is None else decision.score,
        "passed": None if decision is None else decision.passed,
        "total": None if decision is None else decision.total,
        "suspicious": None if decision is None else decision.suspicious.value,
        "integrity": None if decision is None else decision.integrity.value,
        "evidence": [] if decision is None else [item.code for item in decision.evidence],
        "decision_sha256": None if verdict is None else verdict.decision_sha256,
        "end": trajectory.end.value,
        "why": trajectory.why,
        "limits_hit": list(trajectory.limits_hit),
        "artifacts": trajectory.artifacts,
        "branched_from": branched[0],
        "branched_after": branched[1],
        "seed": episode.seed,
        "task_digest": episode.task_digest,
        "judge_episode": episode.judge_episode,
        **{name: getattr(episode, name) for name in times},
        "warm": episode.warm,
        "faults": [attempt.error for attempt in episode.attempts],
        "turns": [_turn_row(turn) for turn in trajectory.turns],
    }


def _turn_row(turn: Turn) -> dict[str, Any]:
    reason, usage = turn.outcome.exit_reason, turn.outcome.usage
    return {
        "turn": turn.index,
        "action": str(turn.action.__struct_config__.tag),
        **{name: getattr(turn.action, name, None) for name in _ACTION},
        **{name: getattr(turn.outcome, name) for name in _OUTCOME},
        "exit_reason": None if reason is None else reason.value,
        "usage": None if usage is None else msgspec.structs.asdict(usage),
        "started_s": turn.started_s,
        "think_s": turn.think_s,
        "act_s": turn.act_s,
        "tokens": turn.tokens,
        "data": canonical(turn.data).decode() if turn.data else None,
    }


def episode_fields(episode: Episode, instruction: str | None) -> dict[str, Any]:
    """Return an episode as JSON has it: bytes are text where they are UTF-8, else null and in base64 beside it."""
    row = episode_row(episode, instruction)
    for turn, fields in zip(episode.trajectory.turns, row["turns"], strict=True):
        for name in BYTES:
            if fields[name] is not None:
                fields |= _text_or_base64(name, fields[name])
        fields["data"] = turn.data
    return row


def _text_or_base64(name: str, content: bytes) -> dict[str, str | None]:
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(content).decode()}


def export_jsonl(records: Records, target: Path | BinaryIO) -> Exported:
    """Write one JSON object a line, into a file or a stream that is open. Raises HostError where it cannot."""
    instructions = records.instructions()

    def write(stream: BinaryIO) -> Exported:
        def put(episode: Episode) -> None:
            stream.write(msgspec.json.encode(episode_fields(episode, instructions.get(episode.key.task))) + b"\n")

        return _each(records, put)

    if not isinstance(target, Path):
        return write(target)
    with _replacing(target) as new, new.open("wb") as stream:
        return write(stream)


def export_parquet(records: Records, target: Path) -> Exported:
    """Write a Parquet file. Raises UsageError where pyarrow is not installed, HostError where it cannot be written."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(f"Parquet needs pyarrow, which is not installed; {EXTRA}") from error
    instructions, rows = records.instructions(), list[dict[str, Any]]()
    schema = _parquet_schema(arrow)

    with _replacing(target) as new, parquet.ParquetWriter(new, schema, compression="zstd") as writer:

        def flush() -> None:
            if rows:
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
                rows.clear()

        def put(episode: Episode) -> None:
            rows.append(episode_row(episode, instructions.get(episode.key.task)))
            if len(rows) == GROUP_EPISODES:
                flush()

        exported = _each(records, put)
        flush()
    return exported


def _each(records: Records, put: Callable[[Episode], object]) -> Exported:
    episodes, damaged = 0, []
    for episode in records.episodes():
        if isinstance(episode, RecordError):
            damaged.append(str(episode))
        else:
            put(episode)
            episodes += 1
    return Exported(episodes=episodes, damaged=tuple(damaged))


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a new file that takes the target's place at the end, and is gone after a failure."""
    new = target.with_name(f"{target.name}.new")
    try:
        yield new
        new.rename(target)
    except OSError as error:
        raise HostError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            new.unlink()


_NUMBERS = frozenset({"reward", "score", "started", "seconds", "queued_s", "opened_s", "judged_s"})
_NUMBERS_OF_TURN = frozenset({"wall_time_s", "cpu_time_s", "started_s", "think_s", "act_s"})
_WHOLE = frozenset({"sample", "passed", "total", "branched_after", "seed", "turn", "tokens", "exit_code", "signal"})
_YES_OR_NO = frozenset({"masked", "quarantine", "warm", "executable", "truncated"})
_LISTS = frozenset({"evidence", "limits_hit", "faults"})


def _parquet_schema(arrow: Any) -> Any:
    """Return the types of the columns, whose names are those of `episode_row`; what is in no set is text."""

    def type_of(name: str) -> Any:
        if name in _NUMBERS | _NUMBERS_OF_TURN:
            return arrow.float64()
        if name in _WHOLE or name in Usage.__struct_fields__:
            return arrow.int64()
        if name in _YES_OR_NO:
            return arrow.bool_()
        if name in BYTES:
            return arrow.binary()
        return arrow.list_(arrow.string()) if name in _LISTS else arrow.string()

    usage = arrow.struct([(name, type_of(name)) for name in Usage.__struct_fields__])
    turn = arrow.struct([(name, usage if name == "usage" else type_of(name)) for name in TURN_NAMES])
    row = [(name, type_of(name)) for name in ROW_NAMES if name != "turns"]
    return arrow.schema([*row, ("turns", arrow.list_(turn))])
