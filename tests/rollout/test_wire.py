"""Plain JSON in and out: junk is a fault of the policy and nothing else, and what is a step stays what it is."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, strategies

from minisandbox.rollout.chat_tools import TOOLS, Call, Function, action_of, outcome_text
from minisandbox.rollout.policy import PolicyFaultError, checked_step
from minisandbox.rollout.spec import Action, Edit, Observation, Outcome, Python, Read, Run, Step, Submit, Turn, Write
from minisandbox.rollout.wire import observation_fields, step_of, turn_fields
from minisandbox.spec import ExitReason

TEXT = strategies.text(strategies.characters(exclude_categories=["Cs"]))
JUNK = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
)
KEYS = strategies.sampled_from(
    [
        "action",
        "type",
        "command",
        "code",
        "path",
        "content",
        "content_base64",
        "stdin",
        "tokens",
        "data",
        "wall_time_s",
        "old",
    ]
)
ALMOST = strategies.dictionaries(
    KEYS,
    JUNK | strategies.dictionaries(KEYS, JUNK | strategies.sampled_from(["run", "python", "read", "write", "submit"])),
)
ACTIONS: strategies.SearchStrategy[Action] = strategies.one_of(
    strategies.builds(
        Run, command=TEXT, stdin=strategies.binary(), wall_time_s=strategies.none() | strategies.just(1.5)
    ),
    strategies.builds(
        Python, code=TEXT, stdin=strategies.binary(), wall_time_s=strategies.none() | strategies.just(1.5)
    ),
    strategies.builds(Read, path=TEXT),
    strategies.builds(Write, path=TEXT, content=strategies.binary(), executable=strategies.booleans()),
    strategies.builds(Edit, path=TEXT, old=TEXT, new=TEXT),
    strategies.builds(Submit, note=TEXT),
)


@given(JUNK | ALMOST)
def test_junk_is_a_fault_of_the_policy(junk: Any) -> None:
    """And never another exception."""
    try:
        assert isinstance(step_of(junk), Step)
    except PolicyFaultError as fault:
        assert str(fault)


@given(strategies.text() | strategies.binary().map(repr), strategies.sampled_from(["run", "write", "fly", ""]))
def test_junk_as_arguments_is_a_fault_of_the_policy(junk: str, name: str) -> None:
    """Whatever a model writes."""
    try:
        action_of(Call(Function(name, junk)))
    except PolicyFaultError as fault:
        assert str(fault)


@given(ACTIONS)
def test_a_step_survives_the_way_there_and_back(action: Action) -> None:
    """As fields, as JSON, and through the check."""
    step = Step(action=action, tokens=3, data={"a": [1, None]})
    turn = Turn(index=0, action=action, outcome=Outcome(), started_s=0.0, think_s=0.0, act_s=0.0)
    fields = json.loads(json.dumps({"action": turn_fields(turn)["action"], "tokens": 3, "data": {"a": [1, None]}}))

    assert step == step_of(fields) == checked_step(step)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        {"action": None},
        {"action": {"type": "run"}},
        {"action": {"type": "run", "command": "ls", "shell": True}},
        {"action": {"type": "python"}},
        {"action": {"type": "python", "command": "ls"}},
        {"action": {"type": "submit"}, "reward": 1.0},
        {"action": {"type": "write", "path": "x", "content_base64": "?"}},
        {"action": {"type": "write", "path": "x", "content": 5}},
        {"action": {"type": "submit"}, "tokens": "many"},
        {"action": {"type": "submit"}, "data": []},
    ],
)
def test_what_is_no_step_is_refused(fields: Any) -> None:
    """Nothing is guessed, and nothing that is not known is passed over."""
    with pytest.raises(PolicyFaultError):
        step_of(fields)


def test_bytes_are_text_or_base64() -> None:
    """Never both."""
    outcome = Outcome(stdout=b"caf\xc3\xa9", stderr=b"\xff", exit_reason=ExitReason.EXITED, exit_code=0)
    observation = Observation(episode="e", turn=1, instruction="i", directory="/d", outcome=outcome)
    fields = observation_fields(observation)["outcome"]

    assert ("café", None, "/w==") == (fields["stdout"], fields["stderr"], fields["stderr_base64"])
    assert "stdout_base64" not in fields
    assert "exited" == fields["exit_reason"]


def test_every_action_is_a_tool() -> None:
    """With exactly its fields, and those required that have no default."""
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(Action)}
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}

    assert kinds.keys() == tools.keys()
    for name, kind in kinds.items():
        fields = msgspec.structs.fields(kind)
        assert {field.name for field in fields} == tools[str(name)]["properties"].keys()
        assert [field.name for field in fields if field.required] == tools[str(name)]["required"]


def test_an_outcome_says_to_a_model_what_matters() -> None:
    """Output, errors, that something is missing, and how it ended."""
    killed = Outcome(stdout=b"a\xff", stderr=b"b", truncated=True, exit_reason=ExitReason.WALL_TIME, signal=9)

    assert "a\ufffd\n[stderr]\nb\n[the middle of long output was left out]\n[wall_time, signal 9]" == outcome_text(
        killed
    )
    assert "error: no such file" == outcome_text(Outcome(error="no such file"))
    assert "[done]" == outcome_text(Outcome())
