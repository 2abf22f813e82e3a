"""Records of a run: what is written is read again, once, by us and by others; and one process writes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minisandbox.errors import RecordError, UsageError
from minisandbox.judge.evidence import Code
from minisandbox.rollout.database import DATABASE_NAME
from minisandbox.rollout.records import open_records
from minisandbox.rollout.redact import Redactor
from minisandbox.rollout.rows import redact_episode
from minisandbox.rollout.schema import INLINE_BYTES
from minisandbox.rollout.spec import Action, Edit, End, Episode, EpisodeKey, Python, Read, Run, Submit, Turn, Write
from minisandbox.rollout.store import open_store
from minisandbox.spec import ExitReason
from tests.rollout.episodes import (
    RUN,
    all_actions,
    failed_episode,
    make_episode,
    make_task,
    make_turn,
    make_usage,
    make_verdict,
    many_episodes,
)

BIG = b"line\n" * INLINE_BYTES


async def keep(directory: Path, *episodes: Episode) -> None:
    """Keep episodes in a store."""
    async with open_store(directory) as store:
        await store.begin(RUN)
        for episode in episodes:
            await store.finish(episode)


def read(directory: Path) -> list[Episode]:
    """Return all episodes of a store, all whole."""
    with open_records(directory) as records:
        episodes = list(records.episodes())
    assert all(isinstance(episode, Episode) for episode in episodes)
    return [episode for episode in episodes if isinstance(episode, Episode)]


EPISODES: dict[str, Callable[[], Episode]] = {
    "all actions": make_episode,
    "we failed": failed_episode,
    "masked": lambda: make_episode(verdict=make_verdict(None)),
    "tampered": lambda: make_episode(verdict=make_verdict(0.0, codes=(Code.E03_MIRROR_PASSED, Code.E21_MARGINAL))),
    "large": lambda: make_episode(
        turns=(
            make_turn(0, Run(command="x" * 100_000, stdin=BIG), stdout=BIG, stderr=b"\xff" + BIG),
            make_turn(1, Write(path="main.sh", content=BIG)),
            make_turn(2, Python(code="ä" * 100_000, stdin=BIG), stdout=BIG),
            make_turn(3, Edit(path="main.sh", old="ä" * INLINE_BYTES, new=""), error="e" * 20_000),
        ),
        verdict=make_verdict(0.5, tests=1000),
    ),
    "warm": lambda: make_episode(warm=True),
    "branched": lambda: make_episode(branched_from=("sum/oracle/1", 3), limits_hit=("wall_time", "tokens")),
    "policy failed": lambda: make_episode(end=End.POLICY, why="it raised ValueError", turns=()),
}


@pytest.mark.parametrize("name", EPISODES)
async def test_an_episode_is_read_as_it_was_kept(tmp_path: Path, name: str) -> None:
    """Each field of it, whatever it was, and however large."""
    episode = EPISODES[name]()

    await keep(tmp_path, episode)

    assert [episode] == read(tmp_path)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(Run, command=TEXTS, stdin=st.binary(max_size=40), wall_time_s=st.none() | st.floats(0.1, 1e6)),
    st.builds(Python, code=TEXTS, stdin=st.binary(max_size=40), wall_time_s=st.none() | st.floats(0.1, 1e6)),
    st.builds(Read, path=TEXTS),
    st.builds(Write, path=TEXTS, content=st.binary(max_size=40), executable=st.booleans()),
    st.builds(Edit, path=TEXTS, old=TEXTS, new=TEXTS),
    st.builds(Submit, note=TEXTS),
)


@given(
    actions=st.lists(ACTIONS, max_size=4),
    stdout=st.binary(max_size=60),
    reason=st.sampled_from(ExitReason),
    data=st.dictionaries(TEXTS, TEXTS | st.integers(-(1 << 62), 1 << 62) | st.floats(allow_nan=False) | st.none()),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_episode_is_read_as_it_was_kept(
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[Action],
    stdout: bytes,
    reason: ExitReason,
    data: dict[str, Any],
) -> None:
    """Whatever a policy said and a command printed, but for what no JSON has."""
    directory = tmp_path_factory.mktemp("store")
    turns = tuple(
        msgspec.structs.replace(make_turn(at, action, stdout=stdout, exit_reason=reason, usage=make_usage()), data=data)
        for at, action in enumerate(actions)
    )
    episode = make_episode(turns=turns)
    kept = redact_episode(episode, Redactor())

    trio.run(keep, directory, episode)

    assert [kept] == read(directory)
    assert [turn.action for turn in turns] == [turn.action for turn in kept.trajectory.turns]
    assert [turn.outcome for turn in turns] == [turn.outcome for turn in kept.trajectory.turns]


async def test_an_episode_is_kept_once(tmp_path: Path) -> None:
    """A second one of the same key is refused, in the same run and in one that goes on; the first stays."""
    first, second = make_episode(), make_episode(seconds=9.0)

    async with open_store(tmp_path) as store:
        before = await store.begin(RUN)
        await store.finish(first)
        with pytest.raises(RecordError, match="sum/oracle/0 is kept already"):
            await store.finish(second)
        with pytest.raises(RecordError, match="sum/oracle/0 is kept already"):
            await store.turn(first.key, all_actions()[0])
    async with open_store(tmp_path) as store:
        after = await store.begin(RUN)
        with pytest.raises(RecordError, match="sum/oracle/0 is kept already"):
            await store.finish(second)

    assert (frozenset(), {first.key}) == (before, after)
    assert [first] == read(tmp_path)


async def test_one_that_is_refused_leaves_others_alone(tmp_path: Path) -> None:
    """Of calls that are written together each has its own end."""
    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        ended: dict[int, str] = {}

        async def finish(at: int) -> None:
            try:
                await store.finish(make_episode(sample=at % 10))
                ended[at] = "kept"
            except RecordError:
                ended[at] = "refused"

        async with trio.open_nursery() as nursery:
            for at in range(20):
                nursery.start_soon(finish, at)

    assert ["kept"] * 10 + ["refused"] * 10 == sorted(ended.values())
    assert 10 == len(read(tmp_path))


async def test_a_hundred_calls_at_once_are_all_kept(tmp_path: Path) -> None:
    """None waits forever, none is lost, and each is whole."""
    episodes = many_episodes(100)

    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for episode in episodes:
                    nursery.start_soon(store.finish, episode)

    assert {episode.key: episode for episode in episodes} == {episode.key: episode for episode in read(tmp_path)}


async def test_a_cancelled_call_keeps_no_other_from_being_kept(tmp_path: Path) -> None:
    """Neither one that waits, nor one that already writes for others."""
    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                scopes = [trio.CancelScope() for _ in range(10)]

                async def finish(at: int) -> None:
                    with scopes[at]:
                        await store.finish(make_episode(sample=at))

                for at in range(10):
                    nursery.start_soon(finish, at)
                await trio.testing.wait_all_tasks_blocked()
                for scope in scopes[::2]:
                    scope.cancel()

    assert {1, 3, 5, 7, 9} <= {episode.key.sample for episode in read(tmp_path)}


async def test_turns_are_there_before_the_episode_is(tmp_path: Path) -> None:
    """They are in the tables as they come; the episode itself only when it is finished."""
    turns = all_actions()
    episode = make_episode(turns=turns[:2])

    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        for turn in turns:
            await store.turn(episode.key, turn)
        with open_records(tmp_path) as records:
            before = records.rows("SELECT turn, action FROM turns"), records.keys()
        await store.turn(episode.key, turns[0])  # another try begins
        with open_records(tmp_path) as records:
            again = records.rows("SELECT turn, action FROM turns")
        await store.finish(episode)

    assert ([{"turn": turn.index, "action": type(turn.action).__name__.lower()} for turn in turns], []) == before
    assert [{"turn": 0, "action": "run"}] == again
    assert [episode] == read(tmp_path)


async def test_turns_of_a_run_that_died_are_dropped(tmp_path: Path) -> None:
    """When it is begun again its episodes that were not finished begin anew; those that were stay."""
    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        await store.finish(make_episode(sample=0))
        await store.turn(EpisodeKey(task="sum", policy="oracle", sample=1), make_turn(0, Run(command="a"), stdout=BIG))
    async with open_store(tmp_path) as store:
        finished = await store.begin(RUN)

    with open_records(tmp_path) as records:
        left = records.rows("SELECT DISTINCT episode FROM turns UNION SELECT episode FROM large")

    assert {EpisodeKey(task="sum", policy="oracle", sample=0)} == finished
    assert 1 == len(left)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policies": ("oracle",)}, r'policies \["oracle","noop"\], now \["oracle"\]'),
        ({"samples": 5}, "samples 4, now 5"),
        ({"seed": 2}, "seed 1, now 2"),
        ({"options": {"turns": 9}}, r'options {"turns":8}, now {"turns":9}'),
    ],
)
async def test_another_run_does_not_go_on_with_these_records(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    """What differs is named, and nothing is changed; other machines and versions may go on."""
    async with open_store(tmp_path) as store:
        await store.begin(RUN)
    async with open_store(tmp_path) as store:
        with pytest.raises(RecordError, match=said):
            await store.begin(msgspec.structs.replace(RUN, **changed))
    async with open_store(tmp_path) as store:
        await store.begin(msgspec.structs.replace(RUN, version="2", machine={"cpus": "64"}))

    with open_records(tmp_path) as records:
        machines = records.rows("SELECT version, name, value FROM sessions JOIN machine USING (session)")

    assert ["2", "64"] == [row["value"] for row in machines]
    assert ["1", "2"] == [row["version"] for row in machines]


async def test_a_task_that_changed_is_refused(tmp_path: Path) -> None:
    """One that is kept already is passed over; one of its name with another digest is an error."""
    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        await store.task(make_task())
        await store.task(make_task())
        with pytest.raises(RecordError, match="task sum is not the one"):
            await store.task(make_task(instruction="something else"))

    with open_records(tmp_path) as records:
        (row,) = records.rows("SELECT * FROM tasks")

    assert (make_task().digest, "stdio", "host") == (row["digest"], row["kind"], row["rootfs"])
    assert {"difficulty": "easy"} == json.loads(row["metadata"])


async def test_answers_of_a_task_are_not_in_the_records(tmp_path: Path) -> None:
    """Neither its solution nor what it is judged by: records are shown to people and given to trainers."""
    task = make_task(metadata={"source": "here"})
    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        await store.task(task)

    content = (tmp_path / DATABASE_NAME).read_bytes()

    assert task.name.encode() in content
    assert b"1 2" not in content


async def test_events_are_kept_in_order(tmp_path: Path) -> None:
    """With the episode that they are of, if any."""
    key = EpisodeKey(task="sum", policy="oracle", sample=1)
    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        await store.event("concurrency", None, {"from": 2, "to": 4})
        await store.event("retry", key, {"error": ValueError("no JSON")})

    with open_records(tmp_path) as records:
        rows = records.rows("SELECT name, task, data FROM events LEFT JOIN keys USING (episode) ORDER BY event")

    assert [("concurrency", None, '{"from":2,"to":4}'), ("retry", "sum", '{"error":"<ValueError>"}')] == [
        tuple(row.values()) for row in rows
    ]


async def test_one_process_writes(tmp_path: Path) -> None:
    """A second one is told so, and may write when the first is done."""
    async with open_store(tmp_path):
        with pytest.raises(RecordError, match="another process writes the records"):
            async with open_store(tmp_path):
                pass
    async with open_store(tmp_path) as store:
        assert frozenset() == await store.begin(RUN)


async def test_nothing_is_recorded_before_a_run_is_begun(tmp_path: Path) -> None:
    """Nor after the store is closed."""
    async with open_store(tmp_path) as store:
        with pytest.raises(UsageError, match="begin"):
            await store.finish(make_episode())
        await store.begin(RUN)
    with pytest.raises(UsageError, match="closed"):
        await store.finish(make_episode())

    assert [] == read(tmp_path)


def test_records_that_are_none(tmp_path: Path) -> None:
    """An empty directory, and a file of SQLite that is another's, have no records."""
    with pytest.raises(RecordError, match="has no records"), open_records(tmp_path):
        pass
    subprocess.run(["sqlite3", tmp_path / DATABASE_NAME, "CREATE TABLE x (y)"], check=True)
    with pytest.raises(RecordError, match="holds no records of minisandbox"), open_records(tmp_path):
        pass


