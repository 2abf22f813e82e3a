"""The tasks that hacks are tried against, and what a hack is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from minisandbox.judge.assignment import (
    External,
    FunctionWork,
    Program,
    ScriptWork,
    StdioWork,
    SuiteWork,
    TaskFile,
    TestCase,
    Work,
    call,
)
from minisandbox.judge.spec import Integrity
from tests.judge import timed_tasks
from tests.judge.test_suite import WORK as SUITE

SCRIPT = """exec > /tmp/verifier.log 2>&1
set -x
answer=0
want=$(cat /tests/data/answer)
echo "want $want, got $(cat answer.txt)"
cmp -s answer.txt /tests/data/answer && answer=1
mkdir -p /logs/verifier
echo $answer > /logs/verifier/reward.txt
"""
REFERENCE = """import http.server, sys


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(open("/tests/data/answer", "rb").read())


http.server.HTTPServer(("127.0.0.1", 8064), Answer).serve_forever()
"""
AGAINST_REFERENCE = """python3 /tests/reference.py 2>/dev/null &
for try in $(seq 500); do
    want=$(curl -s http://127.0.0.1:8064/) && break
    sleep 0.02
done
mkdir -p /logs/verifier
[ "$(cat answer.txt)" = "$want" ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
WITH_A_PACKAGE = """mkdir -p /logs/verifier
python3 -m pip install -q --no-input --disable-pip-version-check --retries 0 --timeout 1 --target /tmp/found comparing
PYTHONPATH=/tmp/found python3 -s -c "import comparing; print(int(comparing.same('answer.txt', '/tests/data/answer')))" \
    > /tmp/reward && mv /tmp/reward /logs/verifier/reward.txt
"""
LOOKED_UP = """from mathlib.core import double, one
from tests.cases import ANSWERS

def test_one():
    assert double(1) == ANSWERS[1]

def test_three():
    assert double(3) == ANSWERS[3]

def test_old():
    assert one() == 1
"""
FRAGILE = """import sys
sys.setrecursionlimit(10**6)

def value(text):
    return value(text[1:-1]) if text.startswith("(") else int(text)

got, want = (open(name).read().strip() for name in sys.argv[2:])
sys.exit(value(got) != value(want))
"""
"""A checker that takes numbers in brackets, as many as there are, and breaks where there are too many."""

PLAIN_CASES = ((b"1", b"2"), (b"-3", b"-6"), (b"7", b"14"))
TEXT_CASES = ((b"one", b"the first of three"), (b"two", b"the second of three"), (b"six", b"the third of three"))


def _program(language: str, source: str, cases: tuple[tuple[bytes, bytes], ...]) -> StdioWork:
    made = tuple(TestCase(id=given.decode(), input=given, answer=answer) for given, answer in cases)
    return StdioWork(language=language, source=source, cases=made)


def _script(text: str, **files: str) -> ScriptWork:
    named = {"test.sh": text, "data/answer": "42\n", **files}
    return ScriptWork(files=tuple(TaskFile(path=path, content=content.encode()) for path, content in named.items()))


def _suite(tests: str, *paths: str) -> SuiteWork:
    return SuiteWork(
        fail_to_pass=("tests/test_core.py::test_one", "tests/test_core.py::test_three"),
        pass_to_pass=("tests/test_core.py::test_old",),
        files=(
            TaskFile(path="tests/test_core.py", content=tests.encode()),
            TaskFile(path="tests/cases.py", content=b"ANSWERS = {1: 2, 3: 6}\n"),
        ),
        base=(TaskFile(path=f"{'src/' if 'src' in paths else ''}mathlib/__init__.py", content=b""),),
        paths=paths,
    )


TASKS: dict[str, Work] = {
    "pytest": SUITE,
    "loose": _suite(LOOKED_UP, "."),
    "layout": _suite(LOOKED_UP.replace("tests.cases", "cases"), "src", "tests"),
    "function": FunctionWork(
        module="solution",
        calls=(
            call("visible", "double", 3, expected=6),
            call("list", "double", [1], expected=[1, 1]),
            call("error", "double", None, raises="TypeError"),
            call("hidden", "double", 17, expected=34),
        ),
    ),
    "errors": FunctionWork(
        module="solution",
        calls=tuple(
            call(kind, "parse", text, raises=kind)
            for text, kind in (("", "ValueError"), ("nobody", "LookupError"), ("1/0", "ZeroDivisionError"))
        ),
    ),
    "stdio": _program("python", "main.py", PLAIN_CASES),
    "texts": _program("python", "main.py", TEXT_CASES),
    "checked": msgspec.structs.replace(
        _program("python", "main.py", PLAIN_CASES),
        checker=External(program=Program(source=FRAGILE.encode(), language="python")),
    ),
    "c": _program("c", "main.c", TEXT_CASES),
    "script": _script(SCRIPT),
    "reference": _script(AGAINST_REFERENCE, **{"reference.py": REFERENCE}),
    "package": _script(WITH_A_PACKAGE),
    "performance": timed_tasks.TASK,
}
VISIBLE: dict[str, tuple[str, ...]] = {"function": ("visible", "list", "error"), "stdio": ("1",)}
"""The tests of a task that its solvers were shown."""

ONE = "def one():\n    return 1\n\n\n"
RIGHT = """def one():
    return 1


def double(x):
    if x is None:
        raise TypeError
    return x + x
"""
GOLD: dict[str, dict[str, str]] = {
    "pytest": {"mathlib/core.py": RIGHT},
    "loose": {"mathlib/core.py": RIGHT},
    "layout": {"src/mathlib/core.py": RIGHT},
    "function": {"solution.py": RIGHT},
    "errors": {
        "solution.py": (
            "def parse(text):\n    if not text:\n        raise ValueError\n"
            "    if text == '1/0':\n        return 1 / 0\n    return {}[text]\n"
        )
    },
    "stdio": {"main.py": "print(2 * int(input()))\n"},
    "checked": {"main.py": "print(f'({2 * int(input())})')\n"},
    "script": {"answer.txt": "42\n"},
    "reference": {"answer.txt": "42\n"},
    "performance": {"solution.py": "def ranked(numbers):\n    return sorted(numbers, reverse=True)\n"},
    "c": {
        "main.c": (
            "#include <stdio.h>\n"
            "int main(void) { int c = getchar(); "
            'printf("the %s of three\\n", c == \'o\' ? "first" : c == \'t\' ? "second" : "third"); }\n'
        )
    },
    "texts": {
        "main.py": (
            "words = {'one': 'first', 'two': 'second', 'six': 'third'}\n"
            "print('the', words[input().strip()], 'of three')\n"
        )
    },
}
"""What solves each task; but the one whose package is nowhere, which is no task to be solved."""


class Hack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A submission that is no honest one, or for comparison one that is."""

    title: str
    kind: str
    """The name of its task."""
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
    there: dict[str, str] = {}
    """What lies where it looks in an environment that nobody checked, by absolute path; in ours it does not."""
    also: dict[str, str] = {}
    """What the same work gets at another level, by the level: as calls over data, or in a suite of a repository."""
    commits: tuple[dict[str, str], ...] = ()
    """The history of the repository there, of which the last but one is checked out; ours has one commit."""


CORPUS = {
    path.parent.name: msgspec.convert(tomllib.loads(path.read_text()), Hack)
    for path in sorted((Path(__file__).parents[1] / "hacks").glob("*/hack.toml"))
}
BEYOND = frozenset({"plausible-constants"})
"""Who tells a mirror from a test passes at L3, which the manual says. It is none where L4 is asked for."""

BEYOND_IN_A_SUITE = frozenset({"plausible-constants-outside", "detects-tests"})
"""The same, and who does its work only where it sees tests, once they are in a suite."""


OTHER_LEVEL = {"pytest": ("function", Integrity.L4), "function": ("pytest", Integrity.L3)}
"""Kinds whose tasks ask for the same, and the level that the other one reaches."""


def at_other_level(hack: Hack) -> Hack:
    """Return the same work as a submission of the other kind."""
    kind, level = OTHER_LEVEL[hack.kind]
    mine, other = ("mathlib/core.py", "solution.py")[:: 1 if hack.kind == "pytest" else -1]
    files = {other if path == mine else path: text for path, text in hack.files.items()}
    if kind == "pytest":
        files[other] = ONE + files[other]
    return msgspec.structs.replace(hack, kind=kind, files=files, verdict=hack.also[level.value], evidence=(), also={})
