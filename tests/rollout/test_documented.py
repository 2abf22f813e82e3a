"""The manual has every field of the values of the loop, and every name that they can have."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from minisandbox.rollout import chat, concurrency, policy, scheduler, spec

MANUAL = (Path(__file__).parents[2] / "docs" / "manual.md").read_text()
SECTION = MANUAL[MANUAL.index("\n## Rollouts\n") :].split("\n## ", 2)[1]
NAMES = set(re.findall(r"`([\w.]+)`", SECTION)) | set(re.findall(r"`(\w+)\(", SECTION))


def structs_of(module: ModuleType) -> list[type[msgspec.Struct]]:
    """Return the values that a module defines."""
    things = vars(module).values()
    return [
        thing
        for thing in things
        if isinstance(thing, type) and issubclass(thing, msgspec.Struct) and thing.__module__ == module.__name__
    ]


@pytest.mark.parametrize(
    "struct",
    [*structs_of(spec), policy.Told, chat.Endpoint, scheduler.Retry],
    ids=lambda struct: struct.__name__,
)
def test_every_field_is_in_the_section(struct: type[msgspec.Struct]) -> None:
    """By its name, as code."""
    assert set() == set(struct.__struct_fields__) - NAMES


def test_every_end_is_in_the_section() -> None:
    """With what it means."""
    ends: list[Enum] = list(spec.End)

    assert set() == {end.value for end in ends} - NAMES
    assert {"least", "most"} == set(concurrency.Concurrency.__struct_fields__)
