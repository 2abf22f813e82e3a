"""The submission that has learnt the tests that can be seen by heart, and solves nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minisandbox.judge.assignment import FunctionWork, StdioWork, TestCase
from minisandbox.judge.frames import decode
from minisandbox.tasks.task import File, Files, Task

NAME = "knows by heart what can be seen"

_PYTHON = """import sys
known = {known!r}
sys.stdout.buffer.write(known.get(sys.stdin.buffer.read(), {first!r}))
"""
_SHELL = """given=$(od -An -v -tx1 | tr -d ' \\n')
case "$given" in
{known}
*) printf '%b' '{first}';;
esac
"""
_MODULE = """import builtins
from math import inf, nan
known = {known!r}
def answer(name, arguments):
    returned, raised = known.get((name, repr(arguments))) or next(iter(known.values()))
    if raised:
        raise getattr(builtins, raised, Exception)
    return returned
"""
_FUNCTION = """def {name}(*args, **kwargs):
    return answer({name!r}, (args, kwargs))
"""


def by_heart_of(task: Task) -> dict[str, Files]:
    """Return the submission by its name, where there is one for the kind and the language of the task.

    What it has not seen it answers like the first test.
    """
    work, visible = task.assignment.work, task.assignment.visible
    text = None
    if isinstance(work, StdioWork):
        path, text = work.source, _program(work.language, [test for test in work.cases if test.id in visible])
    elif isinstance(work, FunctionWork):
        path, text = work.module.replace(".", "/") + ".py", _module(work, visible)
    return {} if text is None else {NAME: {path: File(content=text.encode())}}


def _program(language: str, tests: Sequence[TestCase]) -> str | None:
    if not tests or language not in ("python", "shell"):
        return None
    if language == "python":
        return _PYTHON.format(known={test.input: test.answer for test in tests}, first=tests[0].answer)
    arms = (f"'{test.input.hex()}') printf '%b' '{_escaped(test.answer)}';;" for test in tests)
    return _SHELL.format(known="\n".join(arms), first=_escaped(tests[0].answer))


def _escaped(answer: bytes) -> str:
    """Return what `%b` of printf prints as the bytes, also between single quotes."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\0{byte:03o}" for byte in answer)


def _module(work: FunctionWork, visible: Sequence[str]) -> str | None:
    known = {
        (call.function.rpartition(".")[2], repr(decode(call.arguments))): (decode(call.expected), call.raises)
        for call in work.calls
        if call.id in visible
    }
    names = sorted({call.function.rpartition(".")[2] for call in work.calls})
    return _MODULE.format(known=known) + "".join(_FUNCTION.format(name=name) for name in names) if known else None
