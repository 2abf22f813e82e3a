"""Observations and steps as plain JSON for other programs. Bytes are text, or base64 where they are none."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from minisandbox.errors import UsageError
from minisandbox.rollout.policy import PolicyFaultError, Told
from minisandbox.rollout.spec import Action, Observation, Outcome, Step, Turn

_BYTES = ("stdin", "content", "stdout", "stderr")
"""The fields that hold bytes, of actions and outcomes; beside each, NAME_base64 may stand for it."""


def told_fields(told: Told) -> dict[str, Any]:
    """Return what a policy is told before the first observation."""
    fields: dict[str, Any] = msgspec.to_builtins(told)
    return {"type": "begin"} | fields | {"history": [turn_fields(turn) for turn in told.history]}


def turn_fields(turn: Turn) -> dict[str, Any]:
    """Return a turn."""
    fields: dict[str, Any] = msgspec.to_builtins(turn)
    return fields | {"action": _with_text(turn.action), "outcome": _with_text(turn.outcome)}


def observation_fields(observation: Observation) -> dict[str, Any]:
    """Return an observation."""
    fields: dict[str, Any] = {"type": "observation"} | msgspec.to_builtins(observation)
    return fields | {"outcome": observation.outcome and _with_text(observation.outcome)}


def _with_text(value: Action | Outcome) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(value)
    for name in _BYTES:
        if isinstance(data := getattr(value, name, None), bytes):
            fields |= bytes_fields(name, data)
    return fields


def bytes_fields(name: str, data: bytes) -> dict[str, str | None]:
    """Return bytes as a text, or as null with base64 beside it where they are not valid UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(data).decode()}


def step_of(fields: Any) -> Step:
    """Return the step that plain JSON says. Raises PolicyFaultError for what is none."""
    try:
        return msgspec.convert({**fields, "action": _with_base64(fields["action"])}, _Strict).step
    except (msgspec.ValidationError, UsageError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise PolicyFaultError(f"no step: {type(error).__name__}: {str(error)[:300]}") from error


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step in which nothing may stand that is not known."""

    action: Action
    tokens: int = 0
    data: dict[str, Any] = {}
    type: str = "step"

    @property
    def step(self) -> Step:
        return Step(action=self.action, tokens=self.tokens, data=self.data)


def _with_base64(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action whose bytes are all in base64, as msgspec reads them."""
    made = dict(action)
    for name in _BYTES:
        encoded = made.pop(f"{name}_base64", None)
        text = made.pop(name, None)
        if encoded is not None:
            made[name] = encoded
        elif text is not None:
            made[name] = base64.b64encode(text.encode()).decode()
    return made
