"""Whatever a policy does to its sandbox, its episode is judged: it cannot have a failure masked as one of ours."""

from __future__ import annotations

import msgspec
import pytest

from minisandbox.rollout.spec import End, Run
from minisandbox.tasks.task import Agent
from tests.rollout.conftest import PlayAll
from tests.rollout.players import JUDGING, file_task, script_player

pytestmark = JUDGING

FILLED = {
    "files": "head -c 2G /dev/zero > x; dd if=/dev/zero of=y bs=512",
    "shared-memory": "head -c 2G /dev/zero > /dev/shm/x; dd if=/dev/zero of=/dev/shm/y bs=512",
}
BROKEN = {
    "a-full-disk": "head -c 2G /dev/zero > x; dd if=/dev/zero of=y bs=512",
    "deep": "for i in $(seq 300); do mkdir -p d; cd -P d; done",
    "no-permissions": "chmod 000 . /; mv /submission /elsewhere",
    "a-file-in-its-place": "cd /; rm -rf submission; echo x > submission",
    "a-link-to-itself": "cd /; rm -rf submission; ln -s submission submission",
    "a-link-to-proc": "cd /; rm -rf submission; ln -s /proc/self submission",
    "a-fifo-in-its-place": "cd /; rm -rf submission; mkfifo submission",
    "no-programs": "rm -rf /tmp /etc; mv /usr /u; mv /bin /b; mv /lib /l; mv /lib64 /l64",
    "moves-in-the-background": "(while :; do mv /submission /s2; mv /s2 /submission; done) >/dev/null 2>&1 & sleep 0.1",
    "forks-in-the-background": "(while :; do sleep 1000 & done) >/dev/null 2>&1 & sleep 0.1",
}


@pytest.mark.parametrize("name", FILLED)
async def test_a_memory_that_is_full_keeps_nobody_from_judging(play_all: PlayAll, name: str) -> None:
    """What is sealed has room to be read: without that the episode would be masked, as ours."""
    task = msgspec.structs.replace(file_task(), agent=Agent(memory_bytes=32 << 20))
    (episode,) = await play_all([task], [script_player("fills", lambda told: [Run(command=FILLED[name])])])

    assert "memory" in episode.trajectory.limits_hit
    assert (End.SUBMITTED, 0.0, ()) == (episode.trajectory.end, episode.reward, episode.attempts)


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_sandbox_is_judged_as_it_is(play_all: PlayAll, name: str) -> None:
    """With no reward, and in one try."""
    breaks = script_player("breaks", lambda told: [Run(command=BROKEN[name], wall_time_s=20.0)])
    (episode,) = await play_all([file_task(note="n")], [breaks])

    assert (End.SUBMITTED, 0.0, ()) == (episode.trajectory.end, episode.reward, episode.attempts)
