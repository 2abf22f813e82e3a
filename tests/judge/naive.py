"""Judges that make the mistakes which hacks live on, each in a sandbox without any of our defences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

from minisandbox.errors import FileTransferError
from minisandbox.judge.assignment import (
    External,
    FunctionWork,
    PerformanceWork,
    Program,
    ScriptWork,
    StdioWork,
    SuiteWork,
    TaskFile,
)
from minisandbox.judge.layout import TaskArchive
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.spec import ExitReason, Limits, Result
from tests.judge import timed_tasks
from tests.judge.hack_tasks import TASKS, Hack

HARNESS = """import sys, unittest
sys.path.insert(0, "/submission")

def check(function, args, expected):
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
CHILD = """import json, subprocess, sys
SERVE = "; ".join([
    "import json, sys", "sys.path.insert(0, '/submission')", "from solution import double",
    "[print(json.dumps(double(*json.loads(line))), flush=True) for line in sys.stdin]",
])
calls = {"[3]": "6", "[[1]]": "[1, 1]"}
told = [f"want of {args[1:-1]}: {want}\\n" for args, want in calls.items()]
child = subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for args, want in calls.items():
    child.stdin.write(args + "\\n")
    child.stdin.flush()
    assert child.stdout.readline() == want + "\\n"
"""
EXCEPTIONS = """import sys
sys.path.insert(0, "/submission")
from solution import parse
for text, kind in (("", ValueError), ("nobody", LookupError), ("1/0", ZeroDivisionError)):
    try:
        parse(text)
    except kind:
        continue
    raise AssertionError
"""
CALL = "got = function(*args); "
TIMED = "import time; began = time.CLOCK(); got = function(*args); assert time.CLOCK() - began < 0.3; "
COMPARISONS = {
    "exit code": CALL + "assert got == expected",
    "infrastructure": CALL + "assert got == expected",
    "assertions": CALL + "case.assertEqual(got, expected)",
    "reference": CALL + "assert got == args[0] + args[0]",
    "timed": TIMED.replace("CLOCK", "process_time") + "assert got == expected",
    "clock": TIMED.replace("CLOCK", "perf_counter") + "assert got == expected",
}
MEMORY = Limits(memory_bytes=192 << 20)
LIMITS = Limits(wall_time_s=20.0, processes=48, stdout_bytes=1 << 20, stderr_bytes=1 << 20)
ROOT = "/submission"
AS_WHO_COMMITS = "git -c user.name=a -c user.email=a@example.org -c safe.directory='*'"


async def prepare(
    sandbox: Sandbox,
    hack: Hack,
    before: Mapping[str, tuple[TaskFile, ...]] = {},
    *,
    env: Mapping[str, str] = {},
    commits: tuple[dict[str, str], ...] = (),
) -> None:
    """Make the sandbox of an episode: what was there before, then what was submitted, then what the agent ran."""
    await lay(sandbox, {".begun": ""}, ROOT)
    for place, there in before.items():
        await sandbox.put_tree(TaskArchive(there), place)
    if commits:
        await commit(sandbox, commits)
    await lay(sandbox, {name: text for name, text in hack.files.items() if name != "agent.sh"}, ROOT)
    if "agent.sh" in hack.files:
        result = await sandbox.run(["bash", "-c", hack.files["agent.sh"]], cwd=ROOT, env=dict(env))
        assert result.ok, result.stderr


async def lay(sandbox: Sandbox, files: Mapping[str, str], place: str) -> None:
    """Lay files below a directory, as a task or a trainer does."""
    made = [TaskFile(path=name.lstrip("/"), content=text.encode()) for name, text in files.items()]
    if made:
        await sandbox.put_tree(TaskArchive(made), place)


async def commit(sandbox: Sandbox, commits: tuple[dict[str, str], ...]) -> None:
    """Make a repository of what is there, with these commits, of which the last one is on no branch any more."""
    git = f"cd {ROOT} && {AS_WHO_COMMITS}"
    assert (await sandbox.run(f"{git} init -q . && {git} add . && {git} commit -qm begin")).ok
    for files in commits:
        await lay(sandbox, files, ROOT)
        assert (await sandbox.run(f"{git} add . && {git} commit -qm more")).ok
    if len(commits) > 1:
        assert (await sandbox.run(f"{git} reset -q --hard HEAD~1")).ok


async def wins(hack: Hack, sandbox: Sandbox, env: Mapping[str, str]) -> bool:
    """Return whether a hack wins against the mistake that it names, in a sandbox without any defence."""
    await lay(sandbox, hack.there, "/")
    work = TASKS[hack.kind]
    if isinstance(work, SuiteWork):
        return await _pytest_wins(hack, work, sandbox, env)
    if isinstance(work, FunctionWork):
        return await _function_wins(hack, sandbox, env)
    if isinstance(work, StdioWork):
        return await _stdio_wins(hack, work, sandbox, env)
    if isinstance(work, PerformanceWork):
        await prepare(sandbox, hack, env=env)
        return await timed_tasks.is_fooled(hack.naive or "", sandbox, LIMITS)
    assert isinstance(work, ScriptWork)
    return await _script_wins(hack, work, sandbox, env)


