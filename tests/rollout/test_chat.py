"""Policies behind HTTP: a real server with scripted answers, good ones, broken ones and none."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
import trio

import minisandbox
from minisandbox.errors import UsageError
from minisandbox.rollout.chat import MISTAKES, Endpoint, chat_player
from minisandbox.rollout.chat_tools import TOOLS
from minisandbox.rollout.policy import Told
from minisandbox.rollout.scene import open_scene
from minisandbox.rollout.spec import Budget, End, Episode, Python, Run, Step, Write
from tests.rollout.conftest import PlayAll
from tests.rollout.endpoint import Script, in_order, listening, says
from tests.rollout.players import DEADLINE_S, JUDGING, file_task

pytestmark = JUDGING

WRITE = ("write", {"path": "hello.txt", "content": "hello\n"})
SUBMIT: tuple[str, dict[str, str]] = ("submit", {})


def asking(url: str, **changed: Any) -> Endpoint:
    """Return an endpoint that is asked in a hurry."""
    return Endpoint(url=url, **{"tries": 3, "backoff_s": 0.01, "timeout_s": 10.0, **changed})


async def played(play_all: PlayAll, script: Script, **changed: Any) -> tuple[Episode, list[dict[str, Any]]]:
    """Play one episode, and return it with what the server was asked."""
    with listening(script) as server:
        player = chat_player("chat", asking(server.url, **changed), {"Authorization": "Bearer key"})
        (episode,) = await play_all([file_task()], [player], budget=Budget(think_s=20.0))
    return episode, server.asked


async def test_a_model_solves_a_task(play_all: PlayAll) -> None:
    """It sees instruction, tools and what came of each call; its tokens and messages are recorded."""
    run = ("run", {"command": "cat hello.txt; exit 3"})
    episode, asked = await played(play_all, in_order(says(WRITE, tokens=5), says(run), says(SUBMIT)))

    assert (End.SUBMITTED, 1.0) == (episode.trajectory.end, episode.reward)
    assert [Write(path="hello.txt", content=b"hello\n"), Run(command="cat hello.txt; exit 3")] == [
        turn.action for turn in episode.trajectory.turns[:2]
    ]
    assert [5, 7, 7] == [turn.tokens for turn in episode.trajectory.turns]
    assert "write" == episode.trajectory.turns[0].data["message"]["tool_calls"][0]["function"]["name"]
    first, second, third = asked
    assert ["system", "user"] == [message["role"] for message in first["messages"]]
    assert "Write hello.txt that says hello." in first["messages"][1]["content"]
    assert (TOOLS, "default") == (first["tools"], first["model"])
    assert {"role": "tool", "tool_call_id": "call-0", "content": "[done]"} == second["messages"][-1]
    assert "hello\n\n[exited, 3]" == third["messages"][-1]["content"]


async def test_a_model_runs_python(play_all: PlayAll) -> None:
    """By a tool of its own, and sees what the code wrote."""
    code = "print(open('hello.txt').read(), input())\n1/0"
    python = ("python", {"code": code, "stdin": "in"})
    episode, asked = await played(play_all, in_order(says(WRITE), says(python), says(SUBMIT)))
    told = asked[2]["messages"][-1]["content"]

    assert Python(code=code, stdin=b"in") == episode.trajectory.turns[1].action
    assert told.startswith("hello\n in\n\n[stderr]\nTraceback")
    assert told.endswith("ZeroDivisionError: division by zero\n\n[exited, 1]")


async def test_the_request_is_what_was_asked_for(play_all: PlayAll) -> None:
    """Model, parameters and key; the seed is that of the episode."""
    with listening(in_order(says(SUBMIT))) as server:
        endpoint = asking(server.url + "/", model="m", parameters={"temperature": 0.5})
        (episode,) = await play_all([file_task()], [chat_player("c", endpoint, {"Authorization": "Bearer key"})])

    assert ["/v1/chat/completions"] == server.paths
    assert ("m", 0.5, episode.seed & 0x7FFFFFFF) == tuple(
        server.asked[0][key] for key in ("model", "temperature", "seed")
    )
    assert "Bearer key" == server.headers[0]["Authorization"]


async def test_several_calls_of_one_answer_are_played_in_order(play_all: PlayAll) -> None:
    """The model is asked again only when all were."""
    episode, asked = await played(play_all, in_order(says(WRITE, ("read", {"path": "hello.txt"})), says(SUBMIT)))

    assert 1.0 == episode.reward
    assert [7, 0, 7] == [turn.tokens for turn in episode.trajectory.turns]
    assert ["[done]", "hello\n"] == [m["content"] for m in asked[1]["messages"] if m["role"] == "tool"]


@pytest.mark.parametrize(
    "mistake",
    [
        says(("write", "{not json")),
        says(("write", {"path": "x"})),
        says(("write", {"path": "x", "content": "", "mode": 7})),
        says(("fly", {})),
        says(("run", "[]")),
        says(content="I would rather talk."),
    ],
)
async def test_a_mistake_is_told_and_can_be_mended(play_all: PlayAll, mistake: tuple[int, bytes]) -> None:
    """The model gets another answer; its tokens count."""
    episode, asked = await played(play_all, in_order(mistake, says(WRITE), says(SUBMIT)))

    assert (1.0, 14) == (episode.reward, episode.trajectory.turns[0].tokens)
    last = asked[1]["messages"][-1]
    assert "error" in last["content"] or "Call one of the tools" in last["content"]


async def test_a_model_that_makes_nothing_but_mistakes_ends_its_episode(play_all: PlayAll) -> None:
    """After a few of them in a row, as the policy's fault."""
    episode, asked = await played(play_all, in_order(says(("fly", {}))))

    assert (End.POLICY, 0.0, MISTAKES) == (episode.trajectory.end, episode.reward, len(asked))


