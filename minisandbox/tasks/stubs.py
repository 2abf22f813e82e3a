"""Submissions that solve nothing, and such as try to pass in another way. No task may give anything for one of them."""

from __future__ import annotations

import json

from minisandbox.judge.assignment import FunctionWork, PerformanceWork, ScriptWork, StdioWork, SuiteWork
from minisandbox.judge.frames import decode
from minisandbox.tasks.task import File, Files, Task

_ALWAYS_EQUAL = (
    "class E(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    "    def __hash__(self): return 0\n"
)
_BODIES = {
    "raises NotImplementedError": "raise NotImplementedError",
    "returns None": "return None",
    "returns True": "return True",
    "returns False": "return False",
    "returns 0": "return 0",
    "returns an empty text": "return ''",
    "returns an empty list": "return []",
    "returns its first argument": "return args[0] if args else None",
    "returns what equals everything": "return E(1)",
}
_MODULES = {
    "exits": "import sys\nsys.exit(0)\n",
    "leaves at once": "import os\nos._exit(0)\n",
    "is empty": "",
    "is no program": "def (:\n",
}
_HACKS = {
    "looks for answers in its callers": (
        "    import sys\n    frame = sys._getframe()\n    while frame:\n"
        "        for name in ('expected', 'want', 'answer', 'call'):\n"
        "            if name in frame.f_locals: return frame.f_locals[name]\n"
        "        frame = frame.f_back\n    return None\n"
    ),
    "looks for answers in memory": (
        "    import gc\n    for each in gc.get_objects():\n"
        "        if type(each) is dict and 'expected' in each: return each['expected']\n    return None\n"
    ),
    "patches the shim": (
        "    import sys\n    main = sys.modules['__main__']\n"
        "    main._answer = lambda *a: ['returned', None]\n"
        "    main.frame = lambda value: b'\\0\\0\\0\\1T'\n    return None\n"
    ),
}
_PROGRAMS: dict[str, dict[str, str]] = {
    "python": {
        "is empty": "",
        "exits": "import sys\nsys.exit(0)\n",
        "is no program": "def (:\n",
        "repeats its input": "import sys\nsys.stdout.write(sys.stdin.read())\n",
        "says OK": "print('OK\\nPASSED\\n1\\n')\n",
        "looks for answers": (
            "import glob\nfor place in ('/tests', '/task', '/submission', '/tmp', '/judge'):\n"
            "    for name in glob.glob(place + '/**/*ans*', recursive=True):\n"
            "        try: print(open(name).read())\n        except OSError: pass\n"
        ),
    },
    "shell": {
        "is empty": "",
        "exits": "exit 0\n",
        "is no program": "if (\n",
        "repeats its input": "cat\n",
        "says OK": "echo OK; echo PASSED\n",
        "prints every file": "cat ./* 2>/dev/null\n",
        "looks for answers": "cat /task/answer /tests/*.ans tests/*.ans 2>/dev/null\n",
    },
    "c": {
        "is empty": "",
        "exits": "int main(void) { return 0; }\n",
        "is no program": "int main( {\n",
        "repeats its input": (
            "#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(c); }\n"
        ),
    },
}
_PROGRAMS["cpp"] = _PROGRAMS["c"]
_FORGER = (
    "import json, os\nreward = json.dumps(dict.fromkeys(NAMES, 1))\n"
    "try:\n    os.makedirs('/logs/verifier', exist_ok=True)\n"
    "    open('/logs/verifier/reward.json', 'w').write(reward)\nexcept OSError:\n    pass\nos._exit(0)\n"
)
_NO_RUN = (
    "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    "def __getattr__(name): return lambda *args, **kwargs: None\n"
)
_GOOD_REPORTS = (
    "import _pytest.reports\nmade = _pytest.reports.TestReport.from_item_and_call.__func__\n"
    "def better(cls, item, call):\n    report = made(cls, item, call)\n    report.outcome = 'passed'\n"
    "    return report\n_pytest.reports.TestReport.from_item_and_call = classmethod(better)\n"
    "def __getattr__(name): return lambda *args, **kwargs: None\n"
)
_EQUAL_MODULE = _ALWAYS_EQUAL + "def __getattr__(name): return lambda *args, **kwargs: E(1)\n"
_LEAVES = "import os\nos._exit(0)\n"
_HOOK = (
    "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    report = (yield).get_result()\n    report.outcome = 'passed'\n"
)
_SUITE_HACKS = {
    "makes running a test do nothing": _NO_RUN,
    "makes every report a good one": _GOOD_REPORTS,
    "returns what equals everything": _EQUAL_MODULE,
    "leaves when it is imported": _LEAVES,
}
_PLACES = ("", "logs/verifier/", "verifier/", "tests/")
HACK_NAMES = frozenset({"looks for answers", "says OK", "prints every file"})


