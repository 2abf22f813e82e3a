"""The tables of `task.toml`: those of the Harbor format, and `[minisandbox]` with what that lacks. Values only."""

from __future__ import annotations

from typing import Any

import msgspec

from minisandbox.judge.tables import JudgeTable


class Verifier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[verifier]`: what the tests may use."""

    timeout_sec: float | None = None
    env: dict[str, str] = {}


class AgentTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[agent]`: what whoever solves the task may use."""

    timeout_sec: float | None = None
    user: str | None = None


class EnvironmentTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[environment]`: the image and its size. What builds and pulls images is read and not used."""

    build_timeout_sec: float | None = None
    docker_image: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    memory: str | None = None
    storage: str | None = None
    gpus: int = 0
    allow_internet: bool | None = None
    env: dict[str, str] = {}


class SolutionTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[solution]`: variables for `solve.sh`."""

    env: dict[str, str] = {}


class OwnTable(JudgeTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[minisandbox]`: what is judged, as in `judge.toml`; the name is that of the task."""

    format: int = 1
    name: str = ""
    calls: str | None = None
    """For a function: a file of the directory with calls, one a line, see `minisandbox.tasks.calls`."""
    warm: tuple[str, ...] | None = None
    """Modules that a Python has imported before an episode begins; none, and it has none of them."""


class TaskTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of `task.toml`."""

    version: str | None = None
    schema_version: str | None = None
    task: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    source: str | None = None
    verifier: Verifier = Verifier()
    agent: AgentTable = AgentTable()
    environment: EnvironmentTable = EnvironmentTable()
    solution: SolutionTable = SolutionTable()
    minisandbox: OwnTable = OwnTable()
