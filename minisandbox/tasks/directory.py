"""A task from its directory, in the Harbor format: the strict reader. It writes nothing, and follows no link.

task.toml          the tables of `minisandbox.tasks.tables`
instruction.md     what is told to who solves it
environment/files/ what lies in the directory of the artifacts at the beginning; a Dockerfile beside it is not built
tests/             what it is judged by
solution/          the submission that solves it, or solve.sh, which makes it
accepted/NAME/     other submissions that must pass
rejected/NAME/     submissions that must not
certificate.json   what `minisandbox task check` found
"""

from __future__ import annotations

import math
import os
import stat
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from minisandbox.document import Document, Key, read_document
from minisandbox.errors import LocatedError, TaskError
from minisandbox.judge.assignment import Assignment, FunctionWork, Work
from minisandbox.judge.kind import kind_of
from minisandbox.judge.load import FILE_NAME as JUDGE_FILE
from minisandbox.judge.load import assignment_of, load_task, read_plain, work_of
from minisandbox.tasks.calls import read_calls
from minisandbox.tasks.tables import OwnTable, TaskTable
from minisandbox.tasks.task import GENERATED_TESTS, Agent, File, Files, Task

FILE_NAME = "task.toml"
INSTRUCTION = "instruction.md"
KNOWN = frozenset(
    (
        FILE_NAME,
        INSTRUCTION,
        "certificate.json",
        "environment",
        "tests",
        "solution",
        "accepted",
        "rejected",
        "README.md",
        "files",
        "base",
    )
)
"""What a task's directory holds."""

KIND_TABLES = frozenset({"stdio", "function", "pytest", "script", "state", "performance"})
HARBOR: dict[str, object] = {"script": {}}
"""How a task is judged that says nothing about it and has tests/test.sh."""

MAX_INSTRUCTION_BYTES = 1 << 20
MAX_FILES = 5000
MAX_FILE_BYTES = 16 << 20
MAX_TREE_BYTES = 64 << 20


def load_task_directory(directory: Path) -> Task:
    """Return the task in a directory. Raises TaskError, which names file and line, where anything is wrong."""
    if not directory.is_dir():
        raise TaskError("there is no such directory", directory)
    if (directory / JUDGE_FILE).exists():
        raise TaskError(f"contradicts {JUDGE_FILE} beside it; keep one", directory / FILE_NAME)
    document = read_document(directory / FILE_NAME, TaskError)
    with document.at("minisandbox"):  # its limits are checked where they are made
        table = document.convert(TaskTable)
    _refuse_contradictions(directory, document, table)
    name = table.task.get("name") or table.minisandbox.name or directory.resolve().name
    if not isinstance(name, str) or not name.isprintable() or len(name) > 200:
        raise document.error(("task", "name"), "a name is a printable text of 200 letters at most")
    return Task(
        name=name,
        instruction=_instruction(directory),
        assignment=_assignment(name, table, directory, document),
        files=read_files(directory / "environment" / "files"),
        solution=read_files(directory / "solution"),
        accepted=_named(directory / "accepted"),
        rejected=_named(directory / "rejected"),
        agent=Agent(
            timeout_s=table.agent.timeout_sec,
            memory_bytes=table.environment.memory_mb and table.environment.memory_mb << 20,
            warm=_warm(table, document),
        ),
        metadata=table.metadata,
    )


def _warm(table: TaskTable, document: Document) -> tuple[str, ...] | None:
    for name in table.minisandbox.warm or ():
        if not all(part.isidentifier() for part in name.split(".")):
            raise document.error(("minisandbox", "warm"), f"warm: {name!r} cannot be the name of a module")
    return table.minisandbox.warm


def load_assignment(directory: Path) -> Assignment:
    """Return what a directory is judged by, without a certificate, whichever of the two forms it has."""
    if (directory / FILE_NAME).exists():
        return load_task_directory(directory).assignment
    return load_task(directory)


@dataclass(frozen=True, slots=True)
class _Section(Document):
    """A table of a document: errors about its keys are found in all of it."""

    above: Key = ()

    def error(self, key: Key, message: str) -> LocatedError:
        """Return the error about a key of the table."""
        return Document.error(self, (*self.above, *key), message)


