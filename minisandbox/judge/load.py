"""A task from a directory: `judge.toml`, and the tests beside it. Nothing but this module knows that form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from minisandbox.document import Document, read_document
from minisandbox.errors import TaskError
from minisandbox.judge.assignment import (
    INFRA,
    INNER_ROOT,
    Assignment,
    Call,
    Declared,
    Environment,
    External,
    FileCheck,
    FunctionWork,
    Interactive,
    Program,
    RequestCheck,
    ScriptWork,
    Service,
    StateWork,
    StdioWork,
    SuiteWork,
    TaskFile,
    TestCase,
    Work,
)
from minisandbox.judge.checkers import Checker, Exact, Tokens
from minisandbox.judge.decide import Scoring
from minisandbox.judge.frames import FrameError, encode
from minisandbox.judge.spec import Budget, Integrity

FILE_NAME = "judge.toml"
MAX_TEST_BYTES = 64 << 20


class _Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file: str
    language: str
    convention: str = "testlib"


class _Stdio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    language: str
    source: str
    tests: str = "tests"
    checker: Checker = Tokens()
    external: _Program | None = None
    interactor: _Program | None = None


class _Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    function: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    expected: Any = None
    raises: str | None = None


class _Function(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    module: str
    tolerance: float | None = None
    calls: list[_Call] = []


class _Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    files: str = "files"
    base: str | None = None
    test_roots: tuple[str, ...] = ("tests",)
    root: str = INNER_ROOT
    paths: tuple[str, ...] = (".",)
    python: str = "python3"
    conftest: bool = False
    plugins: tuple[str, ...] = ()
    infra: tuple[str, ...] = INFRA


class _Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    files: str = "tests"
    command: tuple[str, ...] = ("/bin/bash", "/tests/test.sh")
    rewards: tuple[str, ...] = ("reward",)
    pass_at: float = 1.0
    root: str = INNER_ROOT
    user: str = "root"


class _Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    path: str | None = None
    port: int | None = None
    request: str = ""
    http: bool = False
    within_s: float = 30.0
    answer: str | None = None
    checker: Checker = Exact()


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    checks: list[_Check]
    services: tuple[Service, ...] = ()
    root: str = INNER_ROOT


class JudgeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says of a task that the judge must know."""

    format: int
    name: str
    stdio: _Stdio | None = None
    function: _Function | None = None
    pytest: _Suite | None = None
    script: _Script | None = None
    state: _State | None = None
    artifacts: Declared = Declared()
    environment: Environment = Environment()
    budget: Budget = Budget()
    scoring: Scoring = Scoring.ALL
    integrity: Integrity = Integrity.L4


def load_task(directory: Path) -> Assignment:
    """Return the task in a directory, without a certificate. Raises TaskError where it is wrong or has no tests."""
    document = read_document(directory / FILE_NAME, TaskError)
    with document.at():
        file = document.convert(JudgeTable)
    return assignment_of(file, document, partial(work_of, file, directory, document))


def assignment_of(file: JudgeTable, document: Document, work: Callable[[], Work]) -> Assignment:
    """Return the task that a table describes, with this work, which is made when the table is known to be one."""
    if file.format != 1:
        raise document.error(("format",), f"format {file.format} is not known; this is format 1")
    return Assignment(
        name=file.name,
        work=work(),
        declared=file.artifacts,
        environment=file.environment,
        budget=file.budget,
        scoring=file.scoring,
        integrity=file.integrity,
    )


def work_of(file: JudgeTable, directory: Path, document: Document) -> Work:
    """Return what a table and the files in its directory say is to be judged."""
    tables = {
        "stdio": file.stdio,
        "function": file.function,
        "pytest": file.pytest,
        "script": file.script,
        "state": file.state,
    }
    given = [table for table in tables.values() if table is not None]
    if len(given) != 1:
        raise TaskError(f"a task has exactly one of {', '.join(f'[{name}]' for name in tables)}", document.path)
    table = given[0]
    if isinstance(table, _Stdio):
        return _stdio(table, directory, document)
    if isinstance(table, _Function):
        return _function(table, document)
    if isinstance(table, _State):
        return _state(table, document)
    with document.at("pytest" if isinstance(table, _Suite) else "script"):
        return _suite(table, directory, document) if isinstance(table, _Suite) else _script(table, directory, document)


