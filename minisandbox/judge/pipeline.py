"""PLAN, RUN, DECIDE and RECORD: from a task and a manifest to a verdict, every step in the ledger before it is taken.

It never reads what a submission wrote; cells do, and the ingest process did. A cell in which we failed is tried again,
and what then still fails is an IE. Judging an episode again makes a new one, whose decision must be the same.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import trio

from minisandbox.errors import SandboxError, leaves_of
from minisandbox.images.rootfs import Rootfs
from minisandbox.judge.assignment import Assignment, Declared
from minisandbox.judge.bench import Bench, open_bench
from minisandbox.judge.build import judge_version
from minisandbox.judge.decide import Judgement, decide, passes_so_far
from minisandbox.judge.ingest import Feed, ingest
from minisandbox.judge.integrity import UNCERTIFIED, Cap
from minisandbox.judge.kind import Kind, kind_of
from minisandbox.judge.layout import fitting
from minisandbox.judge.ledger import Ledger
from minisandbox.judge.remarks import remarked
from minisandbox.judge.spec import AFTER_PASS, Cell, CellRecord, Manifest, Outcome, Plan, Role, digest_of
from minisandbox.judge.store import Store
from minisandbox.judge.verdict import (
    Chain,
    Decision,
    Inputs,
    Observations,
    PenaltyPolicy,
    Verdict,
    decision_sha256,
    reward_of,
)
from minisandbox.judge.warm import Warm
from minisandbox.runtime.supervisor import Supervisor

ATTEMPTS = 3
"""How often a cell is run in which we failed."""


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """The first entry of a ledger: all that is needed to judge the episode again."""

    assignment: str
    """The blob of the task."""
    manifest: str
    penalty: str
    inputs: Inputs
    caps: tuple[Cap, ...] = ()
    """What lowered its integrity by how the judge was started; the same when it is judged again."""
    replay_of: str | None = None


@dataclass(slots=True, kw_only=True)
class Judge:
    """Judges with a supervisor and a store. Its caller opened both, and closes them."""

    supervisor: Supervisor
    store: Store
    penalty: PenaltyPolicy = field(default_factory=PenaltyPolicy)
    caps: tuple[Cap, ...] = ()
    """What lowers the integrity of all its verdicts: how it was started."""
    warm: Warm | None = None
    """What is kept warm for its cells, by whoever opened it."""
    at_once: int = 2
    """How many cells are run at once; no more than there are processors for them."""

    async def judge(self, assignment: Assignment, manifest: Manifest, *, replay_of: str | None = None) -> Judged:
        """Judge a submission and return the verdict and its episode. Cancelled: the ledger says what was begun."""
        manifest = remarked(fitting(manifest, assignment.budget), assignment)
        rootfs = await self.supervisor.find_rootfs(assignment.environment.rootfs)
        seed = self.store.signer.seed(assignment.digest, manifest.digest)
        inputs = _inputs(assignment, manifest, rootfs, seed)
        episode = self.store.new_episode()
        begin = Begin(
            assignment=self.store.put_value(assignment),
            manifest=self.store.put_value(manifest),
            penalty=self.store.put_value(self.penalty),
            inputs=inputs,
            caps=self.caps,
            replay_of=replay_of,
        )
        with self.store.begin_ledger(episode) as ledger:
            ledger.append("begin", begin)
            kind = kind_of(assignment)
            plan = kind.plan(assignment, manifest, seed)
            ledger.append("plan", plan)
            wanted = assignment.environment.digest
            if manifest.rejected:
                records = []
            elif wanted in (None, inputs.environment):
                async with open_bench(self.supervisor, self.store, assignment, manifest, seed, self.warm) as bench:
                    records = await _Run(kind, plan, bench, ledger, self.at_once).run()
            else:
                why = f"the rootfs is {inputs.environment}, not {wanted}"
                records = [CellRecord(cell=cell.name, failure=why) for cell in plan.cells]
            verdict = await self._conclude(assignment, manifest, plan, records, inputs, kind, ledger)
        self.store.save_verdict(episode, verdict)
        return Judged(episode=episode, verdict=verdict)

    async def _conclude(
        self,
        assignment: Assignment,
        manifest: Manifest,
        plan: Plan,
        records: Sequence[CellRecord],
        inputs: Inputs,
        kind: Kind,
        ledger: Ledger,
    ) -> Verdict:
        caps = (*self.caps, *kind.caps(assignment), *(() if assignment.certificate else (UNCERTIFIED,)))
        judgement = Judgement(
            plan=plan,
            manifest=manifest,
            inputs=inputs,
            ceiling=kind.CEILING,
            caps=caps,
            claimed=assignment.integrity,
            scoring=assignment.scoring,
            visible=assignment.visible,
        )
        decision = decide(judgement, records)
        reward = reward_of(decision, self.penalty)
        entry = await trio.to_thread.run_sync(  # a disk may take its time, and others are judged meanwhile
            partial(ledger.append, "decision", {"decision": decision, "reward": reward}, durable=True)
        )
        return Verdict(
            decision=decision,
            decision_sha256=decision_sha256(decision),
            observations=_observe(records),
            reward=reward,
            chain=Chain(prev=entry.prev, this=entry.this, sig=entry.sig),
        )

    async def take_in(self, declared: Declared, feed: Feed) -> Manifest:
        """INGEST: return the manifest of a submission, whose blobs are in the store. Raises SandboxError."""
        return await ingest(self.supervisor, self.store, declared, feed, self.warm)

    async def replay(self, episode: str) -> Replay:
        """Judge an episode again, by what its ledger says, and return both decisions."""
        begin = msgspec.convert(self.store.read_entry(episode, "begin"), Begin)
        before = msgspec.convert(self.store.read_entry(episode, "decision")["decision"], Decision)
        assignment = self.store.get_value(begin.assignment, Assignment)
        manifest = self.store.get_value(begin.manifest, Manifest)
        judged = await replace(self, caps=begin.caps).judge(assignment, manifest, replay_of=episode)
        return Replay(before=before, judged=judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict, and the episode whose ledger says how it came about."""

    episode: str
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A decision and what came of making it again."""

    before: Decision
    judged: Judged

    @property
    def same(self) -> bool:
        """Whether it is the same, to the byte."""
        return decision_sha256(self.before) == self.judged.verdict.decision_sha256


class _Run:
    """RUN: the cells of one plan."""

    def __init__(self, kind: Kind, plan: Plan, bench: Bench, ledger: Ledger, at_once: int) -> None:
        self._kind, self._plan, self._bench, self._ledger = kind, plan, bench, ledger
        self._room = trio.CapacityLimiter(at_once)
        self._records: list[CellRecord] = []

    async def run(self) -> list[CellRecord]:
        """Run the build, then what counts, then what doubts a pass."""
        await self._run_all(frozenset({Role.BUILD}))
        if all(test.outcome is Outcome.AC for record in self._records for test in record.tests):
            await self._run_all(frozenset({Role.MAIN}))
        if passes_so_far(self._plan, self._records):
            await self._run_all(AFTER_PASS)
        return self._records

    async def _run_all(self, roles: frozenset[Role]) -> None:
        async with trio.open_nursery() as nursery:
            for cell in self._plan.cells:
                if cell.role in roles:
                    nursery.start_soon(self._run_cell, cell)

    async def _run_cell(self, cell: Cell) -> None:
        async with self._room:
            for attempt in range(ATTEMPTS):
                self._ledger.append("intent", {"cell": cell.name, "attempt": attempt})
                record = await self._try_cell(cell)
                self._ledger.append("record", record)
                if record.failure is None:
                    break
        self._records.append(record)

    async def _try_cell(self, cell: Cell) -> CellRecord:
        record: CellRecord | None = None
        failures: list[str] = []
        try:
            record = await self._kind.run_cell(cell, self._bench)
        except* SandboxError as group:
            failures = [f"{type(error).__name__}: {error}" for error in leaves_of(group)]
        return record or CellRecord(cell=cell.name, failure="; ".join(failures))


def _inputs(assignment: Assignment, manifest: Manifest, rootfs: Rootfs, seed: bytes) -> Inputs:
    return Inputs(
        task=assignment.digest,
        tests=assignment.tests_digest,
        environment=rootfs.digest,
        artifacts=manifest.digest,
        judge=judge_version(),
        seed_id=digest_of(seed.hex())[:23],
        certificate=assignment.certificate,
    )


def _observe(records: Sequence[CellRecord]) -> Observations:
    cells = sorted((record.usage for record in records if record.usage), key=lambda usage: usage.name)
    return Observations(
        cells=tuple(cells),
        marginal=tuple(usage.name for usage in cells if usage.marginal),
        failures=tuple(f"{record.cell}: {record.failure}" for record in records if record.failure),
        host={"kernel": platform.release(), "machine": platform.machine()},
    )
