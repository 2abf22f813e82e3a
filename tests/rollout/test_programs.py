"""Policies that are programs or functions: lines of JSON, and nothing that is left of them."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from minisandbox.errors import UsageError
from minisandbox.rollout.choose import Asking, choose_player
from minisandbox.rollout.command import command_player
from minisandbox.rollout.function import find_function, function_player
from minisandbox.rollout.policy import Player, Told
from minisandbox.rollout.spec import Budget, End, Episode, Observation, Run, Step, Submit, Write
from tests.rollout.conftest import PlayAll
from tests.rollout.players import JUDGING, file_task

pytestmark = JUDGING

ENVIRONMENT = {"PATH": os.environ["PATH"]}
GOOD = """
import json, sys
begin = json.loads(sys.stdin.readline())
assert begin["type"] == "begin" and begin["instruction"], begin
def say(action, **more):
    print(json.dumps({"action": action, **more}), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
first = hear()
assert first["type"] == "observation" and first["turn"] == 0 and first["outcome"] is None, first
say({"type": "write", "path": "hello.txt", "content": "hello\\n"}, tokens=3, data={"why": "told to"})
assert hear()["outcome"]["error"] is None
say({"type": "run", "command": "cat; printf '\\\\377'", "stdin": "in"})
outcome = hear()["outcome"]
assert outcome["stdout"] is None and outcome["stdout_base64"] == "aW7/", outcome
assert outcome["exit_reason"] == "exited" and outcome["exit_code"] == 0, outcome
say({"type": "write", "path": "raw", "content_base64": "/w=="})
hear()
say({"type": "submit"})
"""

BAD = {
    "ends": ("pass", "ended before the episode"),
    "complains": ("import sys; sys.exit('no weights here')", "no weights here"),
    "says-no-json": ("print('ls', flush=True); input(); input()", "no JSON"),
    "says-no-action": ("print('{}', flush=True); input(); input(); input()", "no step"),
    "says-an-unknown-key": (
        """print('{"action": {"type": "submit"}, "reward": 1}', flush=True); input(); input(); input()""",
        "reward",
    ),
    "floods-a-line": ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "a line of more than"),
    "closes-its-output": ("import os, time; os.close(1); time.sleep(1000)", "ended before the episode"),
}
SILENT = {
    "hangs": "import time; time.sleep(1000)",
    "floods-its-errors": "import sys\nwhile True: sys.stderr.write('e' * 65536)",
    "answers-slowly": "import sys, time\nwhile True: sys.stdout.write('x'); sys.stdout.flush(); time.sleep(0.1)",
}


def program(code: str, name: str = "program") -> Player:
    """Return a policy that is a Python program."""
    return command_player(name, [sys.executable, "-c", code], ENVIRONMENT)


async def test_a_program_plays_by_lines_of_json(play_all: PlayAll) -> None:
    """Text as text, anything else in base64, both ways; its tokens and data are recorded."""
    (episode,) = await play_all([file_task()], [program(GOOD)])

    assert (End.SUBMITTED, "", 1.0) == (episode.trajectory.end, episode.trajectory.why, episode.reward)
    first, second, third, _ = episode.trajectory.turns
    assert (3, {"why": "told to"}) == (first.tokens, first.data)
    assert Run(command="cat; printf '\\377'", stdin=b"in") == second.action
    assert Write(path="raw", content=b"\xff") == third.action


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_program_ends_its_own_episode(play_all: PlayAll, name: str) -> None:
    """As the policy's fault, with what it said."""
    code, why = BAD[name]
    bad, good = await play_all(
        [file_task()], [program(code, "bad"), program(GOOD, "good")], budget=Budget(think_s=60.0)
    )

    assert (End.POLICY, 0.0) == (bad.trajectory.end, bad.reward)
    assert why in bad.trajectory.why
    assert 1.0 == good.reward


@pytest.mark.parametrize("name", SILENT)
async def test_a_program_that_does_not_answer_is_not_waited_for(play_all: PlayAll, name: str) -> None:
    """Longer than the budget says."""
    (episode,) = await play_all([file_task()], [program(SILENT[name])], budget=Budget(think_s=1.0))

    assert (End.POLICY, 0.0) == (episode.trajectory.end, episode.reward)
    assert "no answer within 1 s" in episode.trajectory.why


async def test_nothing_of_a_program_is_left(play_all: PlayAll, tmp_path: Path) -> None:
    """It and what it started are killed at the end of the episode, also when they do not want to."""
    code = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
print('{{"action": {{"type": "submit"}}}}', flush=True)
while True: signal.pause()
"""
    (episode,) = await play_all([file_task()], [program(code)])
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    assert End.SUBMITTED is episode.trajectory.end
    assert 2 == len(pids)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError), trio.fail_after(10):
            pid_fd = os.pidfd_open(pid)
            await trio.lowlevel.wait_readable(pid_fd)  # a grandchild may be one that nobody reaped yet
            os.close(pid_fd)


async def test_each_episode_has_a_process_of_its_own(play_all: PlayAll) -> None:
    """What one keeps in memory another does not see."""
    episodes: list[Episode] = await play_all([file_task()], [program(GOOD)], samples=3, at_once=3)

    assert [1.0] * 3 == [episode.reward for episode in episodes]


def plays(observation: Observation) -> Write | Step:
    """A function: an action alone, or a step."""
    if observation.turn == 0:
        return Write(path="hello.txt", content=b"hello\n")
    return Step(action=Submit(), tokens=1)


async def plays_async(observation: Observation) -> dict[str, object]:
    """An async one, and plain data."""
    await trio.lowlevel.checkpoint()
    if observation.turn == 0:
        return {"action": {"type": "write", "path": "hello.txt", "content": "hello\n"}}
    return {"action": {"type": "submit"}}


class Plays:
    """A class, made for each episode."""

    def __init__(self, told: Told) -> None:
        self.seed, self.turns = told.seed, 0

    def act(self, observation: Observation) -> Write | Submit:
        """Count for itself."""
        self.turns += 1
        assert self.turns == observation.turn + 1
        return Write(path="hello.txt", content=b"hello\n") if self.turns == 1 else Submit()


def blocks(observation: Observation) -> Submit:
    """A function that blocks its thread for longer than is waited."""
    import threading

    threading.Event().wait(6.0)
    return Submit()


@pytest.mark.parametrize("name", ["plays", "plays_async", "Plays"])
async def test_python_plays(play_all: PlayAll, name: str) -> None:
    """As a function, async or not, or a class, found by its name."""
    player = function_player(name, find_function(f"{__name__}:{name}"))
    episodes = await play_all([file_task()], [player], samples=2)

    assert [1.0, 1.0] == [episode.reward for episode in episodes]


async def test_a_function_that_blocks_is_left_behind(play_all: PlayAll) -> None:
    """Its thread holds nobody up."""
    bad, good = await play_all(
        [file_task()], [function_player("a", blocks), function_player("b", plays)], budget=Budget(think_s=2.0)
    )

    assert (End.POLICY, End.SUBMITTED) == (bad.trajectory.end, good.trajectory.end)
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("oracel", "is no policy"),
        ("python:", "no MODULE:FUNCTION"),
        ("python:no.such.module:f", "cannot be imported"),
        ("python:os:no_such_function", "cannot be imported"),
        ("python:os:sep", "nothing that can be called"),
        ("command:", "no program"),
        ("command:/no/such/program -x", "no program"),
        ("http://", "no http"),
    ],
)
def test_a_policy_that_is_none_is_told_before_anything_is_played(text: str, error: str) -> None:
    """With what it could be."""
    with pytest.raises(UsageError, match=error):
        choose_player(text, Asking(environment=ENVIRONMENT))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("oracle", "oracle"),
        ("best=oracle", "best"),
        ("python:os:getcwd", "python:os:getcwd"),
        ("mine=command:sh -c 'x=1; true'", "mine"),
        ("http://127.0.0.1:1/v1?a=b", "http://127.0.0.1:1/v1?a=b"),
        ("m=http://127.0.0.1:1/v1", "m"),
    ],
)
def test_a_policy_is_chosen_by_its_text(text: str, name: str) -> None:
    """Its name in the records is the text, or what stands before "="."""
    assert name == choose_player(text, Asking(environment=ENVIRONMENT)).name
