"""Records under bad luck: a full disk, a killed writer, damaged files. What was finished is kept, whole, and once."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from minisandbox.errors import RecordError
from minisandbox.rollout.database import BLOBS_NAME, DATABASE_NAME
from minisandbox.rollout.records import open_records
from minisandbox.rollout.recovery import recover_records
from minisandbox.rollout.schema import INLINE_BYTES
from minisandbox.rollout.spec import Episode, EpisodeKey, Run
from minisandbox.rollout.store import open_store
from tests.disks import small_disk
from tests.rollout.episodes import RUN, make_episode, make_task, make_turn, many_episodes

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0


def large_episode(sample: int, size_bytes: int = 4 * INLINE_BYTES) -> Episode:
    """Return an episode with an output of its own that goes into a blob."""
    output = random.Random(sample).randbytes(size_bytes)
    return make_episode(sample=sample, turns=(make_turn(0, Run(command=f"run {sample}"), stdout=output),))


async def keep(directory: Path, *episodes: Episode) -> frozenset[EpisodeKey]:
    """Keep those that are not kept, and return which were."""
    async with open_store(directory) as store:
        finished = await store.begin(RUN)
        await store.task(make_task())
        for episode in episodes:
            if episode.key not in finished:
                await store.finish(episode)
    return frozenset(finished)


def read(directory: Path) -> list[Episode | RecordError]:
    """Return all episodes of a store, with an error for each that is damaged."""
    with open_records(directory) as records:
        return list(records.episodes())


@pytest.mark.requires_root
@pytest.mark.parametrize("size_bytes", [100, 4 * INLINE_BYTES], ids=["rows", "blobs"])
async def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path, size_bytes: int) -> None:
    """Whether a table or a blob no longer fits. When there is room again the same run goes on, in the same process."""
    kept: list[Episode] = []
    with small_disk(tmp_path / "small", "2m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        async with open_store(disk / "run") as store:
            await store.begin(RUN)
            with pytest.raises(RecordError, match="file system is full; make room"):
                for sample in range(10_000):
                    await store.finish(large_episode(sample, size_bytes))
                    kept.append(large_episode(sample, size_bytes))
            with pytest.raises(RecordError, match="file system is full; make room"):
                await store.finish(large_episode(len(kept), 4 * INLINE_BYTES))
            during = read(disk / "run")
            ballast.unlink()
            await store.finish(large_episode(len(kept), size_bytes))
        after = read(disk / "run")
        left = list((disk / "run" / BLOBS_NAME).rglob("*.new"))
        finished = await keep(disk / "run", large_episode(len(kept) + 1, 100))

    assert kept == during
    assert [*kept, large_episode(len(kept), size_bytes)] == after
    assert {episode.key for episode in after if isinstance(episode, Episode)} == finished
    assert [] == left


@pytest.mark.requires_root
async def test_a_disk_that_is_full_from_the_beginning(tmp_path: Path) -> None:
    """No store is made there, and one can be when there is room."""
    with small_disk(tmp_path / "small", "256k") as disk:
        ballast = disk / "ballast"
        with contextlib.suppress(OSError):
            ballast.write_bytes(bytes(1 << 20))
        with pytest.raises(RecordError, match="file system is full"):
            async with open_store(disk / "run"):
                pass
        ballast.unlink()
        assert frozenset() == await keep(disk / "run")


WRITER = """
import sys, trio
from pathlib import Path
from tests.rollout.episodes import RUN
from tests.rollout.test_records_damage import large_episode
from minisandbox.rollout.store import open_store

{before}

async def main():
    async with open_store(Path(sys.argv[1])) as store:
        finished = await store.begin(RUN)
        {armed}
        async def finish(sample):
            episode = large_episode(sample)
            if episode.key in finished:
                return
            for turn in episode.trajectory.turns:
                await store.turn(episode.key, turn)
            await store.finish(episode)
            print(sample, flush=True)
        for first in range(0, 60, 4):
            async with trio.open_nursery() as nursery:
                for sample in range(first, first + 4):
                    nursery.start_soon(finish, sample)

trio.run(main)
"""

DIE_WITHIN = """
import os, random, signal
left = [int(sys.argv[2])]

def die(*_):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def die_at(event, arguments):
    if event in ("open", "os.rename"):
        die()
