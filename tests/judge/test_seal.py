"""What is seen at the seal, and what a claim of a task costs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from minisandbox.judge.assignment import Assignment, Declared, Interactive, Program, StdioWork, TestCase
from minisandbox.judge.decide import Judgement, decide
from minisandbox.judge.ingest import ingest
from minisandbox.judge.integrity import OVER_CLAIM, UNCERTIFIED
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.seal import feed_sandbox, seal
from minisandbox.judge.spec import Cell, CellRecord, Integrity, Manifest, Outcome, Plan, TestRecord
from minisandbox.judge.verdict import Inputs, PenaltyPolicy, reward_of
from tests.judge.submissions import BUDGET, DEADLINE_S, decision, take_in, write_files


@pytest.mark.parametrize("background", [False, True])
async def test_what_runs_at_the_seal_is_evidence(judge: Judge, background: bool) -> None:
    """And nothing more: an honest server is none the worse for it."""
    declared = Declared(root="/srv", paths=("main.py", "lib"))
    with trio.fail_after(DEADLINE_S):
        async with judge.supervisor.open_sandbox() as sandbox:
            await sandbox.write_file("/srv/main.py", b"print(1)")
            if background:
                await sandbox.run("sleep 1000 > /dev/null 2>&1 &")
            alive = await seal(sandbox)
            feed = feed_sandbox(sandbox, declared, alive=alive)
            manifest = await ingest(judge.supervisor, judge.store, declared, feed)
    found = {item.code[:3] for item in manifest.evidence}

    assert background == alive
    assert {"E24", *(["E15"] if background else [])} == found
    assert (["main.py"], False) == ([file.path for file in manifest.files], manifest.rejected)


async def test_what_was_declared_and_is_not_there_is_named(judge: Judge, tmp_path: Path) -> None:
    """Of a directory of the host, too."""
    work = StdioWork(language="python", source="main.py", cases=(TestCase(id="1", input=b""),))
    task = Assignment(name="t", work=work, declared=Declared(paths=("main.py", "lib", "etc/x")))
    manifest = await take_in(judge, write_files(tmp_path / "a", {"main.py": "", "etc/y": ""}), task)

    assert [("E24_MISSING_ARTIFACT", ("etc/x", "lib"))] == [(item.code, item.paths) for item in manifest.evidence]


def judgement(claimed: Integrity) -> Judgement:
    """One test, in a cell that could be worth L4."""
    return Judgement(
        plan=Plan(cells=(Cell(name="c", tests=("t",)),)),
        manifest=Manifest(),
        inputs=Inputs(task="", tests="", environment="", artifacts="", judge=""),
        ceiling=Integrity.L4,
        claimed=claimed,
    )


RECORD = CellRecord(cell="c", tests=(TestRecord(id="t", outcome=Outcome.AC),))


def test_a_verdict_is_worth_no_more_than_the_task_claims() -> None:
    """And says so."""
    made = decide(judgement(Integrity.L2), [RECORD])

    assert (Integrity.L2, (OVER_CLAIM,)) == (made.integrity, made.integrity_cap_reasons)
    assert Integrity.L4 is decide(judgement(Integrity.L5), [RECORD]).integrity


def test_what_is_worth_less_than_is_claimed_can_be_masked() -> None:
    """By the policy, and not without it."""
    strict = PenaltyPolicy(name="strict", mask_below_claim=True)
    short = decide(msgspec.structs.replace(judgement(Integrity.L4), caps=(UNCERTIFIED,)), [RECORD])
    reached = decide(judgement(Integrity.L4), [RECORD])

    assert (True, False) == (reward_of(short, strict).mask, reward_of(reached, strict).mask)
    assert not reward_of(short, PenaltyPolicy()).mask


INTERACTOR = """
import sys
print(1, flush=True)
sys.exit(0 if sys.stdin.readline() == "2\\n" else 1)
"""
AFTER = {
    "ends well": ("pass", Outcome.WA),
    "fails": ("raise SystemExit(3)", Outcome.WA),
    "computes": ("import time\nwhile time.process_time() < 1.2: pass", Outcome.WA),
    "computes for ever": ("while True: pass", Outcome.TLE),
    "asks for more": ("input()", Outcome.WA),
    "waits": ("import time; time.sleep(1000)", Outcome.ILE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AFTER)
async def test_what_a_refused_submission_does_next_has_its_time(judge: Judge, tmp_path: Path, name: str) -> None:
    """The interactor is gone long before; the outcome is what the submission comes to by itself."""
    program = Program(source=INTERACTOR.encode(), language="python")
    work = StdioWork(
        language="python",
        source="main.py",
        cases=(TestCase(id="1", input=b""),),
        checker=Interactive(program=program),
    )
    code, expected = AFTER[name]
    made = await decision(judge, tmp_path / "a", {"main.py": f"input(); print(5, flush=True)\n{code}\n"}, work)

    assert expected is made.verdict
    assert BUDGET.cpu_time_s > 1.2
