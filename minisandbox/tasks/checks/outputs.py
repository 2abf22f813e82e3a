"""Checks of the checker and of the answers: T18, T19."""

from __future__ import annotations

from minisandbox.errors import UsageError
from minisandbox.judge.assignment import External, FunctionWork, Interactive, StdioWork, TestCase
from minisandbox.judge.bench import open_bench
from minisandbox.judge.checkers import Exact, accepts
from minisandbox.judge.external import check
from minisandbox.judge.spec import Manifest, Outcome
from minisandbox.tasks.certificate import Status
from minisandbox.tasks.checks.case import Case, Report, report, skipped

CASES_TRIED = 3
"""Of a checker of the task's own, which is run for each output."""

_UNICODE_DIGITS = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")


def wrong_outputs(answer: bytes) -> dict[str, bytes]:
    """Return outputs that are not the answer, whatever that is, by what is wrong with them."""
    words = answer.split()
    outputs = {
        "nothing": b"",
        "NaN": b"nan\n" * max(len(words), 1),
        "infinity": b"inf\n" * max(len(words), 1),
        "a number beyond floats": b"1e400\n" * max(len(words), 1),
        "many digits": b"9" * 5000 + b"\n",
        "minus zero": b"-0\n" * max(len(words), 1),
        "the answer twice": answer + b"\n" + answer,
        "the answer and more": answer + b"\ntrailing text\n",
        "all but the last word": b" ".join(words[:-1]) + b"\n",
        "digits of another script": answer.decode(errors="replace").translate(_UNICODE_DIGITS).encode(),
        "a word in its middle": b" ".join([*words[: len(words) // 2], b"x", *words[len(words) // 2 :]]),
    }
    return {name: output for name, output in outputs.items() if output.split() != words}


async def checker_is_sharp(case: Case) -> Report:
    """T18: too lax, where it takes what is not the answer; too strict, where it refuses the answer itself."""
    work = case.task.assignment.work
    if isinstance(work, FunctionWork):
        return skipped("there is no checker: answers are compared by value and type")
    if not isinstance(work, StdioWork):
        return skipped("this kind compares no output")
    if isinstance(work.checker, Interactive):
        return skipped("an interactor talks with the submission, and has no output to compare")
    bad = []
    for test in work.cases if not isinstance(work.checker, External) else work.cases[:CASES_TRIED]:
        for name, output in wrong_outputs(test.answer).items():
            if await _accepts(case, work, test, output):
                bad.append(f"{test.id}: {name} is accepted")
        right = {"the answer": test.answer}
        if not isinstance(work.checker, Exact):
            right["the answer without its line end"] = test.answer.rstrip(b"\n")
        for name, output in right.items():
            if not await _accepts(case, work, test, output):
                bad.append(f"{test.id}: {name} is refused")
    return report(bad, [f"{len(wrong_outputs(b'1 2'))} kinds of wrong outputs are refused"])


async def _accepts(case: Case, work: StdioWork, test: TestCase, output: bytes) -> bool:
    if isinstance(work.checker, Interactive):
        raise UsageError("an interactor has no output to compare")
    if not isinstance(work.checker, External):
        return accepts(work.checker, output, test.answer)
    judge = case.workshop.judge
    async with open_bench(judge.supervisor, judge.store, case.task.assignment, Manifest(), b"") as bench:
        return await check(work.checker.program, test, output, bench) is Outcome.AC


async def answers_differ(case: Case) -> Report:
    """T19: a test whose answer is empty says little, and several with one answer are passed by a constant."""
    work = case.task.assignment.work
    if isinstance(work, FunctionWork):
        answers = [call.expected if call.raises is None else call.raises.encode() for call in work.calls]
    elif isinstance(work, StdioWork) and not isinstance(work.checker, External | Interactive):
        answers = [test.answer for test in work.cases]
        if not any(answer.strip() for answer in answers):
            return Report(Status.FAILED, ("every answer is empty",))
    else:
        return skipped("this kind has no answers to compare")
    if len(answers) == 1:
        return Report(Status.WARNED, ("there is one test alone: its answer can be written down",))
    same = [f"all {len(answers)} tests have one answer: a constant passes"] if len(set(answers)) == 1 else []
    return report(same, [f"{len(set(answers))} answers in {len(answers)} tests"])
