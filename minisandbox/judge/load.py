"""A task from a directory: `judge.toml`, and the tests beside it. Nothing but this module knows that form."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from minisandbox.document import Document, read_document
from minisandbox.errors import TaskError
from minisandbox.judge.assignment import (
    Assignment,
    Call,
    External,
    FileCheck,
    FunctionWork,
    Interactive,
    Program,
    RequestCheck,
    ScriptWork,
    StateWork,
    StdioWork,
    SuiteWork,
    TaskFile,
    TestCase,
    Work,
)
from minisandbox.judge.checkers import Checker
from minisandbox.judge.frames import FrameError, encode
from minisandbox.judge.tables import (
    FunctionTable,
    JudgeTable,
    PerformanceTable,
    ProgramTable,
    ScriptTable,
    StateTable,
    StdioTable,
    SuiteTable,
)
from minisandbox.judge.timing import PerformanceWork

FILE_NAME = "judge.toml"
MAX_TEST_BYTES = 64 << 20


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
    made = Assignment(
        name=file.name,
        work=work(),
        declared=file.artifacts,
        environment=file.environment,
        budget=file.budget,
        scoring=file.scoring,
        integrity=file.integrity,
        visible=file.visible,
    )
    if strange := sorted({*file.visible} - {*test_ids(made.work)}):
        raise document.error(("visible",), f"no test has the id {strange[0]!r}")
    return made


def test_ids(work: Work) -> tuple[str, ...]:
    """Return the ids of the tests that count."""
    if isinstance(work, SuiteWork):
        return (*work.fail_to_pass, *work.pass_to_pass)
    if isinstance(work, ScriptWork):
        return work.rewards
    if isinstance(work, StdioWork):
        return tuple(case.id for case in work.cases)
    if isinstance(work, FunctionWork):
        return tuple(call.id for call in work.calls)
    return tuple(each.id for each in (work.checks if isinstance(work, StateWork) else work.bounds))


def work_of(file: JudgeTable, directory: Path, document: Document) -> Work:
    """Return what a table and the files in its directory say is to be judged."""
    tables = {
        "stdio": file.stdio,
        "function": file.function,
        "pytest": file.pytest,
        "script": file.script,
        "state": file.state,
        "performance": file.performance,
    }
    given = [table for table in tables.values() if table is not None]
    if len(given) != 1:
        raise TaskError(f"a task has exactly one of {', '.join(f'[{name}]' for name in tables)}", document.path)
    table = given[0]
    if isinstance(table, StdioTable):
        return _stdio(table, directory, document)
    if isinstance(table, FunctionTable):
        with document.at("function"):
            return _function(table, document)
    if isinstance(table, StateTable):
        with document.at("state"):
            return _state(table, document)
    if isinstance(table, PerformanceTable):
        with document.at("performance"):
            return _performance(table, directory, document)
    with document.at("pytest" if isinstance(table, SuiteTable) else "script"):
        return (
            _suite(table, directory, document) if isinstance(table, SuiteTable) else _script(table, directory, document)
        )


def _state(table: StateTable, document: Document) -> StateWork:
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


def _suite(table: SuiteTable, directory: Path, document: Document) -> SuiteWork:
    fields = msgspec.structs.asdict(table)
    base = () if table.base is None else read_tree(_inside(directory, table.base))
    if not table.fail_to_pass and not table.pass_to_pass:
        raise document.error(("pytest",), "there is no test: neither fail_to_pass nor pass_to_pass has one")
    return SuiteWork(**{**fields, "files": read_tree(_inside(directory, table.files)), "base": base})


def _script(table: ScriptTable, directory: Path, document: Document) -> ScriptWork:
    if not table.rewards or len(set(table.rewards)) != len(table.rewards):
        raise document.error(("script", "rewards"), "there is no test: rewards needs names, each once")
    return ScriptWork(**{**msgspec.structs.asdict(table), "files": read_tree(_inside(directory, table.files))})


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


def _stdio(table: StdioTable, directory: Path, document: Document) -> StdioWork:
    checker: Checker | External | Interactive = table.checker
    if table.external is not None and table.interactor is not None:
        raise document.error(("stdio",), "a task has one of external and interactor, not both")
    if table.external is not None:
        checker = External(program=_program(table.external, directory))
    if table.interactor is not None:
        checker = Interactive(program=_program(table.interactor, directory))
    tests = _inside(directory, table.tests)
    inputs = sorted(tests.glob("*.in"))
    answers = {path.stem: path for path in tests.glob("*.ans")}
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


def _program(table: ProgramTable, directory: Path) -> Program:
    return Program(source=_read(_inside(directory, table.file)), language=table.language, convention=table.convention)


def _function(table: FunctionTable, document: Document) -> FunctionWork:
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


def _performance(table: PerformanceTable, directory: Path, document: Document) -> PerformanceWork:
    if not table.bounds or len({bound.id for bound in table.bounds}) != len(table.bounds):
        raise document.error(("performance", "bounds"), "there is no test: no bounds, or two have one id")
    sources = {name: _read(_inside(directory, getattr(table, name))) for name in ("reference", "inputs")}
    return PerformanceWork(**{**msgspec.structs.asdict(table), **sources})


def _inside(directory: Path, name: str) -> Path:
    """Return a path that a task names, below its directory. Raises TaskError for one that leads elsewhere."""
    path = directory / name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise TaskError(f"{name!r} is not in the directory of the task", directory)
    return path


def _read(path: Path) -> bytes:
    return read_plain(path, MAX_TEST_BYTES)


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Return a plain file, and wait for nothing. Raises TaskError for anything else, and for one that is larger."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise TaskError("neither a file nor a directory", path)
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise TaskError(f"cannot be read: {error.strerror}", path) from error
    if len(content) > most_bytes:
        raise TaskError(f"larger than {most_bytes} bytes", path)
    return content
