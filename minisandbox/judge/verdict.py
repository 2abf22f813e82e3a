"""The verdict: a decision that is hashed, what was observed beside it, the reward, and its place in a ledger.

The decision holds nothing that could differ when the same submission is judged again. This module does no I/O.
"""

from __future__ import annotations

import enum

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.evidence import Evidence, Severity
from minisandbox.judge.spec import CellUsage, Integrity, Outcome, TestRecord, digest_of

SCHEMA = "msb.verdict/1"


class Suspicion(enum.Enum):
    """The strongest evidence that there is against a submission."""

    NONE = "none"
    WEAK = "weak"
    STRONG = "strong"
    PROVEN = "proven"


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of all that a decision depends on."""

    task: str
    tests: str
    environment: str
    artifacts: str
    judge: str
    seed_id: str = ""
    certificate: str | None = None
    trajectory: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided. `score` is None if and only if the verdict is IE, else in [0, 1]."""

    verdict: Outcome
    score: float | None
    passed: int
    failed: int
    total: int
    tests: tuple[TestRecord, ...]
    suspicious: Suspicion
    integrity: Integrity
    claimed: Integrity = Integrity.L5
    """What the task claims that it reaches."""
    integrity_cap_reasons: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    inputs: Inputs
    plan: tuple[str, ...]

    def __post_init__(self) -> None:
        if (self.score is None) != (self.verdict is Outcome.IE):
            raise UsageError("a decision has a score if and only if it is no IE")
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise UsageError("a score is from 0 to 1")


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and differs from time to time."""

    cells: tuple[CellUsage, ...] = ()
    marginal: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    """Why there is no verdict; of all attempts."""
    attempts: int = 1
    host: dict[str, str] = {}


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer learns from. `value` is None where `mask` says to leave the episode out."""

    value: float | None
    mask: bool
    quarantine: bool
    """Whether a person should look at the episode before anything is learned from it."""
    policy: str


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger entry that holds the decision."""

    prev: str
    this: str
    sig: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    decision: Decision
    decision_sha256: str
    observations: Observations
    reward: Reward
    chain: Chain | None = None
    schema: str = SCHEMA


class PenaltyPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a decision becomes a reward. Two that differ must differ in name or version."""

    name: str = "default"
    version: int = 1
    tamper_reward: float = 0.0
    strong_factor: float = 1.0
    """What a score is multiplied by where the evidence is strong and no proof."""
    min_integrity: Integrity = Integrity.L1
    """Below this, nothing is learned: the episode is masked."""
    mask_below_claim: bool = False
    """Whether nothing is learned, either, where the task claims more than the verdict reached."""

    def __post_init__(self) -> None:
        if not -1.0 <= self.tamper_reward <= 0.0 or not 0.0 <= self.strong_factor <= 1.0:
            raise UsageError("tamper_reward is from -1 to 0 and strong_factor from 0 to 1")


def decision_sha256(decision: Decision) -> str:
    """Return what is the same whenever the same decision was made."""
    return digest_of(decision).removeprefix("sha256:")


def reward_of(decision: Decision, policy: PenaltyPolicy) -> Reward:
    """Return the reward of a decision. Masked where we failed, or where the verdict is worth too little."""
    name = f"{policy.name}/{policy.version}"
    quarantine = decision.suspicious in (Suspicion.STRONG, Suspicion.PROVEN)
    wanted = [policy.min_integrity.level, *([decision.claimed.level] if policy.mask_below_claim else [])]
    if decision.score is None or decision.integrity.level < max(wanted):
        return Reward(value=None, mask=True, quarantine=quarantine, policy=name)
    if decision.verdict is Outcome.TAMPER:
        return Reward(value=policy.tamper_reward, mask=False, quarantine=True, policy=name)
    value = decision.score
    if decision.suspicious is Suspicion.STRONG:
        value *= policy.strong_factor
    return Reward(value=value, mask=False, quarantine=quarantine, policy=name)


def suspicion_of(found: tuple[Evidence, ...]) -> Suspicion:
    """Return the strongest of the evidence; what is only information is none."""
    worst = max((item.severity.weight for item in found), default=0)
    return Suspicion.NONE if worst <= Severity.INFO.weight else Suspicion(list(Severity)[worst].value)
