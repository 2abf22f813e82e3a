"""What is judged by: the kind of a task with its tests, what of a submission is taken in, and how far it may go.

All of it is a value with a digest; hidden inputs and expected values are in it, so it never leaves the judge.
This module does no I/O.
"""

from __future__ import annotations

import msgspec

from minisandbox.errors import UsageError
from minisandbox.judge.checkers import Checker, Exact, Tokens
from minisandbox.judge.decide import Scoring
from minisandbox.judge.frames import Value, encode
from minisandbox.judge.spec import Budget, Integrity, digest_of

INNER_ROOT = "/submission"
"""Where the artifacts lie in a cell, and the working directory of what is run there."""


class Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of an episode's sandbox belongs to the submission."""

    root: str = INNER_ROOT
    """A directory of the sandbox."""
    paths: tuple[str, ...] = (".",)
    """Files and directories below it that are taken in; nothing else is."""
    max_files: int = 20_000
    max_total_bytes: int = 512 << 20
    max_file_bytes: int = 64 << 20
    max_depth: int = 64

    def __post_init__(self) -> None:
        if not self.root.startswith("/") or not self.paths:
            raise UsageError("artifacts need an absolute root, and at least one path below it")
        for path in self.paths:
            if path != "." and any(name in ("", ".", "..") for name in path.split("/")):
                raise UsageError(f"artifact path {path!r} is not relative and of plain names")


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cell starts from."""

    rootfs: str = "host"
    digest: str | None = None
    """When given, the rootfs must have it, or nothing is judged."""
    variables: dict[str, str] = {}


class TestCase(msgspec.Struct, frozen=True, kw_only=True):
    """One input, and the answer that a checker compares with."""

    __test__ = False

    id: str
    input: bytes
    answer: bytes = b""


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program of the task's own, a checker or an interactor. It is built and run in cells of its own."""

    source: bytes
    language: str
    convention: str = "testlib"
    """How it is called and answers: "testlib" (input output answer; 0, 1, 2) or "kattis" (42, 43)."""


class External(msgspec.Struct, frozen=True, kw_only=True, tag="external"):
    """The task's own checker decides."""

    program: Program


class Interactive(msgspec.Struct, frozen=True, kw_only=True, tag="interactive"):
    """The task's own interactor talks with the submission, and decides."""

    program: Program


class StdioWork(msgspec.Struct, frozen=True, kw_only=True, tag="stdio"):
    """A program that reads an input and writes an answer."""

    language: str
    source: str
    """The file of the submission that is compiled or run."""
    cases: tuple[TestCase, ...]
    checker: Checker | External | Interactive = Tokens()


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a function, and what it must return or raise."""

    id: str
    function: str
    arguments: bytes
    """The frame encoding of a tuple and a dict: what JSON cannot tell apart stays so in it."""
    expected: bytes = encode(None)
    """The frame encoding of what it must return."""
    raises: str | None = None
    """The name of the exception that it must raise instead."""


def call(
    test: str, function: str, *args: Value, expected: Value = None, raises: str | None = None, **kwargs: Value
) -> Call:
    """Return a call with everything encoded. Raises FrameError for what is not plain data."""
    return Call(id=test, function=function, arguments=encode((args, kwargs)), expected=encode(expected), raises=raises)


class FunctionWork(msgspec.Struct, frozen=True, kw_only=True, tag="function"):
    """A module whose functions are called from outside, with data alone."""

    module: str
    """A name that can be imported with the submission on the path."""
    calls: tuple[Call, ...] = ()
    tolerance: float | None = None
    """How far apart floats may be, absolutely or relatively; None is not at all."""


Work = StdioWork | FunctionWork


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A task, as the judge knows it."""

    name: str
    work: Work
    declared: Declared = Declared()
    environment: Environment = Environment()
    budget: Budget = Budget()
    scoring: Scoring = Scoring.ALL
    integrity: Integrity = Integrity.L4
    """What the task claims; a verdict below it says why."""
    certificate: str | None = None

    @property
    def digest(self) -> str:
        """The digest of all of it but its certificate, which is made for it."""
        return digest_of(msgspec.structs.replace(self, certificate=None))

    @property
    def tests_digest(self) -> str:
        """The digest of what is asked and expected."""
        return digest_of(self.work)


__all__ = [
    "INNER_ROOT",
    "Assignment",
    "Call",
    "Checker",
    "Declared",
    "Environment",
    "Exact",
    "External",
    "FunctionWork",
    "Interactive",
    "Program",
    "StdioWork",
    "TestCase",
    "Tokens",
    "Work",
    "call",
]