def _assignment(name: str, table: TaskTable, directory: Path, document: Document) -> Assignment:
    own = msgspec.structs.replace(table.minisandbox, name=name)
    section = _Section(document.path, document.text, document.error_type, ("minisandbox",))
    given = tomllib.loads(document.text).get("minisandbox", {})
    kinds = sorted(given.keys() & KIND_TABLES)
    if len(kinds) > 1:
        raise document.error(("minisandbox", kinds[1]), f"a task is of one kind, not both {' and '.join(kinds)}")
    if own.function is not None and not 0.0 <= (own.function.tolerance or 0.0) < math.inf:
        raise section.error(("function", "tolerance"), "a tolerance is a number from 0")
    if not kinds and (directory / "tests" / "test.sh").exists():
        own = msgspec.structs.replace(own, script=msgspec.convert(HARBOR, OwnTable).script)
    work: Callable[[], Work] = partial(work_of, own, directory, section)
    if own.calls is not None:
        work = partial(_with_calls, own.calls, own, directory, section)
    made = assignment_of(own, section, work)
    if "integrity" not in given:
        made = msgspec.structs.replace(made, integrity=kind_of(made).CEILING)
    variables = {**table.environment.env, **table.verifier.env, **made.environment.variables}
    return msgspec.structs.replace(
        made, name=name, environment=msgspec.structs.replace(made.environment, variables=variables)
    )


def _with_calls(calls: str, own: OwnTable, directory: Path, section: _Section) -> FunctionWork:
    if own.function is None or own.function.calls:
        raise section.error(("calls",), "a file of calls needs [minisandbox.function], and no calls in it")
    path = directory / calls
    if not path.resolve().is_relative_to(directory.resolve()):
        raise section.error(("calls",), "the file of calls must be in the directory of the task")
    return FunctionWork(
        module=own.function.module,
        tolerance=own.function.tolerance,
        calls=read_calls(read_plain(path, MAX_FILE_BYTES), path),
    )


def _refuse_contradictions(directory: Path, document: Document, table: TaskTable) -> None:
    own = table.minisandbox
    if table.version is not None and table.schema_version is not None and table.version != table.schema_version:
        raise document.error(("version",), "version and schema_version differ")
    generated = table.metadata.get(GENERATED_TESTS, [])
    if not isinstance(generated, list) or not all(isinstance(name, str) for name in generated):
        raise document.error(("metadata", GENERATED_TESTS), f"{GENERATED_TESTS}: a list of ids of tests")
    says_where = "environment" in tomllib.loads(document.text).get("minisandbox", {})
    if (directory / "environment" / "Dockerfile").exists() and not says_where:
        raise document.error(
            ("minisandbox",),
            "environment/Dockerfile is not built here: name a root file system in [minisandbox.environment]",
        )
    timeouts = {
        ("verifier", "timeout_sec"): table.verifier.timeout_sec,
        ("agent", "timeout_sec"): table.agent.timeout_sec,
    }
    for key, value in timeouts.items():
        if value is not None and not 0 < value < 1e6:
            raise document.error(key, f"{'.'.join(key)}: a time in seconds, above 0 and below 1e6")
    unknown = sorted(path.name for path in directory.iterdir() if path.name not in KNOWN)
    if unknown:
        raise TaskError(f"{unknown[0]} is nothing that a task has; it has {', '.join(sorted(KNOWN))}", directory)
    if not (directory / "tests").is_dir() and not (own.function is not None and own.function.calls):
        raise TaskError("a task without tests: there is no directory tests/", directory)


def _instruction(directory: Path) -> str:
    path = directory / INSTRUCTION
    try:
        text = read_plain(path, MAX_INSTRUCTION_BYTES).decode()
    except UnicodeDecodeError as error:
        raise TaskError("not UTF-8", path) from error
    if not text.strip():
        raise TaskError("an instruction that says nothing", path)
    return text


def _named(directory: Path) -> dict[str, Files]:
    if not directory.is_dir():
        return {}
    return {path.name: read_files(path) for path in sorted(directory.iterdir())}


def read_files(directory: Path) -> Files:
    """Return the files below a directory, which need not be there. Raises TaskError for anything but plain files."""
    files: Files = {}
    total = 0
    if not directory.exists():
        return files
    for at, names, leaves in os.walk(directory, onerror=_raise):
        names.sort()
        for leaf in [*sorted(leaves), *names]:
            path = Path(at, leaf)
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode):
                raise TaskError("neither a plain file nor a directory", path)
            content = read_plain(path, MAX_FILE_BYTES)
            total += len(content)
            if len(files) >= MAX_FILES or total > MAX_TREE_BYTES:
                raise TaskError(f"more than {MAX_FILES} files or {MAX_TREE_BYTES} bytes", directory)
            files[str(path.relative_to(directory))] = File(content=content, executable=bool(status.st_mode & 0o100))
    return files


def _raise(error: OSError) -> None:
    raise TaskError(f"cannot be read: {error.strerror}", Path(error.filename)) from error
