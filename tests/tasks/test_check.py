"""Faults that are planted in tasks are found by the check that is for them, and a right task has none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.judge.assignment import Call, Environment, External, FunctionWork, Program, StdioWork, call
from minisandbox.judge.checkers import Floats
from minisandbox.judge.spec import Integrity
from minisandbox.tasks.certificate import Finding, Status
from minisandbox.tasks.check import CHECKS, check_task
from minisandbox.tasks.task import File, Files, Task
from tests.tasks.conftest import Look
from tests.tasks.samples import DEADLINE_S, files, function_task, program_task, write

UPPER = {"one": (b"a b\n", b"A B\n"), "two": (b"xyz\n", b"XYZ\n")}


def with_work(task: Task, work: FunctionWork | StdioWork) -> Task:
    """Return the task with other tests."""
    return msgspec.structs.replace(task, assignment=msgspec.structs.replace(task.assignment, work=work))


def with_calls(task: Task, *calls: Call) -> Task:
    """Return the task with other calls."""
    return with_work(task, FunctionWork(module="solution", calls=calls))


@pytest.mark.slow
async def test_a_right_task_is_certified(supervisor: minisandbox.Supervisor) -> None:
    """Each check is made once, none fails, and the certificate is for this task and this environment."""
    task = function_task()
    seen: list[Finding] = []
    with trio.fail_after(DEADLINE_S):
        certificate = await check_task(task, supervisor, runs=3, tell=seen.append)

    assert [check.id for check in CHECKS] == [finding.id for finding in seen]
    assert [] == [finding for finding in seen if finding.status in (Status.FAILED, Status.WARNED)]
    assert (True, Integrity.L4) == (certificate.certified, certificate.integrity)
    assert certificate.objection(task.digest, certificate.rootfs) is None


@pytest.mark.slow
async def test_a_right_program_is_certified(supervisor: minisandbox.Supervisor) -> None:
    """The same for a program that reads and writes."""
    with trio.fail_after(DEADLINE_S):
        certificate = await check_task(program_task(UPPER), supervisor, runs=3)

    assert [] == [finding for finding in certificate.findings if finding.status is Status.FAILED]
    assert certificate.certified


@pytest.mark.slow
async def test_a_solution_that_fails_one_time_in_ten_is_found(look: Look) -> None:
    """Of 80 judgements of it none fails with a chance of 2 in 10,000."""
    flaky = "import random\ndef double(x):\n    return x + x if random.random() > 0.1 else None\n"
    seen = await look(function_task(flaky), "T01", runs=80)

    assert Status.FAILED is seen.status
    assert seen.evidence[0].startswith("passed ")


async def test_a_task_that_nothing_passes_is_found(look: Look) -> None:
    """Doing nothing must fail, and for a reason that is not ours."""
    task = program_task({"one": (b"", b"\n"), "two": (b"", b"")}, files=files(main_dot_sh="true\n"))

    assert Status.FAILED is (await look(task, "T02")).status
    assert Status.FAILED is (await look(task, "T02", "T03")).status
    assert Status.PASSED is (await look(program_task(UPPER), "T02")).status


async def test_a_vacuous_test_is_found(look: Look) -> None:
    """One that a stub passes: the function only ever has to return None."""
    task = with_calls(function_task("def log(x):\n    return None\n"), call("a", "log", 1), call("b", "log", 2))
    seen = await look(task, "T04")

    assert Status.FAILED is seen.status
    assert any("returns None" in text for text in seen.evidence)


async def test_answers_that_are_all_one_are_found(look: Look) -> None:
    """A constant passes them."""
    task = with_calls(function_task(), call("a", "double", 1, expected=2), call("b", "double", 1.0, expected=2))

    assert Status.FAILED is (await look(task, "T19")).status
    assert Status.FAILED is (await look(program_task({"a": (b"1", b""), "b": (b"2", b"\n")}), "T19")).status
    assert Status.PASSED is (await look(function_task(), "T19")).status


LAX = "import sys\nsys.exit(0)\n"
STRICT = "import sys\nsys.exit(0 if open(sys.argv[2], 'rb').read() == open(sys.argv[3], 'rb').read() else 1)\n"


@pytest.mark.parametrize(("source", "said"), [(LAX, "is accepted"), (STRICT, "without its line end is refused")])
async def test_a_checker_that_is_lax_or_strict_is_found(look: Look, source: str, said: str) -> None:
    """One accepts everything, the other refuses an answer without its line end."""
    task = program_task({"one": UPPER["one"]})
    assert isinstance(task.assignment.work, StdioWork)
    checker = External(program=Program(source=source.encode(), language="python"))
    seen = await look(with_work(task, msgspec.structs.replace(task.assignment.work, checker=checker)), "T18")

    assert Status.FAILED is seen.status
    assert any(said in text for text in seen.evidence)


async def test_an_over_strict_test_is_found(look: Look) -> None:
    """A submission that is as right is refused: here it prints no last digit that nobody asked for."""
    task = program_task(
        {"one": (b"", b"0.5000\n")}, "echo 0.5000\n", accepted={"short": files(main_dot_sh="echo 0.5\n")}
    )
    assert isinstance(task.assignment.work, StdioWork)
    better = with_work(task, msgspec.structs.replace(task.assignment.work, checker=Floats()))

    assert Status.FAILED is (await look(task, "T09")).status
    assert Status.PASSED is (await look(better, "T09")).status


async def test_tests_that_no_mutant_fails_are_found(look: Look) -> None:
    """They call the function with what every mutant returns the same for."""
    source = "def f(a, b):\n    if a > 5 and b < 3:\n        return a * 2 + b\n    return 'no'\n"
    weak = with_calls(function_task(source), call("a", "f", 1, 9, expected="no"))
    strong = with_calls(
        function_task(source),
        *(call("a", "f", 6, 2, expected=14), call("b", "f", 5, 2, expected="no"), call("c", "f", 6, 3, expected="no")),
    )

    assert Status.FAILED is (await look(weak, "T08")).status
    assert Status.PASSED is (await look(strong, "T08")).status


@pytest.mark.parametrize(
    "source",
    [
        "import os\ndef double(x):\n    return x + x if os.environ.get('TZ') == 'UTC' else None\n",
        "def double(x):\n    return x + x if hash('a') == {} else None\n",
        "import os\ndef double(x):\n    return x + x if os.environ['HOME'] == '/nonexistent' else None\n",
    ],
    ids=["time zone", "hash seed", "home"],
)
async def test_a_solution_that_depends_on_the_machine_is_found(look: Look, source: str) -> None:
    """What holds for the pins of the judge alone is no property of the solution."""
    import subprocess
    import sys

    asked = [sys.executable, "-c", "print(hash('a'))"]
    pinned = subprocess.run(asked, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True).stdout
    task = function_task(source.format(pinned.strip()))

    assert Status.FAILED is (await look(task, "T11")).status


async def test_tests_that_need_each_other_are_found(look: Look) -> None:
    """The second call passes only after the first."""
    source = "seen = []\ndef push(x):\n    seen.append(x)\n    return len(seen)\n"
    task = with_calls(function_task(source), call("a", "push", 1, expected=1), call("b", "push", 1, expected=2))
    seen = await look(task, "T01", "T12")

    assert (Status.WARNED, ("b: WA alone, AC with the others",)) == (seen.status, seen.evidence)


async def test_a_budget_that_is_tight_is_found(look: Look) -> None:
    """The solution needs more than half of its CPU time."""
    slow = "import time\ndef double(x):\n    while time.process_time() < 0.5: pass\n    return x + x\n"
    task = function_task(slow)
    budget = msgspec.structs.replace(task.assignment.budget, cpu_time_s=0.9)
    tight = msgspec.structs.replace(task, assignment=msgspec.structs.replace(task.assignment, budget=budget))

    assert Status.FAILED is (await look(tight, "T01", "T13")).status


async def test_a_solution_that_lies_there_is_found(look: Look) -> None:
    """In a file of the environment, and an answer in another."""
    task = function_task()
    leaky = msgspec.structs.replace(task, files={"old/notes.txt": task.solution["solution.py"]})
    answer = program_task({"one": (b"a longer text\n", b"A LONGER TEXT\n"), "two": UPPER["two"]})
    leaked = msgspec.structs.replace(answer, files=files(expected_dot_txt="A LONGER TEXT"))

    assert Status.FAILED is (await look(leaky, "T14")).status
    assert Status.FAILED is (await look(leaked, "T14")).status
    assert Status.PASSED is (await look(task, "T14")).status


async def test_an_image_that_holds_the_solution_is_found(look: Look, tmp_path: Path) -> None:
    """In a place where such are laid, on whatever layer."""
    write(tmp_path / "tree", opt__notes__old_dot_txt="first\n    return  x + x\n", usr__a="x")
    recipe = write(tmp_path, leaky_dot_toml='format = 1\nkind = "directory"\npath = "tree"\n') / "leaky.toml"
    task = function_task()
    assignment = msgspec.structs.replace(task.assignment, environment=Environment(rootfs=str(recipe)))
    seen = await look(msgspec.structs.replace(task, assignment=assignment), "T14")

    said = "in the image, /opt/notes/old.txt has 1 of 1 lines of the solution: return x + x"
    assert (Status.FAILED, (said,)) == (seen.status, seen.evidence)


async def repository(sandbox: minisandbox.Sandbox, *versions: str) -> Files:
    """Return the files of a repository with a commit for each version of solution.py."""
    commits = "".join(
        f"printf '%s' '{text}' > solution.py; git add .; git commit -qm version --date 2020-01-01T00:00:00Z;"
        for text in versions
    )
    made = await sandbox.run(
        "mkdir /tmp/r; cd /tmp/r; git init -q .; git config user.email a@b; git config user.name a;" + commits
        + " rm -rf .git/hooks; find . -type f | sed 's,^./,,'; git reset -q --hard HEAD~1 2>/dev/null; true"
    )  # fmt: skip
    if b"HEAD" not in made.stdout:
        pytest.skip("this host has no git")
    found = (await sandbox.run("cd /tmp/r; find . -type f | sed 's,^./,,'")).stdout.decode().split()
    return {name: File(content=await sandbox.read_file(f"/tmp/r/{name}")) for name in found}


async def test_a_history_with_the_solution_is_found(look: Look, sandbox: minisandbox.Sandbox) -> None:
    """The commit with it is not on any branch any more, and still there."""
    broken, fixed = "def double(x):\n    return x\n", "def double(x):\n    return x + x\n"
    history = msgspec.structs.replace(function_task(), files=await repository(sandbox, broken, fixed))
    leak, commits = await look(history, "T14"), await look(history, "T15")

    assert "solution.py" in history.files
    assert broken.encode() == history.files["solution.py"].content
    assert Status.FAILED is leak.status
    assert "/submission/.git: object " in leak.evidence[0]
    assert "has 1 of 1 lines of the solution: return x + x" in leak.evidence[0]
    assert (Status.FAILED, ("/submission/.git has 2 commits",)) == (commits.status, commits.evidence)


async def test_one_commit_without_the_solution_is_no_fault(look: Look, sandbox: minisandbox.Sandbox) -> None:
    """A repository as it should be."""
    task = msgspec.structs.replace(function_task(), files=await repository(sandbox, "def double(x):\n    return x\n"))

    assert Status.PASSED is (await look(task, "T14")).status
    assert Status.PASSED is (await look(task, "T15")).status


async def test_what_is_wrong_in_the_texts_is_found(look: Look) -> None:
    """An id that was cut off, a name that is not told, a solution that is."""
    cut = with_calls(function_task(), call("test_a[1", "double", 1, expected=2), call("b", "double", 2, expected=4))
    unnamed = function_task(instruction="Double it.")
    line = "def double(x):\n    return [a + b for a, b in zip(x, x)] if x else x + x\n"
    told = function_task(line, instruction=f"Write double in solution.py, for instance so:\n{line}")

    assert Status.FAILED is (await look(cut, "T06")).status
    assert Status.WARNED is (await look(unnamed, "T10")).status
    assert Status.WARNED is (await look(told, "T16")).status
    assert Status.PASSED is (await look(function_task(), "T16")).status


async def test_a_claim_that_is_not_reached_is_found(look: Look) -> None:
    """The kind gives L4 at most."""
    task = function_task()
    bold = msgspec.structs.replace(task, assignment=msgspec.structs.replace(task.assignment, integrity=Integrity.L5))

    assert Status.FAILED is (await look(bold, "T23")).status


async def test_a_solution_that_does_not_run_is_a_fault_of_the_task(supervisor: minisandbox.Supervisor) -> None:
    """A script that fails is said, and no certificate is given."""
    task = function_task(solution="")
    broken = msgspec.structs.replace(task, solution=files(solve_dot_sh="echo no such thing >&2; exit 3\n"))
    with trio.fail_after(DEADLINE_S):
        certificate = await check_task(broken, supervisor, runs=1)
    first = certificate.findings[0]

    assert not certificate.certified
    assert (Status.FAILED, True) == (first.status, "exited 3: no such thing" in first.evidence[0])


async def test_a_solution_is_made_by_its_script(look: Look) -> None:
    """Where the task is worked on, among the files that lie there."""
    script = "cp template.py solution.py && cp /solution/more.txt .\n"
    task = msgspec.structs.replace(
        function_task(),
        files=files(template_dot_py="def double(x):\n    return x + x\n"),
        solution=files(solve_dot_sh=script, more_dot_txt="more"),
    )

    assert Status.PASSED is (await look(task, "T01")).status