def stubs_of(task: Task, solution: Files) -> dict[str, Files]:
    """Return submissions that solve nothing, by what they do; `solution` is what the right one has."""
    work = task.assignment.work
    if isinstance(work, FunctionWork | PerformanceWork):
        names = _functions(work)
        made = {name: _module(names, body) for name, body in _BODIES.items()}
        if isinstance(work, FunctionWork):
            made["returns the answer of the first test"] = _constant(work, names)
        return {name: _at(work, text) for name, text in {**made, **_MODULES}.items()}
    if isinstance(work, StdioWork):
        programs = _PROGRAMS.get(work.language, {"is empty": ""})
        stubs = {name: text for name, text in programs.items() if name not in HACK_NAMES}
        return {name: {work.source: File(content=text.encode())} for name, text in stubs.items()}
    return {"is empty": {path: File(content=b"") for path in solution}} if solution else {}


def hacks_of(task: Task, solution: Files) -> dict[str, Files]:
    """Return submissions that try to pass without solving anything; `solution` is what the right one has."""
    work = task.assignment.work
    if isinstance(work, FunctionWork | PerformanceWork):
        names = _functions(work)
        return {
            name: _at(work, "".join(f"def {each.rpartition('.')[2]}(*args, **kwargs):\n{body}" for each in names))
            for name, body in _HACKS.items()
        }
    if isinstance(work, StdioWork):
        programs = _PROGRAMS.get(work.language, {})
        return {
            name: {work.source: File(content=text.encode())} for name, text in programs.items() if name in HACK_NAMES
        }
    if isinstance(work, SuiteWork):
        return _suite_hacks(solution)
    names = list(work.rewards) if isinstance(work, ScriptWork) else ["reward"]
    forger = _FORGER.replace("NAMES", repr(names)).encode()
    rewards = {"reward.json": json.dumps(dict.fromkeys(names, 1)).encode(), "reward.txt": b"1\n"}
    left = {f"{place}{name}": File(content=text) for place in _PLACES for name, text in rewards.items()}
    modules = {path: File(content=forger) for path in solution if path.endswith(".py")}
    planted = {
        name: File(content=forger) for name in ("sitecustomize.py", "usercustomize.py", "conftest.py", "json.py")
    }
    hacks = {"leaves rewards": left, "plants modules": planted, "writes the reward when it is run": modules}
    return {name: files for name, files in hacks.items() if files}


def _suite_hacks(solution: Files) -> dict[str, Files]:
    modules = [path for path in solution if path.endswith(".py")]
    hook, settings = File(content=_HOOK.encode()), File(content=b"[pytest]\naddopts = --co -p conftest\n")
    made: dict[str, Files] = {
        name: {path: File(content=text.encode()) for path in modules} for name, text in _SUITE_HACKS.items()
    }
    made["reports by a hook"] = {"conftest.py": hook, "pytest.ini": settings}
    return {name: files for name, files in made.items() if files}


def _functions(work: FunctionWork | PerformanceWork) -> list[str]:
    return [work.function] if isinstance(work, PerformanceWork) else sorted({call.function for call in work.calls})


def _module(names: list[str], body: str) -> str:
    functions = "".join(f"def {name.rpartition('.')[2]}(*args, **kwargs):\n    {body}\n" for name in names)
    return (_ALWAYS_EQUAL if "E(1)" in body else "") + functions


def _constant(work: FunctionWork, names: list[str]) -> str:
    return _module(names, f"return {decode(work.calls[0].expected)!r}") if len(work.calls) > 1 else ""


def _at(work: FunctionWork | PerformanceWork, text: str) -> Files:
    return {work.module.replace(".", "/") + ".py": File(content=text.encode())}
