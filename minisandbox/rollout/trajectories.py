"""Trajectories as a page shows them: texts made visible and cut, packed in chunks that are unpacked when one is opened.

Pure: no I/O.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec

from minisandbox.judge.spec import Outcome as Verdicts
from minisandbox.judge.verdict import Verdict
from minisandbox.rollout.shown import visible, visible_content
from minisandbox.rollout.spec import Edit, Episode, Python, Read, Run, Submit, Turn, Write

MOST_TEXT_BYTES = 48 << 20
"""About how much text of all episodes is in a page before it is packed."""
MOST_EACH, LEAST_EACH = 16 << 10, 512
"""Characters of one text, as there are few or many of them."""
CHUNK_EPISODES = 40
MOST_TESTS = 50


def characters_each(turns: int) -> int:
    """Return how many characters of each text are shown when there are so many turns, each with about two."""
    return max(LEAST_EACH, min(MOST_EACH, MOST_TEXT_BYTES // max(1, 2 * turns)))


def action_fields(turn: Turn, most: int | None) -> dict[str, Any]:
    """Return an action as a title and a body of text."""
    action = turn.action
    match action:
        case Run() | Python():
            title, body = ("run", action.command) if isinstance(action, Run) else ("python", action.code)
            if action.stdin:
                return {
                    "kind": title,
                    "body": visible_content(body, most),
                    "stdin": visible_content(action.stdin, most),
                }
        case Read():
            return {"kind": "read", "path": visible(action.path)}
        case Write():
            title = "write, executable" if action.executable else "write"
            return {"kind": title, "path": visible(action.path), "body": visible_content(action.content, most)}
        case Edit():
            old, new = visible_content(action.old, most), visible_content(action.new, most)
            return {"kind": "edit", "path": visible(action.path), "old": old, "new": new}
        case Submit():
            title, body = "submit", action.note
    return {"kind": title, "body": visible_content(body, most)}


def turn_fields(turn: Turn, most: int | None) -> dict[str, Any]:
    """Return a turn as it is shown."""
    outcome = turn.outcome
    fields: dict[str, Any] = {
        "turn": turn.index,
        "action": action_fields(turn, most),
        "started_s": turn.started_s,
        "think_s": turn.think_s,
        "act_s": turn.act_s,
        "tokens": turn.tokens,
        "stdout": visible_content(outcome.stdout, most),
        "stderr": visible_content(outcome.stderr, most),
        "truncated": outcome.truncated,
        "error": None if outcome.error is None else visible_content(outcome.error, most),
        "exit_reason": outcome.exit_reason.value if outcome.exit_reason else None,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
    }
    if turn.data:
        data = msgspec.json.format(msgspec.json.encode(turn.data)).decode()
        fields["data"] = visible_content(data, most)
    return {name: value for name, value in fields.items() if value is not None and value is not False and value != ""}


def _verdict_fields(verdict: Verdict) -> dict[str, Any]:
    decision = verdict.decision
    failed = [test for test in decision.tests if test.outcome is not Verdicts.AC]
    return {
        "passed": decision.passed,
        "total": decision.total,
        "score": decision.score,
        "integrity": decision.integrity.value,
        "capped": [visible(reason) for reason in decision.integrity_cap_reasons],
        "suspicious": decision.suspicious.value,
        "penalty": visible(verdict.reward.policy),
        "decision": verdict.decision_sha256,
        "failed": [[visible(test.id), test.outcome.value] for test in failed[:MOST_TESTS]],
        "failed_more": max(0, len(failed) - MOST_TESTS),
        "evidence": [
            [item.code, item.severity.value, visible(item.cell), [visible(path) for path in item.paths]]
            for item in decision.evidence
        ],
        "failures": [visible(text) for text in verdict.observations.failures],
    }


def trajectory_fields(episode: Episode, most: int | None) -> dict[str, Any]:
    """Return an episode as it is shown, texts cut to `most` characters. What a table of episodes has is not in it."""
    trajectory = episode.trajectory
    return {
        "turns": [turn_fields(turn, most) for turn in trajectory.turns],
        "why": visible_content(trajectory.why, most),
        "limits": [visible(word) for word in trajectory.limits_hit],
        "artifacts": trajectory.artifacts,
        "branched": None
        if trajectory.branched_from is None
        else [visible(str(each)) for each in trajectory.branched_from],
        "started": episode.started,
        "phases": [episode.queued_s, episode.opened_s, episode.judged_s],
        "seed": str(episode.seed),
        "judge_episode": None if episode.judge_episode is None else visible(episode.judge_episode),
        "attempts": [
            [visible(each.error), visible_content(each.message, most), each.seconds] for each in episode.attempts
        ],
        "verdict": None if episode.verdict is None else _verdict_fields(episode.verdict),
    }


def pack(fields: list[dict[str, Any]]) -> str:
    """Return trajectories as text that is safe in any page: base64 of what zlib makes of their JSON."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(fields), 6)).decode()


class Chunks:
    """Packs trajectories as they come, `CHUNK_EPISODES` together: that of episode n is in chunk n // CHUNK_EPISODES."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[dict[str, Any]] = []
        self._packed: list[str] = []

    def add(self, episode: Episode) -> None:
        """Add the next episode."""
        self._waiting.append(trajectory_fields(episode, self._most))
        if len(self._waiting) == CHUNK_EPISODES:
            self._flush()

    def packed(self) -> list[str]:
        """Return all chunks."""
        if self._waiting:
            self._flush()
        return self._packed

    def _flush(self) -> None:
        self._packed.append(pack(self._waiting))
        self._waiting = []
