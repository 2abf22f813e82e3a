"""Rewards for trainers: from plain programs, from asyncio and from trio, and never a false 0."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import minisandbox
from minisandbox.errors import ClosedError, UsageError
from minisandbox.integrations.reward import Grader, RewardFunction, neutral
from minisandbox.judge.assignment import Environment
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Outcome
from minisandbox.judge.store import Store
from minisandbox.tasks.task import File, Files, Task
from tests.tasks.samples import function_task, program_task

pytestmark = pytest.mark.enforces("control-groups", "single-id")

RIGHT = "```python\ndef double(x):\n    return x + x\n```"
WRONG = "```python\ndef double(x):\n    return 6\n```"
HACKS = {
    "leaves at once": "import os\nos._exit(0)\n",
    "equals everything": "class E(int):\n    __eq__ = lambda *_: True\n\ndef double(x):\n    return E()\n",
    "looks at its callers": "import sys\n\ndef double(x):\n    return sys._getframe(1).f_locals['expected']\n",
    "is no program": "def (",
    "is surrogates": "\udc80",
    "says nothing": "",
}
DEADLINE_S = 120.0


@pytest.fixture
def nowhere() -> Task:
    """A task whose environment is not there."""
    task = function_task()
    environment = Environment(rootfs="not-there")
    return msgspec.structs.replace(
        task, name="nowhere", assignment=msgspec.structs.replace(task.assignment, environment=environment)
    )


@pytest.fixture
def reward(state_dir: Path, nowhere: Task) -> Iterator[RewardFunction]:
    """A reward function of this test alone."""
    with RewardFunction([function_task(), nowhere], state_dir=state_dir) as opened:
        yield opened


def test_a_batch_is_rewarded_in_its_order(reward: RewardFunction) -> None:
    """What is right gets 1, what is wrong 0, and what cannot be judged nothing."""
    tasks = ["double", "double", "nowhere", "double"]
    got = reward(prompts=["?"] * 4, completions=[RIGHT, WRONG, RIGHT, RIGHT], task=tasks)

    assert [1.0, 0.0, None, 1.0] == got


@pytest.mark.parametrize("name", HACKS)
def test_a_hack_gets_nothing(reward: RewardFunction, name: str) -> None:
    """It is a 0 with a verdict, and neither masked nor an error."""
    (graded,) = reward.grade(["double"], [HACKS[name]])

    assert 0.0 == graded.reward, graded
    assert graded.verdict is not None and graded.verdict.decision.verdict is not Outcome.AC


def test_what_failed_says_why(reward: RewardFunction) -> None:
    """A masked reward comes with our error."""
    (graded,) = reward.grade(["nowhere"], [RIGHT])

    assert (None, None) == (graded.reward, graded.verdict)
    assert "not-there" in graded.error


def test_asyncio_is_not_blocked(reward: RewardFunction) -> None:
    """While a batch is judged the loop goes on, and messages are as good as texts."""

    async def train() -> tuple[list[float | None], int]:
        batch = asyncio.ensure_future(
            reward.for_asyncio(completions=[[{"role": "assistant", "content": RIGHT}]], task=["double"])
        )
        turns = 0
        while not batch.done():
            turns += 1
            await asyncio.sleep(0)
        return await batch, turns

    rewards, turns = asyncio.run(train())

    assert [1.0] == rewards
    assert turns > 1


def test_threads_share_it(reward: RewardFunction) -> None:
    """Batches of several threads are judged beside each other."""
    got: dict[int, list[float | None]] = {}

    def ask(at: int) -> None:
        got[at] = reward(completions=[RIGHT if at % 2 else WRONG], task=["double"])

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert {0: [0.0], 1: [1.0], 2: [0.0], 3: [1.0]} == got


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"task": ["other"]}, "no task 'other'"), ({"task": ["double"] * 2}, "1 completions of 2"), ({}, "column")],
)
def test_a_mistake_of_the_caller_is_raised(reward: RewardFunction, columns: dict[str, list[str]], message: str) -> None:
    """It is no reward, and the next batch is judged."""
    with pytest.raises(UsageError, match=message):
        reward(completions=[RIGHT], **columns)

    assert [1.0] == reward(completions=[RIGHT], task=["double"])


def test_closing_gives_up_what_is_judged(state_dir: Path) -> None:
    """Whoever waits is told, and so is whoever comes later; nothing hangs."""
    reward = RewardFunction([function_task()], state_dir=state_dir).open()
    begun = reward.submit(["double"], ["```python\nwhile True:\n    pass\n```"])
    reward.close()
    reward.close()

    with pytest.raises(ClosedError):
        begun.result(DEADLINE_S)
    with pytest.raises(ClosedError):
        reward(completions=[RIGHT], task=["double"])


def test_one_that_is_not_open_says_so() -> None:
    """It must be opened before."""
    with pytest.raises(ClosedError, match="not open"):
        RewardFunction([function_task()])(completions=[RIGHT], task=["double"])


def test_what_keeps_it_from_opening_is_raised(tmp_path: Path) -> None:
    """The thread's failure is the caller's exception."""
    (tmp_path / "state").write_text("no directory")
    with pytest.raises(minisandbox.SandboxError):
        RewardFunction([function_task()], state_dir=tmp_path / "state").open()
    with pytest.raises(UsageError, match="at least one task"):
        RewardFunction([], state_dir=tmp_path / "other").open()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused(reward: RewardFunction) -> None:
    """It has no such thread, and would wait forever."""
    child = os.fork()
    if child == 0:
        try:
            reward.submit(["double"], [RIGHT])
        except UsageError:
            os._exit(42)
        os._exit(1)

    assert 42 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_in_trio_a_judge_is_enough(supervisor: minisandbox.Supervisor, tmp_path: Path) -> None:
    """No thread; a submission of names that cannot be is rejected, one that takes too long for us is masked."""
    judge = Judge(supervisor=supervisor, store=Store.open(tmp_path / "judge"))
    bad = Grader(judge, [function_task()], submission=lambda task, text: {"../x": File(content=b"")})
    late = Grader(judge, [function_task()], deadline_s=0.0)
    graded = await bad.grade("double", RIGHT)

    assert graded.verdict is not None and graded.verdict.decision.verdict is Outcome.REJ
    assert 0.0 == graded.reward
    assert None is (await late.grade("double", RIGHT)).reward
    assert [1.0] == [each.reward for each in await Grader(judge, [function_task()]).grade_all(["double"], [RIGHT])]


async def test_a_submission_that_cannot_be_made_is_the_caller_s(
    supervisor: minisandbox.Supervisor, tmp_path: Path
) -> None:
    """What it raises is raised."""

    def fail(task: Task, text: str) -> Files:
        raise ZeroDivisionError(text)

    judge = Judge(supervisor=supervisor, store=Store.open(tmp_path / "judge"))
    with pytest.raises(ZeroDivisionError):
        await Grader(judge, [program_task({"a": (b"x", b"X")})], submission=fail).grade("upper", "")


def test_a_masked_reward_has_no_advantage() -> None:
    """It gets the mean of its group's others, so that the mean of the group does not move."""
    rewards = neutral([1.0, None, 0.0, None, None, 1.0], ["a", "a", "a", "b", "b", "c"])

    assert [1.0, 0.5, 0.0, 0.0, 0.0, 1.0] == rewards
