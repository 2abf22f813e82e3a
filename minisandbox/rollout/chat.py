"""Policies that are a model behind HTTP: any server of the chat completions protocol with function tools.

A server that is not reached, is overloaded or broken is infrastructure: it is asked again, and then the episode is
masked. What the model says is the policy: a call that is none is told to it, and after a few of them the episode ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import trio

from minisandbox.errors import EndpointError, UsageError
from minisandbox.rollout.chat_tools import SYSTEM, TOOLS, Answer, Call, action_of, outcome_text
from minisandbox.rollout.policy import Player, Policy, PolicyFaultError, Told
from minisandbox.rollout.spec import Action, Observation, Step
from minisandbox.rollout.wire import turn_fields

ANSWER_MAX_BYTES = 16 << 20
MISTAKES = 3
"""So many answers without a proper call, one after the other, end the episode."""

NO_CALL = "Call one of the tools; call submit when the work is done."
_RETRIED = frozenset({408, 409, 425, 429})


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and how it is asked."""

    url: str
    """Up to the version, as "http://127.0.0.1:8000/v1"."""
    model: str = "default"
    parameters: dict[str, Any] = {}
    """More fields of the request, such as "temperature"."""
    timeout_s: float = 300.0
    tries: int = 5
    backoff_s: float = 0.5
    backoff_most_s: float = 20.0

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise UsageError(f"{self.url!r} is no address: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise UsageError(f"{self.url!r} is no http:// or https:// address")
        if self.tries < 1 or self.timeout_s <= 0:
            raise UsageError("an endpoint has at least one try, and a timeout above 0")


@dataclass(slots=True)
class _Chat:
    """One conversation."""

    endpoint: Endpoint
    client: httpx.AsyncClient
    told: Told
    messages: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[tuple[str, Action]] = field(default_factory=list)
    """Calls of the last answer that were not played yet, with their ids."""
    played: str | None = None
    """The id of the call whose outcome comes next."""
    data: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0

    async def act(self, observation: Observation) -> Step:
        """Return what the model wants done."""
        if observation.outcome is not None and self.played is not None:
            self._tell(self.played, outcome_text(observation.outcome))
        self.tokens, self.data = 0, {}
        for _ in range(MISTAKES):
            if self.waiting or await self._heard():
                self.played, action = self.waiting.pop(0)
                return Step(action=action, tokens=self.tokens, data=self.data)
        raise PolicyFaultError(f"the model gave no proper call of a tool in {MISTAKES} answers")

    def _tell(self, call: str, text: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call, "content": text})

    async def _heard(self) -> bool:
        """Ask the model once, and return whether it gave calls that can be played."""
        answer, said = await self._ask()
        self.tokens += max(0, answer.usage.completion_tokens) if answer.usage else 0
        self.data = {"message": said}
        self.messages.append(said)
        calls = answer.choices[0].message.tool_calls or []
        for call in calls:
            self._take(call)
        if not calls:
            self.messages.append({"role": "user", "content": NO_CALL})
        return bool(self.waiting)

    def _take(self, call: Call) -> None:
        try:
            self.waiting.append((call.id, action_of(call)))
        except PolicyFaultError as fault:
            self._tell(call.id, f"error: {fault}")

    async def _ask(self) -> tuple[Answer, dict[str, Any]]:
        """Return an answer, and its message as the server sent it."""
        content = await self._post(
            {
                "model": self.endpoint.model,
                "messages": self.messages,
                "tools": TOOLS,
                "seed": self.told.seed & 0x7FFFFFFF,
                **self.endpoint.parameters,
            }
        )
        try:
            answer = msgspec.json.decode(content, type=Answer)
            raw = msgspec.json.decode(content)["choices"][0]["message"]
        except (msgspec.MsgspecError, UnicodeError, RecursionError, IndexError) as error:
            raise PolicyFaultError(f"the endpoint answered no chat completion: {str(error)[:200]}") from error
        return answer, raw

    async def _post(self, request: dict[str, Any]) -> bytes:
        """Return the body of an answer. Raises EndpointError when there is none after all tries."""
        endpoint = self.endpoint
        why = ""
        for attempt in range(endpoint.tries):
            if attempt:
                await trio.sleep(min(endpoint.backoff_most_s, endpoint.backoff_s * 2.0 ** (attempt - 1)))
            try:
                status, content = await self._post_once(request)
            except (httpx.TransportError, httpx.DecodingError, trio.TooSlowError) as error:
                why = f"{type(error).__name__}: {error}"
                continue
            if status == 200:
                return content
            why = f"status {status}: {content[:200].decode(errors='backslashreplace')}"
            if status < 500 and status not in _RETRIED:
                raise UsageError(f"the endpoint {endpoint.url} refuses: {why}")
        raise EndpointError(f"the endpoint {endpoint.url} gave no answer in {endpoint.tries} tries: {why}")

    async def _post_once(self, request: dict[str, Any]) -> tuple[int, bytes]:
        url = f"{self.endpoint.url.rstrip('/')}/chat/completions"
        content = bytearray()
        try:
            with trio.fail_after(self.endpoint.timeout_s):
                async with self.client.stream("POST", url, json=request) as response:
                    async for chunk in response.aiter_bytes():
                        content += chunk
                        if len(content) > ANSWER_MAX_BYTES:  # raising here would leave generators of httpx half read
                            await response.aclose()
        except httpx.TransportError:
            if len(content) <= ANSWER_MAX_BYTES:
                raise
        if len(content) > ANSWER_MAX_BYTES:
            raise PolicyFaultError(f"the endpoint answered more than {ANSWER_MAX_BYTES} bytes")
        return response.status_code, bytes(content)

    def remember(self) -> None:
        """Begin the conversation: the instruction, and what was played before where the episode is a branch."""
        self.messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{self.told.instruction}\n\nThe directory of the task: {self.told.directory}"},
        ]
        for turn in self.told.history:
            call = f"turn-{turn.index}"
            fields = turn_fields(turn)["action"]
            function = {"name": fields.pop("type"), "arguments": msgspec.json.encode(fields).decode()}
            said = {"role": "assistant", "tool_calls": [{"id": call, "type": "function", "function": function}]}
            self.messages.append(said)
            if turn is self.told.history[-1]:
                self.played = call  # its outcome is in the first observation
            else:
                self._tell(call, outcome_text(turn.outcome))


def chat_player(name: str, endpoint: Endpoint, headers: Mapping[str, str]) -> Player:
    """Return the policy that a model is. `headers`, such as an Authorization, are sent and never recorded."""

    @contextlib.asynccontextmanager
    async def open_policy(told: Told) -> AsyncIterator[Policy]:
        async with httpx.AsyncClient(headers=dict(headers), timeout=endpoint.timeout_s, trust_env=False) as client:
            chat = _Chat(endpoint, client, told)
            chat.remember()
            yield chat

    return Player(name, open_policy)
