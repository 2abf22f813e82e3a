"""The tables of `judge.toml`, as they are written. Values only; `minisandbox.judge.load` makes a task of them."""

from __future__ import annotations

from typing import Any

import msgspec

from minisandbox.judge.assignment import INFRA, INNER_ROOT, Declared, Environment, Service
from minisandbox.judge.checkers import Checker, Exact, Tokens
from minisandbox.judge.decide import Scoring
from minisandbox.judge.spec import Budget, Integrity
from minisandbox.judge.timing import Bound


class ProgramTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program of the task's own."""

    file: str
    language: str
    convention: str = "testlib"


class StdioTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[stdio]`."""

    language: str
    source: str
    tests: str = "tests"
    checker: Checker = Tokens()
    external: ProgramTable | None = None
    interactor: ProgramTable | None = None


class CallTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[function.calls]]`."""

    id: str
    function: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    expected: Any = None
    raises: str | None = None


class FunctionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[function]`."""

    module: str
    tolerance: float | None = None
    calls: list[CallTable] = []


class SuiteTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pytest]`."""

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


class ScriptTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[script]`."""

    files: str = "tests"
    command: tuple[str, ...] = ("/bin/bash", "/tests/test.sh")
    rewards: tuple[str, ...] = ("reward",)
    pass_at: float = 1.0
    root: str = INNER_ROOT
    user: str = "root"


class CheckTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[state.checks]]`."""

    id: str
    path: str | None = None
    port: int | None = None
    request: str = ""
    http: bool = False
    within_s: float = 30.0
    answer: str | None = None
    checker: Checker = Exact()


class StateTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[state]`."""

    checks: list[CheckTable]
    services: tuple[Service, ...] = ()
    root: str = INNER_ROOT


class PerformanceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[performance]`."""

    module: str
    function: str
    reference: str = "tests/reference.py"
    inputs: str = "tests/inputs.py"
    bounds: tuple[Bound, ...]
    calls: int = 10
    tolerance: float | None = None
    rounds: int = 5
    most_rounds: int = 15
    margin: float = 0.05
    floor: float | None = None


class JudgeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says of a task that the judge must know."""

    format: int
    name: str
    stdio: StdioTable | None = None
    function: FunctionTable | None = None
    pytest: SuiteTable | None = None
    script: ScriptTable | None = None
    state: StateTable | None = None
    performance: PerformanceTable | None = None
    artifacts: Declared = Declared()
    environment: Environment = Environment()
    budget: Budget = Budget()
    scoring: Scoring = Scoring.ALL
    integrity: Integrity = Integrity.L4
    visible: tuple[str, ...] = ()
