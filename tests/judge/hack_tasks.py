"""The tasks that hacks are tried against, one of each kind, and judges that make the mistakes the hacks live on."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from minisandbox.errors import FileTransferError
from minisandbox.judge.assignment import FunctionWork, ScriptWork, StdioWork, TaskFile, TestCase, Work, call
from minisandbox.judge.layout import TaskArchive
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import ExitReason, Limits, Result
from tests.judge import timed_tasks
from tests.judge.test_suite import WORK as SUITE

SCRIPT = """answer=0
cmp -s answer.txt /tests/data/answer && answer=1
mkdir -p /logs/verifier
echo $answer > /logs/verifier/reward.txt
"""
CASES = ((b"1", b"2"), (b"-3", b"-6"), (b"7", b"14"))

TASKS: dict[str, Work] = {
    "pytest": SUITE,
    "function": FunctionWork(
        module="solution",
        calls=(
            call("visible", "double", 3, expected=6),
            call("list", "double", [1], expected=[1, 1]),
            call("error", "double", None, raises="TypeError"),
            call("hidden", "double", 17, expected=34),
        ),
    ),
    "stdio": StdioWork(
        language="python",
        source="main.py",
        cases=tuple(TestCase(id=given.decode(), input=given, answer=answer) for given, answer in CASES),
    ),
    "performance": timed_tasks.TASK,
    "script": ScriptWork(
        files=(
            TaskFile(path="test.sh", content=SCRIPT.encode()),
            TaskFile(path="data/answer", content=b"42\n"),
        )
    ),
}

HARNESS = """import sys, unittest
sys.path.insert(0, "/submission")

def check(function, args, expected):
    got = function(*args)
    KIND

case = unittest.TestCase()
from solution import double
check(double, [3], 6)
check(double, [[1]], [1, 1])
try:
    double(None)
except TypeError:
    pass
else:
    raise AssertionError
"""
COMPARISONS = {
    "exit code": "assert got == expected",
    "infrastructure": "assert got == expected",
    "assertions": "case.assertEqual(got, expected)",
    "reference": "assert got == args[0] + args[0]",
}
MEMORY = Limits(memory_bytes=192 << 20)
LIMITS = Limits(wall_time_s=4.0, processes=48, stdout_bytes=1 << 20, stderr_bytes=1 << 20)


class Hack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A submission that is no honest one, or for comparison one that is."""

    title: str
    kind: str
    verdict: str
    """What it must get."""
    files: dict[str, str]
    """`agent.sh` is run in the episode's sandbox, the others are there."""
    row: int | None = None
    """Of the list of hacks; None for honest work."""
    naive: str | None = None
    """The mistake of a judge that it wins against; None where only our own judge has what it attacks."""
    evidence: tuple[str, ...] = ()
    """What must be told, whatever else is."""


async def prepare(sandbox: Sandbox, files: Mapping[str, str], before: Mapping[str, tuple[TaskFile, ...]] = {}) -> None:
    """Make the sandbox of an episode: what was there before, then what was submitted, then what the agent ran."""
    await sandbox.put_tree(TaskArchive([TaskFile(path=".begun", content=b"")]), "/submission")
    for place, there in before.items():
        await sandbox.put_tree(TaskArchive(there), place)
    own = [TaskFile(path=name, content=text.encode()) for name, text in files.items() if name != "agent.sh"]
    await sandbox.put_tree(TaskArchive(own), "/submission")
    if "agent.sh" in files:
        result = await sandbox.run(["bash", "-c", files["agent.sh"]], cwd="/submission")
        assert result.ok, result.stderr


async def wins(hack: Hack, sandbox: Sandbox) -> bool:
    """Return whether a hack wins against the mistake that it names, in a sandbox without any defence."""
    if hack.kind == "pytest":
        return await _pytest_wins(hack, sandbox)
    if hack.kind == "function":
        await prepare(sandbox, hack.files)
        harness = HARNESS.replace("KIND", COMPARISONS[hack.naive or ""])
        await sandbox.write_file("/harness.py", harness.encode())
        result = await sandbox.run(["python3", "/harness.py"], limits=LIMITS)
        return _failed_to_judge(result) if hack.naive == "infrastructure" else result.ok
    if hack.kind == "stdio":
        return await _stdio_wins(hack, sandbox)
    if hack.kind == "performance":
        await prepare(sandbox, hack.files)
        return await timed_tasks.is_fooled(hack.naive or "", sandbox, LIMITS)
    script = TASKS["script"]
    assert isinstance(script, ScriptWork)
    await prepare(sandbox, hack.files, {"/tests": script.files})
    if hack.naive == "export":
        try:
            await sandbox.read_file("/submission/answer.txt")
        except FileTransferError:
            return True
        return False
    await sandbox.run(["bash", "-l", "/tests/test.sh"], cwd="/submission", limits=LIMITS)
    read = "sleep 0.1; grep -q 1 /logs/verifier/reward.json || grep -q 1 /logs/verifier/reward.txt"
    return (await sandbox.run(read, env={"BASH_ENV": ""})).ok


async def _pytest_wins(hack: Hack, sandbox: Sandbox) -> bool:
    await prepare(sandbox, hack.files, {"/submission": (*SUITE.base, *SUITE.files)})
    library = sandbox.env.get("PYTHONPATH", "")
    command = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests", "--junitxml=report.xml"]
    if hack.naive != "junit":
        command.pop()
    env = {"PYTHONPATH": f"/submission:{library}"}
    result = await sandbox.run(command, cwd="/submission", env=env, limits=LIMITS)
    if hack.naive == "no failures":
        return b"FAILED" not in result.stdout
    if hack.naive == "summary":
        return b"5 passed" in result.stdout
    if hack.naive == "junit":
        report = await sandbox.read_file("/submission/report.xml")
        return b'tests="5"' in report and b'failures="0"' in report
    return result.ok


async def _stdio_wins(hack: Hack, sandbox: Sandbox) -> bool:
    answers = tuple(TaskFile(path=f"{given.decode()}.ans", content=answer) for given, answer in CASES)
    await prepare(sandbox, hack.files, {"/tests": answers})
    for given, answer in CASES:
        result = await sandbox.run(["python3", "/submission/main.py"], stdin=given, limits=LIMITS)
        text = result.stdout.decode().strip()
        if hack.naive == "contains" and not re.search(rf"(?<!\d){answer.decode()}", text):
            return False
        if hack.naive == "eval" and not eval(text) == int(answer):
            return False
        if hack.naive == "float" and abs(float(text) - float(answer)) > 1e-6:
            return False
    return True


def _failed_to_judge(result: Result) -> bool:
    """Return what a judge takes for a failure of its own, which leaves the episode out."""
    return result.exit_reason is not ExitReason.EXITED or not result.ok
