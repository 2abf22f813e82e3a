"""The kind *script*: a script of the task looks at the artifacts in a fresh cell, and writes a reward to a file.

Nothing of the episode is there but what the task declared: no process, no log and no reward that was written before.
When the script has ended, everything else in the cell is killed, and only then the reward is read. What the script
itself runs of a submission can write that file as well, so a verdict is worth no more than L1.
"""

from __future__ import annotations

import errno

from minisandbox.errors import FileTransferError, UsageError
from minisandbox.judge.assignment import Assignment, ScriptWork
from minisandbox.judge.bench import Bench, outcome_of
from minisandbox.judge.driver_program import NONE
from minisandbox.judge.evidence import Code, evidence
from minisandbox.judge.idle import guarding
from minisandbox.judge.integrity import Cap
from minisandbox.judge.rewards import REWARD_MAX_BYTES
from minisandbox.judge.seal import seal
from minisandbox.judge.spec import Cell, CellRecord, Integrity, Manifest, Outcome, Plan, TestRecord
from minisandbox.runtime.sandbox import Sandbox

CEILING = Integrity.L1

MAIN_CELL = "script"
TESTS = "/tests"
REWARDS = "/logs/verifier"
NAMES = ("reward.txt", "reward.json")


def plan(assignment: Assignment, manifest: Manifest, seed: bytes) -> Plan:
    """Return one cell, whose tests are the names of rewards."""
    work = _work(assignment)
    if not work.files or not work.command:
        raise UsageError("a task with a script needs the files of it, and a command")
    return Plan(cells=(Cell(name=MAIN_CELL, tests=work.rewards),))


def caps(assignment: Assignment) -> tuple[Cap, ...]:
    """Return none beyond the ceiling."""
    return ()


async def run_cell(cell: Cell, bench: Bench) -> CellRecord:
    """Run the script, and read what it wrote once nothing else is left."""
    work, budget = _work(bench.assignment), bench.assignment.budget
    async with bench.open_cell(budget) as sandbox:
        await bench.lay_submission(sandbox, bench.manifest, work.root)
        await bench.lay_down(sandbox, work.files, TESTS)
        mode = "0777" if work.user != "root" else "0755"
        await sandbox.run(["mkdir", "-p", "-m", mode, "/logs", REWARDS, work.root], user="root")
        async with guarding(sandbox, budget.idle_s) as guard:
            result = await sandbox.run(list(work.command), cwd=work.root, user=work.user)
        await seal(sandbox)
        written = {name: await _read(sandbox, f"{REWARDS}/{name}") for name in NAMES}
    ended = outcome_of(result, guard)
    marks = await bench.driver.ask(["rewards", work.rewards, *written.values()], len(work.rewards))
    bad = tuple({note for grade, _, note in marks if grade == NONE})
    if bad:
        ended = ended if ended is not Outcome.AC else Outcome.RTE
        tests = tuple(TestRecord(id=name, outcome=ended) for name in work.rewards)
    else:
        worths = zip(work.rewards, marks, strict=True)
        tests = tuple(_test(name, worth, work.pass_at) for name, (_, worth, _) in worths)
    found = (evidence(Code.E25_BAD_REWARD, cell=cell.name, paths=bad),) if bad else ()
    if ended not in (Outcome.AC, Outcome.RTE):  # it was not let finish: nothing that is there is its last word
        tests = tuple(TestRecord(id=name, outcome=ended) for name in work.rewards)
    note = result.stdout[-2000:].decode(errors="replace")
    return CellRecord(cell=cell.name, tests=tests, evidence=found, usage=bench.usage(cell.name, result, note))


async def _read(sandbox: Sandbox, path: str) -> bytes | None:
    """Return a file; None when there is none, and what is no reward when it cannot be one."""
    try:
        return await sandbox.read_file(path, max_bytes=REWARD_MAX_BYTES)
    except FileTransferError as error:
        return None if error.errno == errno.ENOENT else b"?"


def _test(name: str, reward: float, pass_at: float) -> TestRecord:
    if reward >= pass_at:
        return TestRecord(id=name, outcome=Outcome.AC)
    if reward == 0.0:
        return TestRecord(id=name, outcome=Outcome.WA)
    return TestRecord(id=name, outcome=Outcome.PARTIAL, worth=reward)


def _work(assignment: Assignment) -> ScriptWork:
    assert isinstance(assignment.work, ScriptWork)
    return assignment.work
