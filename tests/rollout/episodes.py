"""Episodes for tests of the records and of what is made of them: real values, made by rule and not by chance."""

from __future__ import annotations

import random
from typing import Any

from minisandbox.judge.assignment import Assignment, StdioWork, TestCase
from minisandbox.judge.evidence import Code, evidence
from minisandbox.judge.spec import Integrity, TestRecord
from minisandbox.judge.spec import Outcome as TestOutcome
from minisandbox.judge.verdict import (
    Decision,
    Inputs,
    Observations,
    PenaltyPolicy,
    Verdict,
    decision_sha256,
    reward_of,
    suspicion_of,
)
from minisandbox.rollout.recorder import RunInfo
from minisandbox.rollout.spec import (
    Action,
    Attempt,
    Edit,
    End,
    Episode,
    EpisodeKey,
    Outcome,
    Python,
    Read,
    Run,
    Submit,
    Trajectory,
    Turn,
    Write,
)
from minisandbox.spec import ExitReason, Usage
from minisandbox.tasks.task import Task

RUN = RunInfo(policies=("oracle", "noop"), samples=4, seed=1, options={"turns": 8}, version="1", machine={"cpus": "2"})


def make_task(name: str = "sum", **changed: Any) -> Task:
    """Return a task of a program."""
    work = StdioWork(language="shell", source="main.sh", cases=(TestCase(id="one", input=b"1 2", answer=b"3"),))
    return Task(
        **{
            "name": name,
            "instruction": f"Write main.sh, which prints the sum of what it reads. This is {name}.",
            "assignment": Assignment(name=name, work=work),
            "metadata": {"difficulty": "easy"},
            **changed,
        }
    )


def make_usage(wall_time_s: float = 0.012, **changed: Any) -> Usage:
    """Return what a command used."""
    fields: dict[str, Any] = {
        "wall_time_s": wall_time_s,
        "cpu_time_s": 0.004,
        "memory_peak_bytes": 1 << 20,
        "memory_held_bytes": None,
        "processes_peak": 1,
        "stdout_bytes": 6,
        "stderr_bytes": 0,
        "disk_bytes": 4096,
        "disk_inodes": 3,
    }
    return Usage(**fields | changed)


def make_turn(index: int, action: Action, **outcome: Any) -> Turn:
    """Return a turn with what came of it."""
    return Turn(
        index=index,
        action=action,
        outcome=Outcome(**outcome),
        started_s=0.5 * index,
        think_s=0.25,
        act_s=0.125,
        tokens=100 + index,
        data={"message": f"turn {index}", "logprobs": [-0.5, -1.25]},
    )


def all_actions() -> tuple[Turn, ...]:
    """Return a turn of each kind."""
    ended = {"exit_reason": ExitReason.EXITED, "exit_code": 0}
    return (
        make_turn(
            0, Run(command="ls -l", stdin=b"in\n", wall_time_s=2.0), stdout=b"main.sh\n", usage=make_usage(), **ended
        ),
        make_turn(1, Read(path="main.sh"), stdout=b"\xff\0binary"),
        make_turn(2, Write(path="main.sh", content=b"echo 3\n", executable=True)),
        make_turn(3, Edit(path="main.sh", old="3", new="4"), error="the text is not there once, but 2 times"),
        make_turn(4, Run(command="kill -9 $$"), exit_reason=ExitReason.SIGNALED, signal=9, stderr=b"killed"),
        make_turn(
            5, Python(code="print(1)\nprint(input())", stdin=b"py\n", wall_time_s=3.0), stdout=b"1\npy\n", **ended
        ),
        make_turn(6, Submit(note="done")),
    )


