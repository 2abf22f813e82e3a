"""The words of the loop: what a policy sees and does, what bounds an episode, and what is kept of it.

Values only. Bytes are int, times are float seconds; `None` in a budget is no limit. This module does no I/O.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.verdict import Verdict
from minisandbox.spec import ExitReason, Usage


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run", forbid_unknown_fields=True):
    """Run a command by `/bin/sh -c`, where the task is worked on."""

    command: str
    stdin: bytes = b""
    wall_time_s: float | None = None
    """Not more than what the budget allows a turn."""


class Python(msgspec.Struct, frozen=True, kw_only=True, tag="python", forbid_unknown_fields=True):
    """Run Python code, as by `python3 -c`, where the task is worked on: in a warm Python, if the task has one."""

    code: str
    stdin: bytes = b""
    wall_time_s: float | None = None
    """Not more than what the budget allows a turn."""


class Read(msgspec.Struct, frozen=True, kw_only=True, tag="read", forbid_unknown_fields=True):
    """Read a file."""

    path: str


class Write(msgspec.Struct, frozen=True, kw_only=True, tag="write", forbid_unknown_fields=True):
    """Make a file, or write it anew."""

    path: str
    content: bytes
    executable: bool = False


class Edit(msgspec.Struct, frozen=True, kw_only=True, tag="edit", forbid_unknown_fields=True):
    """Put one text for another that is in a file exactly once."""

    path: str
    old: str
    new: str


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit", forbid_unknown_fields=True):
    """Say that the work is done."""

    note: str = ""


Action = Run | Python | Read | Write | Edit | Submit


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an action. `error` is what the policy did wrong, in words for it; the rest is then empty."""

    stdout: bytes = b""
    """Of a command or code, or the content of the file that was read. Bounded by the budget."""
    stderr: bytes = b""
    truncated: bool = False
    exit_reason: ExitReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage | None = None
    error: str | None = None


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a budget; None where it has no limit."""

    turns: int | None = None
    tokens: int | None = None
    wall_time_s: float | None = None


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy sees before it acts: the instruction at every turn, and what came of the action before."""

    episode: str
    turn: int
    """From 0."""
    instruction: str
    directory: str
    """Where the task is worked on, as the sandbox sees it."""
    outcome: Outcome | None = None
    """None at the first turn."""
    left: Left = Left()


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What bounds an episode. Each is a positive number, or None for no limit."""

    turns: int | None = 32
    tokens: int | None = None
    """As the policy counts them (`Step.tokens`)."""
    wall_time_s: float | None = 1800.0
    """Of all turns and the policy's thinking; what lies there then is judged."""
    verdict_s: float | None = 1800.0
    """Of the verdict. Beyond it we failed, and the episode has none."""
    turn_s: float | None = 300.0
    """Of one action in the sandbox."""
    think_s: float | None = 600.0
    """Of one answer of the policy."""
    outcome_bytes: int = 64 << 10
    """How much of each stream an observation holds: the first and the last half of it."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"budget {name} must be greater than 0, not {value!r}; None is no limit")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's answer: an action, what it cost, and what a trainer wants back with the episode."""

    action: Action
    tokens: int = 0
    data: dict[str, Any] = {}
    """Anything that JSON can say, such as the message it was made of or log-probabilities."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn as it is recorded."""

    index: int
    action: Action
    outcome: Outcome
    started_s: float
    """Since the beginning of the episode."""
    think_s: float
    act_s: float
    tokens: int = 0
    data: dict[str, Any] = {}


class End(enum.Enum):
    """Why the turns of an episode ended. All but the last two are judged by what lies in the sandbox then."""

    SUBMITTED = "submitted"
    TURNS = "turns"
    TOKENS = "tokens"
    WALL_TIME = "wall_time"
    POLICY = "policy"
    """The policy raised, took too long for an answer, or said nonsense."""
    CANCELLED = "cancelled"
    INFRASTRUCTURE = "infrastructure"
    """We failed, after all retries. Never a reward."""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """All that happened in an episode before its verdict."""

    turns: tuple[Turn, ...] = ()
    end: End
    why: str = ""
    """In words, where the end is a fault."""
    limits_hit: tuple[str, ...] = ()
    """Exit reasons of commands that a limit ended, and budgets that ran out, in order."""
    artifacts: str | None = None
    """The digest of what was sealed and is judged; None when nothing was."""
    branched_from: tuple[str, int] | None = None
    """The episode that this one was forked from, and after how many turns."""


class EpisodeKey(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What names an episode in a run: the same whenever the run is begun again."""

    task: str
    policy: str
    sample: int

    @property
    def id(self) -> str:
        """The key as one word."""
        return f"{self.task}/{self.policy}/{self.sample}"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A try at an episode in which we failed, and which was begun again."""

    error: str
    """The name of the exception's class."""
    message: str
    retryable: bool
    seconds: float


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One episode as it is recorded, whole."""

    key: EpisodeKey
    seed: int
    task_digest: str
    group: str
    """What episodes are compared within: the task's name, unless a source says otherwise."""
    started: float
    """Unix time."""
    seconds: float
    """From the beginning of the last try to the verdict."""
    queued_s: float
    opened_s: float
    judged_s: float
    trajectory: Trajectory
    verdict: Verdict | None
    """None when nothing was judged; a verdict without a reward has `reward.mask`."""
    attempts: tuple[Attempt, ...] = ()
    warm: bool = False
    """Whether its last try had a warm Python."""
    judge_episode: str | None = None
    """What `minisandbox judge replay` takes."""

    @property
    def reward(self) -> float | None:
        """The reward; None says that the episode is to be left out of training."""
        return None if self.verdict is None or self.verdict.reward.mask else self.verdict.reward.value