@pytest.mark.parametrize(
    "content", [b"<html>no</html>", b"", b"{}", b'{"choices": []}', b'{"choices": 3}', b"\xff" * 100]
)
async def test_an_answer_that_is_none_is_the_policys_fault(play_all: PlayAll, content: bytes) -> None:
    """It is not asked again."""
    episode, asked = await played(play_all, in_order((200, content)))

    assert (End.POLICY, 0.0, 1) == (episode.trajectory.end, episode.reward, len(asked))
    assert "no chat completion" in episode.trajectory.why


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_server_that_fails_for_a_moment_is_asked_again(play_all: PlayAll, status: int) -> None:
    """Nothing of it is seen in the episode."""
    episode, asked = await played(play_all, in_order((status, b"busy"), (status, b"busy"), says(WRITE), says(SUBMIT)))

    assert (1.0, (), 4) == (episode.reward, episode.attempts, len(asked))


async def test_a_server_that_keeps_failing_masks_the_episode(play_all: PlayAll) -> None:
    """All tries of the request in all tries of the episode, and never a 0."""
    episode, asked = await played(play_all, in_order((500, b"broken")), tries=2)

    assert (End.INFRASTRUCTURE, None, 8) == (episode.trajectory.end, episode.reward, len(asked))
    assert ["EndpointError"] * 4 == [attempt.error for attempt in episode.attempts]
    assert "status 500: broken" in episode.trajectory.why


async def test_a_server_that_refuses_is_not_asked_again(play_all: PlayAll) -> None:
    """A wrong key stays wrong; the episode is masked."""
    episode, asked = await played(play_all, in_order((401, b"who are you")))

    assert (End.INFRASTRUCTURE, None, 1) == (episode.trajectory.end, episode.reward, len(asked))
    assert "401" in episode.trajectory.why


async def test_nobody_listens(play_all: PlayAll) -> None:
    """The same as one that fails."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        (episode,) = await play_all([file_task()], [chat_player("c", asking(url, tries=2), {})])

    assert (End.INFRASTRUCTURE, None) == (episode.trajectory.end, episode.reward)
    assert "ConnectError" in episode.trajectory.why


async def test_a_server_that_hangs_is_given_up(play_all: PlayAll) -> None:
    """Each try has its time, and so has all of the thinking."""
    import threading

    gone = threading.Event()

    def hang(request: dict[str, Any]) -> tuple[int, bytes]:
        gone.wait(DEADLINE_S)
        return says(SUBMIT)

    with listening(hang) as server:
        player = chat_player("c", asking(server.url, timeout_s=0.2, tries=2), {})
        (episode,) = await play_all([file_task()], [player])
        gone.set()

    assert (End.INFRASTRUCTURE, None) == (episode.trajectory.end, episode.reward)
    assert "TooSlow" in episode.trajectory.why


async def test_a_flood_is_cut_off(play_all: PlayAll) -> None:
    """An answer has a bound, and one beyond it is the policy's fault."""
    episode, _ = await played(play_all, in_order((200, b" " * (17 << 20))))

    assert End.POLICY is episode.trajectory.end


async def test_a_branch_is_told_what_came_before(supervisor: minisandbox.Supervisor) -> None:
    """The conversation holds the turns of the trunk, and the outcome of the last one."""
    with listening(in_order(says(SUBMIT))) as server:
        async with open_scene(supervisor, file_task()) as scene:
            await scene.act(Step(action=Write(path="a", content=b"x\n")))
            await scene.run("cat a")
            told = Told(
                episode="e",
                task="t",
                instruction="i",
                directory="/d",
                budget=Budget(),
                seed=1,
                history=tuple(scene.turns),
            )
            async with chat_player("c", asking(server.url), {}).open(told) as policy:
                with trio.fail_after(DEADLINE_S):
                    await policy.act(scene.observation)

    roles = [(m["role"], m.get("content")) for m in server.asked[0]["messages"][2:]]
    assert [("assistant", None), ("tool", "[done]"), ("assistant", None), ("tool", "x\n\n[exited, 0]")] == roles
    said = server.asked[0]["messages"][2]["tool_calls"][0]["function"]
    assert {"path": "a", "content": "x\n", "executable": False} == json.loads(said["arguments"])


@pytest.mark.parametrize("url", ["http://", "ftp://x/v1", "http://[::1", "https:///v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is played."""
    with pytest.raises(UsageError):
        Endpoint(url=url)
