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
from minisandbox.judge.timing import PerformanceWork, check_tolerance

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
        if min(self.max_files, self.max_total_bytes, self.max_file_bytes) < 1 or self.max_depth < 0:
            raise UsageError("bounds of artifacts are 1 or more, and max_depth is 0 or more")


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
    files: dict[str, bytes] = {}
    """What lies in the working directory besides, over files of the submission with the same names."""


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


class TaskFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the task's own, which is laid down in a cell."""

    path: str
    content: bytes
    executable: bool = False

    def __post_init__(self) -> None:
        if any(name in ("", ".", "..") for name in self.path.split("/")):
            raise UsageError(f"a file of a task has the path {self.path!r}, which is not relative and of plain names")


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

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)


INFRA = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", ".coveragerc", "noxfile.py", "Makefile", "pytest.py", "_pytest", "*.dist-info", "*.egg-info"),
)
"""Files that have to do with how tests are run, by name; a pass should not depend on a submission's."""


class SuiteWork(msgspec.Struct, frozen=True, kw_only=True, tag="pytest"):
    """A repository, and tests of it that pytest runs beside it, in one interpreter."""

    fail_to_pass: tuple[str, ...]
    """Ids of tests that fail before, relative to the root, as `tests/test_a.py::TestB::test_c[1]`."""
    pass_to_pass: tuple[str, ...] = ()
    """Ids of tests that pass before, and must still."""
    test_roots: tuple[str, ...] = ("tests",)
    """Directories or files that are the task's: whatever a submission has there is replaced by `files`, whole."""
    files: tuple[TaskFile, ...]
    """All that is below the test roots, relative to the root."""
    base: tuple[TaskFile, ...] = ()
    """The repository before, where the submission does not declare its own; on top of what the rootfs has."""
    root: str = INNER_ROOT
    """Where the repository lies in a cell."""
    paths: tuple[str, ...] = (".",)
    """Directories below the root that modules are imported from, after the interpreter's own."""
    python: str = "python3"
    """The interpreter of the environment; it has pytest."""
    conftest: bool = False
    """Whether conftest.py files are read: the task's own, never the submission's."""
    plugins: tuple[str, ...] = ()
    """Modules of pytest plugins of the environment that the tests need. No other is loaded."""
    infra: tuple[str, ...] = INFRA


class ScriptWork(msgspec.Struct, frozen=True, kw_only=True, tag="script"):
    """A script of the task's own that looks at the artifacts and writes a reward."""

    files: tuple[TaskFile, ...]
    """What lies in /tests, the script among them."""
    command: tuple[str, ...] = ("/bin/bash", "/tests/test.sh")
    rewards: tuple[str, ...] = ("reward",)
    """What reward.json must have, each a test; reward.txt has one number, and fits where there is one name."""
    pass_at: float = 1.0
    """What a reward must be at least to pass."""
    root: str = INNER_ROOT
    """Where the artifacts lie in the cell, and where the script is run."""
    user: str = "root"
    """Who runs the script, in a sandbox of its own where root may do little."""

    def __post_init__(self) -> None:
        if not 0.0 < self.pass_at <= 1.0:
            raise UsageError("pass_at is above 0 and at most 1")


class FileCheck(msgspec.Struct, frozen=True, kw_only=True, tag="file"):
    """A file that must be there."""

    id: str
    path: str
    answer: bytes | None = None
    """What is in it; None when it is enough that it is there."""
    checker: Checker = Exact()


class RequestCheck(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """Bytes that are sent to a port, and what must come back until the connection is closed."""

    id: str
    port: int
    request: bytes = b""
    answer: bytes = b""
    checker: Checker = Exact()
    http: bool = False
    """Whether the answer is the body of a reply by HTTP with status 200."""
    within_s: float = 30.0
    """How long a service may take to listen and answer; generous, since it is a clock that counts here."""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65_536 or not 0.0 < self.within_s <= 3600.0:
            raise UsageError(f"check {self.id!r} needs a port from 1 to 65535, and within_s above 0 and at most 3600")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A program that is started from the artifacts."""

    command: tuple[str, ...]


class StateWork(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """Files and services that a submission was to make."""

    checks: tuple[FileCheck | RequestCheck, ...]
    services: tuple[Service, ...] = ()
    root: str = INNER_ROOT
    """Where the artifacts lie in the cell, and where services are started."""


Work = StdioWork | FunctionWork | SuiteWork | ScriptWork | StateWork | PerformanceWork


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
    visible: tuple[str, ...] = ()
    """Ids of tests that whoever solves the task has seen."""
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
    "INFRA",
    "INNER_ROOT",
    "Assignment",
    "Call",
    "Checker",
    "Declared",
    "Environment",
    "Exact",
    "External",
    "FileCheck",
    "FunctionWork",
    "Interactive",
    "PerformanceWork",
    "Program",
    "RequestCheck",
    "ScriptWork",
    "Service",
    "StateWork",
    "StdioWork",
    "SuiteWork",
    "TaskFile",
    "TestCase",
    "Tokens",
    "Work",
    "call",
]
