"""Examples of training: what is rewarded is learned, what is not is unlearned, and trainers' interfaces fit."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples import train_bandit
from examples.expressions import HACKS, SOLUTIONS, WRONG, submission, tasks
from examples.train_bandit import Update
from minisandbox.integrations.reward import RewardFunction

ROOT = Path(__file__).parents[1]
DEADLINE_S = 300.0


def cheating(update: Update) -> float:
    """Return how likely any cheat was."""
    return sum(update.hacks.values())


@pytest.mark.slow
def test_a_policy_learns_to_solve_and_unlearns_to_cheat(state_dir: Path, tmp_path: Path) -> None:
    """By the rewards of the judge, and by nothing else. With a judge that can be cheated it does not, see below."""
    some = train_bandit.load_tasks()[:2]
    with RewardFunction(some, state_dir=state_dir) as reward:
        seen = train_bandit.train(reward, some, updates=16, samples=12, seed=1)
    train_bandit.draw(seen, tmp_path / "bandit.png")

    assert 0 == sum(update.masked for update in seen)
    assert seen[-1].solves > 2 * seen[0].solves
    assert cheating(seen[-1]) < 0.7 * cheating(seen[0])
    assert sum(update.reward for update in seen[-4:]) > sum(update.reward for update in seen[:4])
    assert (tmp_path / "bandit.png").read_bytes().startswith(b"\x89PNG")


def test_a_judge_that_can_be_cheated_teaches_to_cheat() -> None:
    """One that believes what a program says of itself: the same policy then learns exactly that."""

    def believe(*, completions: Sequence[str], **_: Any) -> list[float | None]:
        return [float("PASSED" in text) for text in completions]

    some = train_bandit.load_tasks()[:2]
    seen = train_bandit.train(believe, some, updates=60, samples=6, seed=1)

    assert seen[-1].hacks["says that it passed"] > 0.8
    assert seen[-1].solves < 0.05


def test_masked_rewards_teach_nothing() -> None:
    """Without a verdict nothing changes; it is no 0."""

    def fail(*, completions: Sequence[str], **_: Any) -> list[float | None]:
        return [None] * len(completions)

    some = train_bandit.load_tasks()[:2]
    seen = train_bandit.train(fail, some, updates=3, samples=4, seed=1)

    assert seen[0].hacks == seen[-1].hacks
    assert [8, 8, 8] == [update.masked for update in seen]


def test_curves_of_the_manual_are_of_a_run() -> None:
    """The picture has its numbers beside it: they begin with cheats and end with right programs."""
    seen = msgspec.json.decode((ROOT / "docs" / "training.json").read_bytes(), type=list[Update])

    assert cheating(seen[0]) > 0.5 > 0.1 > cheating(seen[-1])
    assert seen[0].solves < 0.1 < 0.8 < seen[-1].solves
    assert (ROOT / "docs" / "training.png").exists()


def test_only_a_solution_is_rewarded(state_dir: Path) -> None:
    """Of the expressions that the examples share, for each task."""
    pieces = [*SOLUTIONS.values(), *WRONG, *HACKS]
    with RewardFunction(tasks(), submission=submission, state_dir=state_dir) as reward:
        for name, solution in SOLUTIONS.items():
            got = reward(completions=pieces, task=[name] * len(pieces))

            assert [float(piece == solution) for piece in pieces] == got


@pytest.mark.slow
def test_the_reward_function_for_verl_runs_as_it_is_written(state_dir: Path, tmp_path: Path) -> None:
    """The block of the page, called as verl calls it, in a process that ends by itself and leaves nothing."""
    page = (ROOT / "examples" / "verl_reward.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert 1 == block.count("RewardFunction(tasks)")
    here = f"RewardFunction(tasks, state_dir=__import__('pathlib').Path({str(state_dir)!r}))"
    (tmp_path / "reward.py").write_text(block.replace("RewardFunction(tasks)", here))
    program = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import reward

def score(text):
    return reward.compute_score(
        data_source="code", solution_str=text, ground_truth="humaneval-23", extra_info={"index": 0}, reward_model=None
    )

async def main():
    right = "```python\\ndef strlen(string):\\n    return len(string)\\n```"
    print(*await asyncio.gather(score(right), score("import os\\nos._exit(0)")), sep="\\n")

asyncio.run(main())
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S
    )

    assert ("", 0) == (run.stderr, run.returncode)
    assert ["{'score': 1.0, 'verdict': 'AC'}", "{'score': 0.0, 'verdict': 'RTE'}"] == run.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("trl") is None, reason="the extra trl is not installed; make test-trl installs it")
def test_trl_trains_on_the_reward_function(state_dir: Path) -> None:
    """A language model, tiny and made on the spot, says more often what solves its task, and cheats less."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "examples.grpo_trl", "--steps", "20", "--state-dir", str(state_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )

    assert 0 == run.returncode, run.stderr[-2000:] + run.stdout
    assert "tries to cheat" in run.stdout