def _state(table: _State, document: Document) -> StateWork:
    checks: list[FileCheck | RequestCheck] = []
    for number, item in enumerate(table.checks):
        answer = None if item.answer is None else item.answer.encode()
        if (item.path is None) == (item.port is None):
            raise document.error(("state", "checks", number), "a check has exactly one of path and port")
        if item.path is not None:
            checks.append(FileCheck(id=item.id, path=item.path, answer=answer, checker=item.checker))
        elif item.port is not None:
            request = RequestCheck(
                id=item.id,
                port=item.port,
                request=item.request.encode(),
                answer=answer or b"",
                checker=item.checker,
                http=item.http,
                within_s=item.within_s,
            )
            checks.append(request)
    if not checks or len({check.id for check in checks}) != len(checks):
        raise document.error(("state", "checks"), "there is no test, or two checks have one id")
    return StateWork(checks=tuple(checks), services=table.services, root=table.root)


def _suite(table: _Suite, directory: Path, document: Document) -> SuiteWork:
    fields = msgspec.structs.asdict(table)
    base = () if table.base is None else read_tree(directory / table.base)
    if not table.fail_to_pass and not table.pass_to_pass:
        raise document.error(("pytest",), "there is no test: neither fail_to_pass nor pass_to_pass has one")
    return SuiteWork(**{**fields, "files": read_tree(directory / table.files), "base": base})


def _script(table: _Script, directory: Path, document: Document) -> ScriptWork:
    if not table.rewards or len(set(table.rewards)) != len(table.rewards):
        raise document.error(("script", "rewards"), "there is no test: rewards needs names, each once")
    return ScriptWork(**{**msgspec.structs.asdict(table), "files": read_tree(directory / table.files)})


def read_tree(top: Path) -> tuple[TaskFile, ...]:
    """Return the files below a directory, sorted. Raises TaskError where it holds anything but files."""
    if not top.is_dir():
        raise TaskError("there is no such directory", top)
    found = []
    for path in sorted(top.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise TaskError("neither a file nor a directory", path)
        if path.is_file():
            executable = bool(path.stat().st_mode & 0o111)
            found.append(TaskFile(path=str(path.relative_to(top)), content=_read(path), executable=executable))
    return tuple(found)


def _stdio(table: _Stdio, directory: Path, document: Document) -> StdioWork:
    checker: Checker | External | Interactive = table.checker
    if table.external is not None and table.interactor is not None:
        raise document.error(("stdio",), "a task has one of external and interactor, not both")
    if table.external is not None:
        checker = External(program=_program(table.external, directory))
    if table.interactor is not None:
        checker = Interactive(program=_program(table.interactor, directory))
    inputs = sorted((directory / table.tests).glob("*.in"))
    answers = {path.stem: path for path in (directory / table.tests).glob("*.ans")}
    if not inputs:
        raise document.error(("stdio", "tests"), f"there is no test: no file *.in in {table.tests}")
    needs_answers = table.external is None and table.interactor is None
    cases = []
    for path in inputs:
        if needs_answers and path.stem not in answers:
            raise TaskError(f"there is no {path.stem}.ans beside it, which its output is compared with", path)
        answer = answers.pop(path.stem, None)
        content = b"" if answer is None else _read(answer)
        cases.append(
            TestCase(id=path.stem, input=_read(path), answer=content, files=_files(path.with_suffix(".files")))
        )
    if answers:
        raise TaskError("there is no input of that name beside it", min(answers.values()))
    return StdioWork(language=table.language, source=table.source, cases=tuple(cases), checker=checker)


def _files(directory: Path) -> dict[str, bytes]:
    """Return the files below a directory, which need not be there."""
    paths = sorted(path for path in directory.rglob("*") if not path.is_dir())
    return {str(path.relative_to(directory)): _read(path) for path in paths}


def _program(table: _Program, directory: Path) -> Program:
    return Program(source=_read(directory / table.file), language=table.language, convention=table.convention)


def _function(table: _Function, document: Document) -> FunctionWork:
    if not table.calls:
        raise document.error(("function", "calls"), "there is no test: no calls")
    calls = []
    for number, item in enumerate(table.calls):
        try:
            calls.append(
                Call(
                    id=item.id,
                    function=item.function,
                    arguments=encode((tuple(item.args), item.kwargs)),
                    expected=encode(item.expected),
                    raises=item.raises,
                )
            )
        except FrameError as error:
            raise document.error(("function", "calls", number), f"not plain data: {error}") from error
    if len({call.id for call in calls}) != len(calls):
        raise document.error(("function", "calls"), "two calls have one id")
    return FunctionWork(module=table.module, calls=tuple(calls), tolerance=table.tolerance)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEST_BYTES + 1)
    except OSError as error:
        raise TaskError(f"cannot be read: {error.strerror}", path) from error
    if len(content) > MAX_TEST_BYTES:
        raise TaskError(f"larger than {MAX_TEST_BYTES} bytes", path)
    return content
