"""Programs that read and write, judged end to end in sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.judge.assignment import StdioWork, TestCase
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from tests.judge.submissions import decision, judged

CASES = tuple(TestCase(id=str(n), input=b"%d\n" % n, answer=b"%d\n" % (2 * n)) for n in (1, -3))
PYTHON = StdioWork(language="python", source="main.py", cases=CASES)
C = StdioWork(language="c", source="main.c", cases=CASES)
RIGHT_C = '#include <stdio.h>\n#include "two.h"\nint main(void) { int n; scanf("%d", &n); printf("%d", TWO * n); }\n'


async def test_a_right_program_is_accepted(judge: Judge, tmp_path: Path) -> None:
    """All tests pass, and judging it again makes the same decision."""
    first = await judged(judge, tmp_path / "a", {"main.py": "print(2 * int(input()))"}, PYTHON)
    made = first.verdict.decision
    replay = await judge.replay(first.episode)

    assert (Outcome.AC, 1.0, 2, 0) == (made.verdict, made.score, made.passed, made.failed)
    assert replay.same
    assert replay.judged.episode != first.episode


PROGRAMS = {
    "wrong": ("print(2)", Outcome.WA),
    "nothing": ("", Outcome.WA),
    "exit code 0 and no answer": ("import sys; sys.exit(0)", Outcome.WA),
    "right answer, exit code 1": ("import sys; print(2 * int(input())); sys.exit(1)", Outcome.RTE),
    "killed by itself": ("import os; os.kill(os.getpid(), 9)", Outcome.RTE),
    "endless": ("while True: pass", Outcome.TLE),
    "asleep": ("import time; time.sleep(99)", Outcome.ILE),
    "too much memory": ("x = b'x' * (1 << 30)", Outcome.MLE),
    "too much output": ("while True: print('x' * 10000)", Outcome.OLE),
    "too many processes": ("import os\nwhile True: os.fork()", Outcome.RTE),
    "lists every answer": ("print(2); print(-6)", Outcome.WA),
    "forged markers": ("print('=== 2 passed in 0.1s ==='); print('PASSED')", Outcome.WA),
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_wrong_program_says_why(judge: Judge, tmp_path: Path, name: str) -> None:
    """Each way to fail has its own name, and none has a score."""
    source, expected = PROGRAMS[name]
    made = await decision(judge, tmp_path / "a", {"main.py": source}, PYTHON)

    assert (expected, 0.0) == (made.verdict, made.score)


async def test_what_must_be_compiled_is(judge: Judge, tmp_path: Path) -> None:
    """In a cell of its own, with the files beside the source."""
    made = await decision(judge, tmp_path / "a", {"main.c": RIGHT_C, "two.h": "#define TWO 2\n"}, C)

    assert (Outcome.AC, ("build", "case:1", "case:-3")) == (made.verdict, made.plan)


@pytest.mark.parametrize("source", ["int main(void) { return", '#include "/dev/zero"\n', "#error no\n"])
async def test_what_does_not_compile_is_told(judge: Judge, tmp_path: Path, source: str) -> None:
    """However it fails, nothing of it is run."""
    made = await decision(judge, tmp_path / "a", {"main.c": source}, C)

    assert (Outcome.CE, 0.0, 0) == (made.verdict, made.score, made.passed)


async def test_a_missing_source_is_no_failure_of_ours(judge: Judge, tmp_path: Path) -> None:
    """An empty submission is a wrong one."""
    made = await decision(judge, tmp_path / "a", {}, PYTHON)

    assert (Outcome.RTE, 0.0) == (made.verdict, made.score)


async def test_a_language_that_is_not_there_is_a_failure_of_ours(judge: Judge, tmp_path: Path) -> None:
    """No score, and the reward is masked, with the reason beside it."""
    work = StdioWork(language="ruby", source="main.rb", cases=CASES)
    if any(Path(folder, "ruby").exists() for folder in ("/usr/bin", "/usr/local/bin", "/bin")):
        pytest.skip("this host has ruby")
    verdict = (await judged(judge, tmp_path / "a", {"main.rb": "puts 2"}, work)).verdict

    assert (Outcome.IE, None, True) == (verdict.decision.verdict, verdict.decision.score, verdict.reward.mask)
    assert any("CommandNotFoundError" in failure for failure in verdict.observations.failures)
