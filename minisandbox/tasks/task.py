"""A task as a value: what is told to who solves it, where it works, what it is judged by, and a solution.

Only the instruction and the files of the environment are for who solves it; everything else is for the judge alone.
This module does no I/O.
"""

from __future__ import annotations

from typing import Any

import msgspec

from minisandbox.judge.assignment import Assignment
from minisandbox.judge.spec import digest_of


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a task."""

    content: bytes
    executable: bool = False


Files = dict[str, File]
"""Files by their path, which is relative and of plain names."""

SOLVE = "solve.sh"
"""When a solution has this file, it is a script that solves the task where the task is worked on; else it is the
submission itself."""


GENERATED_TESTS = "generated_tests"
"""The key of the metadata with the ids of tests that nobody wrote."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever solves the task gets."""

    timeout_s: float | None = None
    memory_bytes: int | None = None
    """Of the sandbox in which it works; None leaves that to who opens it."""
    warm: tuple[str, ...] | None = None
    """Modules that a Python has imported before the work begins; None is no warm Python."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task."""

    name: str
    instruction: str
    assignment: Assignment
    files: Files = {}
    """What lies in the directory of the artifacts at the beginning."""
    solution: Files = {}
    accepted: dict[str, Files] = {}
    """Other submissions that must pass, by name."""
    rejected: dict[str, Files] = {}
    """Submissions that must not."""
    agent: Agent = Agent()
    metadata: dict[str, Any] = {}

    @property
    def generated_tests(self) -> tuple[str, ...]:
        """The ids of tests that nobody wrote: what is right there is what the solutions say."""
        return tuple(self.metadata.get(GENERATED_TESTS, ()))

    @property
    def digest(self) -> str:
        """The digest of all of it, a certificate aside, which is made for it."""
        return digest_of(msgspec.structs.replace(self, assignment=self.bare))

    @property
    def bare(self) -> Assignment:
        """What it is judged by, without a certificate."""
        return msgspec.structs.replace(self.assignment, certificate=None)