"""
ARMED = "store._connection.set_progress_handler(die, 5); sys.addaudithook(die_at)"


def start_writer(directory: Path, *words: str, before: str = "", armed: str = "") -> subprocess.Popen[str]:
    """Start a process that keeps 60 episodes, four at once, and prints the sample of each that was kept."""
    code = WRITER.format(before=before, armed=armed)
    command = [sys.executable, "-c", code, str(directory), *words]
    return subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)


def check_and_go_on(directory: Path, said: list[int]) -> int:
    """Check that what was said to be kept is, all of it whole, and that the rest can be added. Return how many were."""
    before = read(directory)
    expected = {large_episode(sample).key: large_episode(sample) for sample in range(60)}
    assert all(isinstance(episode, Episode) and episode == expected[episode.key] for episode in before)
    keys = [episode.key for episode in before if isinstance(episode, Episode)]
    assert len(set(keys)) == len(keys)
    assert {large_episode(sample).key for sample in said} <= set(keys)
    finished = trio.run(lambda: keep(directory, *expected.values()))
    assert set(keys) == finished
    assert expected == {episode.key: episode for episode in read(directory) if isinstance(episode, Episode)}
    assert [] == list((directory / BLOBS_NAME).rglob("*.new"))
    return len(keys)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 7, 23, 41])
def test_a_writer_that_is_killed_from_outside(tmp_path: Path, after: int) -> None:
    """Each episode that it said was kept is there, and all that are there are whole."""
    with start_writer(tmp_path) as writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(after)]
        writer.kill()
        said += [int(line) for line in writer.stdout]

        assert -signal.SIGKILL == writer.wait(DEADLINE_S)
    assert after <= check_and_go_on(tmp_path, said) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 7, 61, 233, 640, 1501, 2400])
def test_a_writer_that_dies_in_the_middle_of_a_transaction(tmp_path: Path, step: int) -> None:
    """Within a statement, between two, between a blob and its row: an episode is there whole or not at all."""
    with start_writer(tmp_path, str(step), before=DIE_WITHIN, armed=ARMED) as writer:
        assert writer.stdout is not None
        said = [int(line) for line in writer.stdout]

        assert -signal.SIGKILL == writer.wait(DEADLINE_S)
    check_and_go_on(tmp_path, said)


def flip(path: Path, places: int, seed: int) -> None:
    """Change bytes of a file, its header aside."""
    content, chance = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(places):
        content[chance.randrange(100, len(content))] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path, share: float) -> None:
    """Leave only the first part of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


async def damaged_copy(tmp_path: Path, episodes: list[Episode]) -> Path:
    """Return the records of episodes, of which the log is folded in."""
    await keep(tmp_path / "whole", *episodes)
    return Path(shutil.copytree(tmp_path / "whole", tmp_path / "damaged"))


@pytest.mark.parametrize("seed", range(6))
async def test_flipped_bytes_are_found_and_the_rest_is_recovered(tmp_path: Path, seed: int) -> None:
    """No episode is read as another than it was. After a recovery all that is there is whole, and the run goes on."""
    episodes = many_episodes(100)
    expected = {episode.key: episode for episode in episodes}
    directory = await damaged_copy(tmp_path, episodes)
    flip(directory / DATABASE_NAME, 12, seed)

    found = []
    with contextlib.suppress(RecordError):
        found = read(directory)
    done = recover_records(directory)
    recovered = read(directory)
    await keep(directory, *episodes)
    at_last = read(directory)

    assert all(isinstance(each, RecordError) or each == expected[each.key] for each in found)
    assert all(isinstance(each, Episode) and each == expected[each.key] for each in recovered)
    assert (done.kept, True) == (len(recovered), done.damaged is not None)
    assert 60 <= done.kept < 100
    assert 100 - done.kept <= len(done.lost)
    assert expected == {each.key: each for each in at_last if isinstance(each, Episode)}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.95])
async def test_a_file_that_was_cut_is_told_and_recovered(tmp_path: Path, share: float) -> None:
    """It is never taken for a new store, but where nothing at all is left of it."""
    episodes = many_episodes(100)
    directory = await damaged_copy(tmp_path, episodes)
    cut(directory / DATABASE_NAME, share)
    path = directory / DATABASE_NAME

    with pytest.raises(RecordError, match=r"damaged|holds no records"):
        read(directory)
    if share == 0.0:
        with pytest.raises(RecordError, match="nothing of"):
            recover_records(directory)
        path.unlink()
    else:
        recover_records(directory)
    recovered = read(directory) if path.exists() else []
    await keep(directory, *episodes)

    assert all(isinstance(each, Episode) and each in episodes for each in recovered)
    assert share < 0.9 or len(recovered) > 60
    assert 100 == len([each for each in read(directory) if isinstance(each, Episode)])


@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_a_blob_that_is_lost_costs_its_episode_alone(tmp_path: Path, damage: str) -> None:
    """Which is named; others are read, and after a recovery it can be played again."""
    episodes = [large_episode(sample) for sample in range(5)]
    directory = await damaged_copy(tmp_path, episodes)
    blob = next(path for path in sorted((directory / BLOBS_NAME).rglob("*")) if path.is_file())
    if damage == "missing":
        blob.unlink()
    else:
        flip(blob, 1, 1)

    found = read(directory)
    errors = [str(each) for each in found if isinstance(each, RecordError)]
    done = recover_records(directory)
    finished = await keep(directory, *episodes)

    assert 4 == len([each for each in found if each in episodes])
    assert 1 == len(errors)
    assert blob.name in errors[0]
    assert (4, 1) == (done.kept, len(done.lost))
    assert 4 == len(finished)
    assert 5 == len([each for each in read(directory) if each in episodes])


async def test_records_that_are_whole_are_not_touched_by_a_recovery(tmp_path: Path) -> None:
    """It says how many there are."""
    await keep(tmp_path, *many_episodes(20))
    before = (tmp_path / DATABASE_NAME).read_bytes()

    done = recover_records(tmp_path)

    assert (20, (), None) == (done.kept, done.lost, done.damaged)
    assert before == (tmp_path / DATABASE_NAME).read_bytes()


async def test_records_that_are_written_are_not_recovered(tmp_path: Path) -> None:
    """Whoever writes is let alone; and where nothing is, nothing is made."""
    async with open_store(tmp_path):
        with pytest.raises(RecordError, match="another process writes"):
            recover_records(tmp_path)
    with pytest.raises(RecordError, match="has no records"):
        recover_records(tmp_path / "nothing")