async def test_another_version_is_refused(tmp_path: Path) -> None:
    """For reading as for writing, and it stays as it is."""
    await keep(tmp_path, make_episode())
    subprocess.run(["sqlite3", tmp_path / DATABASE_NAME, "PRAGMA user_version = 99"], check=True)

    with pytest.raises(RecordError, match="are of version 99"), open_records(tmp_path):
        pass
    with pytest.raises(RecordError, match="are of version 99"):
        async with open_store(tmp_path):
            pass


async def test_an_episode_is_found_by_a_part_of_its_id(tmp_path: Path) -> None:
    """When no other has it; else those that have are named."""
    await keep(tmp_path, make_episode(), make_episode(sample=1), make_episode("other", sample=11))

    with open_records(tmp_path) as records:
        assert EpisodeKey(task="other", policy="oracle", sample=11) == records.find("other")
        assert EpisodeKey(task="sum", policy="oracle", sample=1) == records.find("sum/oracle/1")
        with pytest.raises(UsageError, match=r"2 episodes that fit 'sum': sum/oracle/0, sum/oracle/1"):
            records.find("sum")
        with pytest.raises(UsageError, match="no episode 'nothing'"):
            records.find("nothing")


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="this host has no sqlite3")
async def test_sqlite3_reads_the_records(tmp_path: Path) -> None:
    """Plain tables with plain columns, of which a query makes what one wants to know."""
    await keep(tmp_path, *many_episodes(60), make_episode("z", turns=(make_turn(0, Read(path="x"), stdout=BIG),)))

    def query(statement: str) -> list[str]:
        command = ["sqlite3", "-readonly", str(tmp_path / DATABASE_NAME), statement]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        return run.stdout.split()

    assert ["cheat", "noop", "oracle"] == query("SELECT DISTINCT policy FROM episodes ORDER BY policy")
    assert ["1.0"] == query("SELECT avg(reward) FROM episodes WHERE policy = 'oracle'")
    assert ["line"] == query("SELECT substr(stdout, 1, 4) FROM results JOIN large USING (episode, turn)")
    assert [str(len(BIG))] == query("SELECT bytes FROM large WHERE name = 'stdout'")


