"""A policy by the text that a person writes for it: oracle, noop, cheat, python:..., command:... or http(s)://..."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

from minisandbox.errors import UsageError
from minisandbox.rollout.builtin import NOOP, ORACLE
from minisandbox.rollout.cheat import CHEAT
from minisandbox.rollout.policy import Player, TrustedPlayer

BUILT_IN: dict[str, Player | TrustedPlayer] = {each.name: each for each in (ORACLE, NOOP, CHEAT)}
_NAMED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)

FORMS = f"{', '.join(BUILT_IN)}, python:MODULE:FUNCTION, command:PROGRAM ..., or http(s)://HOST:PORT/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What policies beyond the built-in ones need."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables of a program."""
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = "default"
    parameters: Mapping[str, object] = field(default_factory=dict)


def choose_player(text: str, asking: Asking) -> Player | TrustedPlayer:
    """Return the policy of a text, which is its name in the records, too, unless it is NAME=TEXT.

    Raises UsageError for none.
    """
    if named := _NAMED.fullmatch(text):
        return dataclasses.replace(choose_player(named[2], asking), name=named[1])
    if text in BUILT_IN:
        return BUILT_IN[text]
    kind, _, rest = text.partition(":")
    if kind == "python":
        from minisandbox.rollout.function import find_function, function_player

        return function_player(text, find_function(rest))
    if kind == "command":
        from minisandbox.rollout.command import command_player

        argv = shlex.split(rest)
        if not argv or shutil.which(argv[0], path=asking.environment.get("PATH")) is None:
            raise UsageError(f"the policy {text!r} names no program that can be run")
        return command_player(text, argv, asking.environment)
    if kind in ("http", "https"):
        try:
            from minisandbox.rollout.chat import Endpoint, chat_player
        except ImportError as error:
            raise UsageError(f"{text} needs the package httpx: pip install minisandbox[rollout]") from error

        endpoint = Endpoint(url=text, model=asking.model, parameters=dict(asking.parameters))
        return chat_player(text, endpoint, asking.headers)
    raise UsageError(f"{text!r} is no policy: give {FORMS}")
