"""Scripts of a task that write a reward: only what they wrote counts, and nothing that is no reward."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from minisandbox.judge.assignment import Assignment, Declared, ScriptWork, TaskFile
from minisandbox.judge.decide import Scoring
from minisandbox.judge.evidence import Code
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.rewards import BadRewardError, read_rewards
from minisandbox.judge.spec import Integrity, Outcome
from tests.judge.submissions import BUDGET, decision, judged, take_in, write_files

OUT = "/logs/verifier"


def script(text: str, **changes: object) -> ScriptWork:
    """A task whose script is this."""
    files = (TaskFile(path="test.sh", content=text.encode()), TaskFile(path="data/answer", content=b"42\n"))
    return ScriptWork(files=files, **changes)  # type: ignore[arg-type]


COMPARES = script(
    f"if cmp -s answer.txt /tests/data/answer; then echo 1 > {OUT}/reward.txt; else echo 0 > {OUT}/reward.txt; fi"
)


async def test_a_right_answer_is_rewarded(judge: Judge, tmp_path: Path) -> None:
    """The script sees the artifacts, and what it writes is the verdict, worth L1 and the same again."""
    first = await judged(judge, tmp_path / "a", {"answer.txt": "42\n"}, COMPARES)
    made = first.verdict.decision
    again = await judge.replay(first.episode)

    assert (Outcome.AC, 1.0, Integrity.L1) == (made.verdict, made.score, made.integrity)
    assert again.same


async def test_a_reward_of_the_submission_is_none(judge: Judge, tmp_path: Path) -> None:
    """Neither as an artifact of that name nor by a path that leads there."""
    planted = {"answer.txt": "41\n", "logs/verifier/reward.txt": "1", "reward.txt": "1", "tests/test.sh": "exit 0"}
    made = await decision(judge, tmp_path / "a", planted, COMPARES)

    assert (Outcome.WA, 0.0) == (made.verdict, made.score)


async def test_artifacts_lie_where_the_task_wants_them(judge: Judge, tmp_path: Path) -> None:
    """What the rootfs has there is gone."""
    work = script(f"cmp /etc/app/x /tests/data/answer && echo 1 > {OUT}/reward.txt", root="/etc/app")
    made = await decision(judge, tmp_path / "a", {"x": "42\n"}, work)

    assert Outcome.AC is made.verdict


WRITES = {
    "nothing": ("true", Outcome.RTE),
    "an exit code": ("exit 3", Outcome.RTE),
    "not a number": (f"echo nan > {OUT}/reward.txt", Outcome.RTE),
    "too much": (f"echo 2 > {OUT}/reward.txt", Outcome.RTE),
    "a text": (f"""echo '{{"reward": "1"}}' > {OUT}/reward.json""", Outcome.RTE),
    "true": (f"""echo '{{"reward": true}}' > {OUT}/reward.json""", Outcome.RTE),
    "infinity": (f"""echo '{{"reward": 1e400}}' > {OUT}/reward.json""", Outcome.RTE),
    "one name twice": (f"""echo '{{"reward": 0, "reward": 1}}' > {OUT}/reward.json""", Outcome.RTE),
    "two that differ": (f"""echo 0 > {OUT}/reward.txt; echo '{{"reward": 1}}' > {OUT}/reward.json""", Outcome.RTE),
    "two that are the same": (f"""echo 1 > {OUT}/reward.txt; echo '{{"reward": 1}}' > {OUT}/reward.json""", Outcome.AC),
    "a huge file": (f"head -c 9000000 /dev/zero > {OUT}/reward.txt", Outcome.RTE),
    "a link": (f"ln -s /tests/data/one {OUT}/reward.txt; echo 1 > /tests/data/one", Outcome.RTE),
    "a FIFO": (f"mkfifo {OUT}/reward.txt", Outcome.RTE),
    "half": (f"echo 0.5 > {OUT}/reward.txt", Outcome.PARTIAL),
    "one, and no end": (f"echo 1 > {OUT}/reward.txt; while true; do :; done", Outcome.TLE),
    "one, and waits": (f"echo 1 > {OUT}/reward.txt; sleep 99", Outcome.ILE),
}


@pytest.mark.parametrize("name", WRITES)
async def test_what_is_no_reward_is_none(judge: Judge, tmp_path: Path, name: str) -> None:
    """Each is a result of its own, and a failure of the submission, never of ours."""
    text, expected = WRITES[name]
    made = await decision(judge, tmp_path / "a", {}, script(text))

    assert expected is made.verdict
    assert (1.0 if expected is Outcome.AC else 0.0) == made.score


async def test_rewards_count_in_part(judge: Judge, tmp_path: Path) -> None:
    """Where the task says so, the score is their mean."""
    work = script(f"""echo '{{"a": 1, "b": 0.5}}' > {OUT}/reward.json""", rewards=("a", "b"))
    assignment = Assignment(name="parts", work=work, budget=BUDGET, scoring=Scoring.FRACTION)
    manifest = await take_in(judge, write_files(tmp_path / "a", {}), assignment)
    made = (await judge.judge(assignment, manifest)).verdict.decision

    assert (Outcome.PARTIAL, 0.75, 1) == (made.verdict, made.score, made.passed)


def test_both_files_must_agree() -> None:
    """And each must have what the task names, nothing more and nothing less."""
    assert {"reward": 1.0} == read_rewards(b" 1.0\n", None, ("reward",))
    assert {"a": 0.25, "b": 1.0} == read_rewards(None, b'{"a": 0.25, "b": 1}', ("a", "b"))
    for text, document in [
        (None, None),
        (b"", None),
        (b"1 1", None),
        (b"-0.5", None),
        (b"1e0", None),
        (b"\xd9\xa1", None),
        (None, b"1"),
        (None, b"[" * 4000),
        (None, b'{"reward": NaN}'),
        (None, b'{"reward": null}'),
        (None, b'{"reward": 1, "other": 1}'),
        (None, b'\xff{"reward": 1}'),
        (b"0", b'{"reward": 1}'),
    ]:
        with pytest.raises(BadRewardError):
            read_rewards(text, document, ("reward",))


async def test_a_bad_reward_is_evidence(judge: Judge, tmp_path: Path) -> None:
    """What was wrong with it is told."""
    made = await decision(judge, tmp_path / "a", {}, script(f"echo ten > {OUT}/reward.txt"))

    assert [Code.E25_BAD_REWARD.name] == [item.code for item in made.evidence]
    assert ("reward.txt is no number",) == made.evidence[0].paths


async def test_a_link_to_the_tests_is_no_artifact(judge: Judge, tmp_path: Path) -> None:
    """Also where artifacts and tests lie below one root, as in tasks that declare places all over the file system."""
    work = script("mkdir -p /logs/verifier; cmp -s /out/answer /tests/answer && echo 1 > /logs/verifier/reward.txt")
    work = msgspec.structs.replace(work, root="/", files=(*work.files, TaskFile(path="answer", content=b"42")))
    task = Assignment(name="test", work=work, declared=Declared(root="/", paths=("out",)), budget=BUDGET)
    folder = write_files(tmp_path / "a", {"out/note": ""})
    (folder / "out" / "answer").symlink_to("../tests/answer")
    manifest = await take_in(judge, folder, task)
    made = (await judge.judge(task, manifest)).verdict.decision

    assert Outcome.RTE is made.verdict
    assert Code.E11_FORBIDDEN_FILE.name in {item.code for item in made.evidence}
