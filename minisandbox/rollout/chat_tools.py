"""The tools of a chat model: their schemas, what its calls mean, and an outcome as a text for it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from minisandbox.rollout.policy import PolicyFaultError
from minisandbox.rollout.spec import Action, Outcome
from minisandbox.rollout.wire import step_of

SYSTEM = (
    "You work on a task in a Linux sandbox without a network. Use the tools; what you leave in the directory of the "
    "task is judged when you call submit."
)


def _tool(name: str, description: str, **arguments: tuple[str, str]) -> dict[str, Any]:
    """Return a tool. An argument is its type, with "?" where it may be left out, and what it means."""
    properties = {key: {"type": kind.rstrip("?"), "description": text} for key, (kind, text) in arguments.items()}
    required = [key for key, (kind, _) in arguments.items() if not kind.endswith("?")]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_LIKE_A_PROGRAM = {
    "stdin": ("string?", "what it can read"),
    "wall_time_s": ("number?", "seconds after which it is killed"),
}
_PATH = ("string", "absolute, or relative to the directory of the task")

TOOLS = [
    _tool(
        "run",
        "Run a command by /bin/sh in the directory of the task, and see its output and exit code.",
        command=("string", "the command"),
        **_LIKE_A_PROGRAM,
    ),
    _tool(
        "python",
        "Run Python code by python3 in the directory of the task, and see its output and exit code.",
        code=("string", "the code"),
        **_LIKE_A_PROGRAM,
    ),
    _tool("read", "See a file.", path=_PATH),
    _tool(
        "write",
        "Make a file, or write it anew.",
        path=_PATH,
        content=("string", "all of the file"),
        executable=("boolean?", "whether it can be run"),
    ),
    _tool(
        "edit",
        "Put one text for another that is in a file exactly once.",
        path=_PATH,
        old=("string", "the text that is there"),
        new=("string", "the text for it"),
    ),
    _tool("submit", "Say that the work is done.", note=("string?", "anything you want to say about it")),
]


class Function(msgspec.Struct, frozen=True):
    """What is called."""

    name: str
    arguments: str = "{}"
    """JSON, as the model wrote it."""


class Call(msgspec.Struct, frozen=True):
    """A call of a tool by a model."""

    function: Function
    id: str = ""


class Message(msgspec.Struct, frozen=True):
    """What a model said, as far as it matters here."""

    content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(msgspec.Struct, frozen=True):
    """One of several answers; the first is taken."""

    message: Message


class Spent(msgspec.Struct, frozen=True):
    """What the server counted."""

    completion_tokens: int = 0
    prompt_tokens: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What the server answers."""

    choices: list[Choice]
    usage: Spent | None = None


def action_of(call: Call) -> Action:
    """Return what a call means. Raises PolicyFaultError for what is no call of a tool."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise PolicyFaultError(f"the arguments of {call.function.name} are no JSON object: {error}") from error
    return step_of({"action": {**arguments, "type": call.function.name}}).action


def outcome_text(outcome: Outcome) -> str:
    """Return an outcome as a model reads it."""
    if outcome.error is not None:
        return f"error: {outcome.error}"
    parts = [outcome.stdout.decode(errors="replace")]
    if outcome.stderr:
        parts.append(f"[stderr]\n{outcome.stderr.decode(errors='replace')}")
    if outcome.truncated:
        parts.append("[the middle of long output was left out]")
    if outcome.exit_reason is not None:
        code = outcome.exit_code if outcome.exit_code is not None else f"signal {outcome.signal}"
        parts.append(f"[{outcome.exit_reason.value}, {code}]")
    return "\n".join(part for part in parts if part) or "[done]"
