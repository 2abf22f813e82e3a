"""Checkers and interactors of a task's own, by both conventions, in sandboxes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.judge.assignment import Assignment, External, Interactive, Program, StdioWork, TestCase
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from tests.judge.submissions import BUDGET, decision, judged, take_in, write_files

TESTLIB = b"import sys\na, b = open(sys.argv[2]).read().split(), open(sys.argv[3]).read().split()\nsys.exit(a != b)\n"
KATTIS = b"import sys\nopen(sys.argv[3] + '/x', 'w')\nsys.exit(42 if sys.stdin.read().split() == ['7'] else 43)\n"
COMPILED = b'#include <stdio.h>\nint main(int n, char **v) { int a; FILE *f = fopen(v[2], "r");\n' b'return fscanf(f, "%d", &a) == 1 && a == 7 ? 0 : 2; }\n'  # fmt: skip  # noqa: E501
GUESS = (
    b"import sys\nsecret = int(open(sys.argv[1]).read())\n"
    b"for line in sys.stdin:\n"
    b"    guess = int(line)\n"
    b"    print('higher' if guess < secret else 'lower' if guess > secret else 'right', flush=True)\n"
    b"    if guess == secret: sys.exit(0)\n"
    b"sys.exit(1)\n"
)
CASES = (TestCase(id="1", input=b"3\n", answer=b"7\n"),)


def work(source: bytes, convention: str = "testlib", language: str = "python", *, talks: bool = False) -> StdioWork:
    """A task with a program of its own."""
    program = Program(source=source, language=language, convention=convention)
    checker = Interactive(program=program) if talks else External(program=program)
    return StdioWork(language="python", source="main.py", cases=CASES, checker=checker)


@pytest.mark.parametrize(
    ("source", "convention", "language"),
    [(TESTLIB, "testlib", "python"), (KATTIS, "kattis", "python"), (COMPILED, "testlib", "c")],
    ids=["testlib", "kattis", "compiled"],
)
async def test_a_checker_decides(judge: Judge, tmp_path: Path, source: bytes, convention: str, language: str) -> None:
    """Right is right and wrong is wrong."""
    task = work(source, convention, language)
    right = await decision(judge, tmp_path / "a", {"main.py": "print(7)"}, task)
    wrong = await decision(judge, tmp_path / "b", {"main.py": "print(8)"}, task)

    assert (Outcome.AC, Outcome.WA) == (right.verdict, wrong.verdict)


@pytest.mark.parametrize(
    "source", [b"raise SystemExit(9)", b"import os; os.kill(os.getpid(), 9)", b"raise SystemExit(42)"]
)
async def test_a_checker_that_fails_is_a_failure_of_ours(judge: Judge, tmp_path: Path, source: bytes) -> None:
    """Neither a pass nor a score of 0."""
    verdict = (await judged(judge, tmp_path / "a", {"main.py": "print(7)"}, work(source))).verdict

    assert (Outcome.IE, None) == (verdict.decision.verdict, verdict.reward.value)
    assert "no answer by the convention" in verdict.observations.failures[0]


SEARCH = (
    "low, high = 0, 9\nwhile True:\n"
    " m = (low + high) // 2\n print(m, flush=True)\n a = input()\n"
    " if a == 'right': break\n low, high = (m + 1, high) if a == 'higher' else (low, m - 1)\n"
)
TALKS = {
    "right": (SEARCH, Outcome.AC),
    "gives up": ("print(9)\n", Outcome.WA),
    "says nothing": ("", Outcome.WA),
    "waits for ever": ("input()\n", Outcome.ILE),
    "talks for ever, and never listens": ("while True: print(9)\n", Outcome.ILE),
    "thinks for ever": ("while True: pass\n", Outcome.TLE),
    "right, and then fails": ("print(3, flush=True)\ninput()\nraise SystemExit(1)\n", Outcome.RTE),
}  # fmt: skip


@pytest.mark.parametrize("name", TALKS)
async def test_an_interactor_decides(judge: Judge, tmp_path: Path, name: str) -> None:
    """Together with how the submission kept to its budget."""
    source, expected = TALKS[name]
    made = await decision(judge, tmp_path / "a", {"main.py": source}, work(GUESS, talks=True))

    assert expected is made.verdict


FRAGILE = b"import os, sys\na = int(open(sys.argv[2]).read())\nif a < 0: os.kill(os.getpid(), 9)\nsys.exit(a != 7)\n"


async def test_an_output_that_breaks_the_checker_is_wrong(judge: Judge, tmp_path: Path) -> None:
    """It breaks at it each time, and not at the answer: to be left out would be better than to be wrong."""
    broken = (await judged(judge, tmp_path / "a", {"main.py": "print(-1)"}, work(FRAGILE))).verdict
    right = (await judged(judge, tmp_path / "b", {"main.py": "print(7)"}, work(FRAGILE))).verdict

    assert (Outcome.WA, 0.0) == (broken.decision.verdict, broken.reward.value)
    assert Outcome.AC is right.decision.verdict


@pytest.mark.parametrize(("certificate", "expected"), [("yes", Outcome.WA), (None, Outcome.IE)])
async def test_who_breaks_an_interactor_that_works_is_wrong(
    judge: Judge, tmp_path: Path, certificate: str | None, expected: Outcome
) -> None:
    """It has talked with the solution, or nobody knows that."""
    task = Assignment(name="test", work=work(GUESS, "kattis", talks=True), budget=BUDGET, certificate=certificate)
    folder = write_files(tmp_path / "a", {"main.py": "print('no number')\nprint(input())"})
    verdict = (await judge.judge(task, await take_in(judge, folder, task))).verdict

    assert expected is verdict.decision.verdict