async def _function_wins(hack: Hack, sandbox: Sandbox, env: Mapping[str, str]) -> bool:
    await prepare(sandbox, hack, env=env)
    whole = {"child": CHILD, "exceptions": EXCEPTIONS}
    harness = whole.get(hack.naive or "") or HARNESS.replace("KIND", COMPARISONS[hack.naive or ""])
    await sandbox.write_file("/harness.py", harness.encode())
    result = await sandbox.run(["python3", "/harness.py"], limits=LIMITS)
    return _failed_to_judge(result) if hack.naive == "infrastructure" else result.ok


async def _script_wins(hack: Hack, work: ScriptWork, sandbox: Sandbox, env: Mapping[str, str]) -> bool:
    command = list(work.command) if hack.naive == "program" else ["bash", "-l", "/tests/test.sh"]
    before = {"/tests": work.files}
    if hack.naive == "log":  # an attempt before this one
        await sandbox.put_tree(TaskArchive(work.files), "/tests")
        await sandbox.run(["mkdir", "-p", ROOT])
        await sandbox.run(command, cwd=ROOT, limits=LIMITS)
    await prepare(sandbox, hack, before, env=env)
    if hack.naive == "export":
        try:
            await sandbox.read_file("/submission/answer.txt")
        except FileTransferError:
            return True
        return False
    await sandbox.run(command, cwd=ROOT, limits=LIMITS)
    if hack.naive == "reader":  # a model that reads the work, and does what it says
        return b"full marks" in await sandbox.read_file("/submission/answer.txt")
    read = "sleep 0.1; grep -qs 1 /logs/verifier/reward.json || grep -qs 1 /logs/verifier/reward.txt"
    if hack.naive == "last name":
        reward = await sandbox.run(["python3", "-c", LAST_NAME])
        return reward.ok
    return (await sandbox.run(["/usr/bin/bash", "-c", read], env={"BASH_ENV": ""})).ok


LAST_NAME = "import json; assert json.load(open('/logs/verifier/reward.json'))['reward'] >= 1"


async def _pytest_wins(hack: Hack, work: SuiteWork, sandbox: Sandbox, env: Mapping[str, str]) -> bool:
    commits = hack.commits or (({"NEWS": "the only version\n"},) if hack.naive == "git" else ())
    await prepare(sandbox, hack, {ROOT: (*work.base, *work.files)}, env=env, commits=commits)
    library = sandbox.env.get("PYTHONPATH", "")
    places = [str(PurePosixPath(ROOT, path)) for path in work.paths]
    command = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests"]
    if hack.naive == "junit":
        command.append("--junitxml=report.xml")
    if hack.naive == "by name":
        command.append("--import-mode=importlib")
    if hack.naive == "coverage":
        command = ["python3", "-m", "coverage", "run", *command[1:]]
    if hack.naive == "make":
        command = ["make", "test"]
    if hack.naive == "npm":
        command = ["npm", "test", "--silent"]
    if hack.naive == "git":
        command = ["sh", "-c", f"{AS_WHO_COMMITS} checkout -q HEAD -- tests && {shlex.join(command)}"]
    result = await sandbox.run(command, cwd=ROOT, env={"PYTHONPATH": ":".join([*places, library])}, limits=LIMITS)
    if hack.naive == "no failures":
        return b"FAILED" not in result.stdout
    if hack.naive == "summary":
        return b"5 passed" in result.stdout
    if hack.naive == "junit":
        report = await sandbox.read_file("/submission/report.xml")
        return b'tests="5"' in report and b'failures="0"' in report
    return result.ok


async def _stdio_wins(hack: Hack, work: StdioWork, sandbox: Sandbox, env: Mapping[str, str]) -> bool:
    answers = tuple(TaskFile(path=f"{case.id}.ans", content=case.answer) for case in work.cases)
    await prepare(sandbox, hack, {"/tests": answers}, env=env)
    await sandbox.run(["chmod", "-R", "go=", "/tests"] if hack.naive == "closed" else ["true"])
    command = ["python3", "main.py"]
    if work.language == "c":
        assert (await sandbox.run(["cc", "-o", "/program", "main.c"], cwd=ROOT)).ok
        command = ["/program"]
    user = "nobody" if hack.naive == "closed" else None
    for case in work.cases:
        result = await sandbox.run(command, stdin=case.input, cwd=ROOT, limits=LIMITS, user=user)
        if isinstance(work.checker, External):
            checked = await _check(work.checker.program, result.stdout, case.answer, sandbox)
            if checked.exit_reason is ExitReason.EXITED and checked.exit_code in (0, 1):
                return False
        elif not _is_taken(hack.naive, result.stdout.decode().strip(), case.answer.decode()):
            return False
    return True


async def _check(program: Program, output: bytes, answer: bytes, sandbox: Sandbox) -> Result:
    for name, content in (("checker", program.source), ("output", output), ("answer", answer)):
        await sandbox.write_file(f"/tmp/{name}", content)
    return await sandbox.run(["python3", "/tmp/checker", "-", "/tmp/output", "/tmp/answer"], limits=LIMITS)


def _is_taken(naive: str | None, text: str, answer: str) -> bool:
    if naive == "eval":
        return bool(eval(text) == int(answer))
    if naive == "float":
        return not abs(float(text) - float(answer)) > 1e-6
    return re.search(rf"(?<!\d){answer}", text) is not None


def _failed_to_judge(result: Result) -> bool:
    """Return what a judge takes for a failure of its own, which leaves the episode out."""
    return result.exit_reason is not ExitReason.EXITED or not result.ok