async def test_pandas_reads_the_records(tmp_path: Path) -> None:
    """Each table is a frame, with numbers as numbers."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    import sqlite3

    episodes = many_episodes(60)
    await keep(tmp_path, *episodes)

    connection = sqlite3.connect(tmp_path / DATABASE_NAME)
    frame = pandas.read_sql("SELECT * FROM episodes", connection)
    turns = pandas.read_sql("SELECT * FROM turns JOIN results USING (episode, turn)", connection)
    connection.close()

    assert 60 == len(frame)
    assert "float64" == str(frame.reward.dtype)
    assert sum(episode.reward is None for episode in episodes) == frame.reward.isna().sum()
    assert sum(len(episode.trajectory.turns) for episode in episodes) == len(turns)


async def test_records_are_read_while_they_are_written(tmp_path: Path) -> None:
    """A reader sees what was finished when it began, and holds nobody up."""
    async with open_store(tmp_path) as store:
        await store.begin(RUN)
        await store.finish(make_episode(sample=0))
        with open_records(tmp_path) as records:
            before = records.keys()
            await store.finish(make_episode(sample=1))
            during = records.keys()
    after = read(tmp_path)

    assert (1, 1, 2) == (len(before), len(during), len(after))


def test_a_turn_of_numbers_that_no_table_holds_is_an_error(tmp_path: Path) -> None:
    """It is ours and typed, and the store goes on."""

    async def main() -> None:
        async with open_store(tmp_path) as store:
            await store.begin(RUN)
            with pytest.raises(RecordError, match="more than 63 bits"):
                await store.finish(make_episode(seed=1 << 70))
            await store.finish(make_episode())

    trio.run(main)

    assert 1 == len(read(tmp_path))


class Odd:
    """No JSON knows it."""


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"a": float("nan"), "b": [float("inf"), 1.5]}, {"a": None, "b": [None, 1.5]}),
        ({1: (2, 3), "raw": b"\xff"}, {"1": [2, 3], "raw": "/w=="}),
        ({"big": 1 << 80, "odd": Odd()}, {"big": str(1 << 80), "odd": "<Odd>"}),
        ({"lone": "\ud800"}, {"lone": "\\ud800"}),
    ],
)
async def test_what_json_cannot_say_does_not_stop_a_run(
    tmp_path: Path, given: dict[str, Any], kept: dict[str, Any]
) -> None:
    """What a policy gives back with a step is kept as far as JSON goes."""
    turn = Turn(**{**_fields(make_turn(0, Submit(note="\udfff"))), "data": given})

    await keep(tmp_path, make_episode(turns=(turn,)))
    (episode,) = read(tmp_path)

    assert kept == episode.trajectory.turns[0].data
    assert Submit(note="\\udfff") == episode.trajectory.turns[0].action


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


async def test_data_that_holds_itself_is_cut(tmp_path: Path) -> None:
    """Nesting without an end is told by its type from some depth on."""
    loop: dict[str, Any] = {}
    loop["again"] = loop

    await keep(tmp_path, make_episode(turns=(Turn(**{**_fields(make_turn(0, Submit())), "data": loop}),)))

    assert 1 == len(read(tmp_path))


async def test_every_table_and_column_is_in_the_manual(tmp_path: Path) -> None:
    """The table of tables names each with its columns, in their order, and no other."""
    await keep(tmp_path)
    with open_records(tmp_path) as records:
        names = [row["name"] for row in records.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: [row["name"] for row in records.rows(f"PRAGMA table_info({name})")] for name in names}
    manual = (Path(__file__).parents[2] / "docs" / "manual.md").read_text()
    section = manual[manual.index("\n## Records\n") : manual.index("\n### Secrets\n")]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]

    written = {cells[0].strip("| `"): re.findall(r"`(\w+)`", cells[2]) for cells in rows}

    assert {name: sorted(each) for name, each in columns.items()} == {n: sorted(each) for n, each in written.items()}