def make_verdict(
    score: float | None = 1.0, *, codes: tuple[Code, ...] = (), tests: int = 2, penalty: PenaltyPolicy | None = None
) -> Verdict:
    """Return a verdict with a score, None for one where we failed."""
    found = tuple(evidence(code, cell="main", paths=("conftest.py",)) for code in codes)
    if score is None:
        outcome = TestOutcome.IE
    elif any(item.severity.value == "proven" for item in found):
        outcome = TestOutcome.TAMPER
    else:
        outcome = {1.0: TestOutcome.AC, 0.0: TestOutcome.WA}.get(score, TestOutcome.PARTIAL)
    passed = round(tests * (score or 0.0))
    records = tuple(
        TestRecord(id=f"test_{at}", outcome=TestOutcome.AC if at < passed else TestOutcome.WA) for at in range(tests)
    )
    decision = Decision(
        verdict=outcome,
        score=score,
        passed=passed,
        failed=tests - passed,
        total=tests,
        tests=records,
        suspicious=suspicion_of(found),
        integrity=Integrity.L4,
        integrity_cap_reasons=(),
        evidence=found,
        inputs=Inputs(
            task="sha256:1", tests="sha256:2", environment="sha256:3", artifacts="sha256:4", judge="sha256:5"
        ),
        plan=("main",),
    )
    failures = ("cell main: the launcher ended",) if score is None else ()
    return Verdict(
        decision=decision,
        decision_sha256=decision_sha256(decision),
        observations=Observations(failures=failures),
        reward=reward_of(decision, penalty or PenaltyPolicy()),
    )


def make_episode(task: str = "sum", policy: str = "oracle", sample: int = 0, **changed: Any) -> Episode:
    """Return an episode with a turn of each kind. Fields of its trajectory count, too."""
    of_trajectory = {name: changed.pop(name) for name in Trajectory.__struct_fields__ if name in changed}
    trajectory: dict[str, Any] = {
        "turns": all_actions(),
        "end": End.SUBMITTED,
        "artifacts": "sha256:4",
        **of_trajectory,
    }
    fields: dict[str, Any] = {
        "key": EpisodeKey(task=task, policy=policy, sample=sample),
        "seed": 7 + sample,
        "task_digest": make_task(task).digest,
        "group": task,
        "started": 1_700_000_000.0,
        "seconds": 3.5,
        "queued_s": 0.5,
        "opened_s": 0.25,
        "judged_s": 1.0,
        "trajectory": Trajectory(**trajectory),
        "verdict": make_verdict(),
        "judge_episode": f"{task}-{sample}",
    }
    return Episode(**fields | changed)


def failed_episode(task: str = "sum", policy: str = "oracle", sample: int = 0) -> Episode:
    """Return one in which we failed, after two tries."""
    attempt = Attempt(error="LaunchError", message="cannot mount /proc: too many levels", retryable=True, seconds=0.5)
    return make_episode(
        task,
        policy,
        sample,
        turns=(),
        end=End.INFRASTRUCTURE,
        why="cannot mount /proc",
        artifacts=None,
        verdict=None,
        judge_episode=None,
        attempts=(attempt, attempt),
    )


def many_episodes(
    number: int, *, policies: tuple[str, ...] = ("oracle", "noop", "cheat"), samples: int = 4
) -> list[Episode]:
    """Return the episodes of a run as it could have been, the same each time."""
    chance = random.Random(number)
    made: list[Episode] = []
    while len(made) < number:
        at = len(made)
        task, rest = divmod(at, len(policies) * samples)
        made.append(_any_episode(chance, f"task-{task:03}", policies[rest // samples], rest % samples, at))
    return made


def _any_episode(chance: random.Random, task: str, policy: str, sample: int, at: int) -> Episode:
    started = 1_700_000_000.0 + at * 0.4 + chance.random()
    if chance.random() < 0.02:
        failed = failed_episode(task, policy, sample)
        return Episode(**{name: getattr(failed, name) for name in failed.__struct_fields__} | {"started": started})
    codes: tuple[Code, ...] = ()
    score: float = {"oracle": 1.0, "noop": 0.0}.get(policy, round(chance.random() * 4) / 4)
    if policy == "cheat" and chance.random() < 0.5:
        codes = (chance.choice([Code.E03_MIRROR_PASSED, Code.E09_PLANTED_CODE, Code.E13_INTROSPECTION]),)
    turns = [
        make_turn(index, Run(command=f"python3 step_{index}.py --task {task}"), stdout=b"line of output\n" * 20)
        for index in range(chance.randint(1, 4))
    ]
    end = chance.choice([End.SUBMITTED] * 12 + [End.TURNS, End.TOKENS, End.WALL_TIME, End.POLICY])
    return make_episode(
        task,
        policy,
        sample,
        turns=(*turns, make_turn(len(turns), Submit(note="done"))),
        end=end,
        why="the policy raised ValueError" if end is End.POLICY else "",
        limits_hit=(end.value,) if end not in (End.SUBMITTED, End.POLICY) else (),
        started=started,
        seconds=1.0 + chance.expovariate(0.5),
        verdict=make_verdict(None if chance.random() < 0.01 else score, codes=codes),
    )
