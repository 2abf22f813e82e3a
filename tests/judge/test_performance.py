"""Functions that must be fast: the kernel's clock decides, on inputs that nobody could know, and noise does not."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.errors import TaskError
from minisandbox.judge.assignment import Assignment
from minisandbox.judge.evidence import Code
from minisandbox.judge.kinds.performance import seed_of
from minisandbox.judge.load import load_task
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.spec import Artifact, Manifest, Outcome
from minisandbox.judge.timing import Bound, Round, outcome_of_ratios, outcomes_of
from minisandbox.judge.verdict import Suspicion
from tests.judge.submissions import BUDGET, DEADLINE_S, decision, judged, write_files
from tests.judge.timed_tasks import INPUTS, SLOW, TASK

FAST = "def ranked(numbers):\n    return sorted(numbers, reverse=True)\n"
SAME = msgspec.structs.replace(TASK, bounds=(Bound(id="no slower", at_most=1.5), Bound(id="faster", at_most=0.5)))
RATIOS = st.lists(st.floats(0.0, 10.0), min_size=3, max_size=15)
BOUNDS = st.floats(0.01, 10.0)


async def test_what_is_faster_passes_and_replays(judge: Judge, tmp_path: Path) -> None:
    """Both bounds, and judging it again on the same inputs decides the same."""
    first = await judged(judge, tmp_path / "a", {"solution.py": FAST}, SAME)
    again = await judge.replay(first.episode)

    assert (Outcome.AC, 2) == (first.verdict.decision.verdict, first.verdict.decision.passed)
    assert again.same


async def test_what_is_as_fast_passes_one_bound(judge: Judge, tmp_path: Path) -> None:
    """The reference itself is not slower than it is, and not faster either."""
    made = await decision(judge, tmp_path / "a", {"solution.py": SLOW}, SAME)

    assert {"no slower": Outcome.AC, "faster": Outcome.TLE} == {test.id: test.outcome for test in made.tests}


WRONG = {
    "is wrong at times": (FAST + "made = ranked\ndef ranked(n): return made(n)[n[0] % 2 :]\n", Outcome.WA),
    "answers nothing": ("def ranked(numbers): return None\n", Outcome.WA),
    "raises": ("def ranked(numbers): raise ValueError\n", Outcome.RTE),
    "leaves": ("import os\ndef ranked(numbers): os._exit(0)\n", Outcome.RTE),
    "never ends": ("def ranked(numbers):\n while True: pass\n", Outcome.TLE),
    "is not there": ("", Outcome.RTE),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_wrong_is_not_timed(judge: Judge, tmp_path: Path, name: str) -> None:
    """However fast it is: all bounds fail, in the first round that shows it."""
    source, expected = WRONG[name]
    made = await decision(judge, tmp_path / "a", {"solution.py": source}, SAME)

    assert (expected, 0) == (made.verdict, made.passed)


async def test_what_is_too_near_to_a_bound_is_no_score(judge: Judge, tmp_path: Path) -> None:
    """Noise decides nothing: the verdict is IE, which is masked, and says what was measured."""
    near = msgspec.structs.replace(TASK, bounds=(Bound(id="as fast", at_most=1.0),), margin=0.9, most_rounds=3)
    result = await judged(judge, tmp_path / "a", {"solution.py": SLOW}, near)

    assert (Outcome.IE, True) == (result.verdict.decision.verdict, result.verdict.reward.mask)
    assert "too near to a bound" in result.verdict.observations.failures[0]


async def test_excess_speed_is_told(judge: Judge, tmp_path: Path) -> None:
    """Below its floor it passes, and somebody should look."""
    work = msgspec.structs.replace(TASK, floor=0.45)
    made = await decision(judge, tmp_path / "a", {"solution.py": FAST}, work)

    assert (Outcome.AC, [Code.E18_EXCESS_SPEED.name]) == (made.verdict, [item.code for item in made.evidence])


async def test_right_for_some_inputs_alone_is_told(judge: Judge, tmp_path: Path) -> None:
    """What answered a round and is wrong in the next says so, weakly, each time it is judged; one that never does not.

    With the seeds of rounds left out of the comparison it would be wrong in the first.
    """
    inputs = TASK.inputs.decode().replace("return ([", "return ([seed % 2, *[").replace("],)", "]],)")
    work = msgspec.structs.replace(TASK, inputs=inputs.encode())
    task = Assignment(name="t", work=work, budget=BUDGET)
    source = FAST + "made = ranked\ndef ranked(n): return made(n)[n[0] :]\n"
    for number in itertools.count():
        content = f"{source}# {number}\n".encode()
        file = Artifact(path="solution.py", sha256=judge.store.put(content), size=len(content))
        manifest = Manifest(files=(file,))
        seed = judge.store.signer.seed(task.digest, manifest.digest)
        if [0, 1] == [seed_of(at, seed) % 2 for at in range(2)]:
            break
    with trio.fail_after(DEADLINE_S):
        told = await judge.judge(task, manifest)
        always = await decision(judge, tmp_path / "a", {"solution.py": WRONG["answers nothing"][0]}, work)
        again = await judge.replay(told.episode)
    made = told.verdict.decision

    assert (Outcome.WA, ["E20_SEED_DEPENDENT"]) == (made.verdict, [item.code for item in made.evidence])
    assert (Suspicion.WEAK, False) == (made.suspicious, told.verdict.reward.quarantine)
    assert again.same
    assert () == always.evidence


BROKEN = {
    "inputs that raise": {"inputs": b"def make(seed, number): raise ValueError\n"},
    "inputs that are no arguments": {"inputs": b"def make(seed, number): return 7\n"},
    "a reference that raises": {"reference": b"def ranked(numbers): raise ValueError\n"},
    "a reference that does nothing": {"reference": FAST.encode(), "inputs": b"def make(s, n): return ([],)\n"},
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_task_that_is_wrong_is_our_failure(judge: Judge, tmp_path: Path, name: str) -> None:
    """Never the submission's."""
    made = await decision(judge, tmp_path / "a", {"solution.py": FAST}, msgspec.structs.replace(TASK, **BROKEN[name]))

    assert Outcome.IE is made.verdict


async def test_inputs_are_others_for_each_submission_and_round(judge: Judge, tmp_path: Path) -> None:
    """A submission that fails wherever an input comes again does not fail, and cannot find the seed in its cell."""
    source = f"import os\nassert 'inputs.py' not in os.listdir('/submission')\n{FAST}"
    once = "seen = set()\nmade = ranked\ndef ranked(n):\n assert n[0] not in seen\n seen.add(n[0])\n return made(n)\n"
    made = await decision(judge, tmp_path / "a", {"solution.py": source + once}, TASK)

    assert Outcome.AC is made.verdict


@given(RATIOS, BOUNDS, st.floats(0.0, 0.5))
def test_ratios_decide_by_their_middle(ratios: list[float], at_most: float, margin: float) -> None:
    """What passes has most rounds below the bound, what fails most above it; the order does not matter."""
    outcome = outcome_of_ratios(ratios, at_most, margin)
    below = sum(ratio <= at_most for ratio in ratios)

    assert outcome is outcome_of_ratios(ratios[::-1], at_most, margin)
    assert outcome is not Outcome.AC or below >= 0.75 * len(ratios)
    assert outcome is not Outcome.TLE or below <= 0.25 * len(ratios)


@given(RATIOS, BOUNDS, st.floats(0.01, 0.5))
def test_two_measurements_that_are_near_never_contradict(ratios: list[float], at_most: float, margin: float) -> None:
    """Noise below the margin makes of a pass no failure, whatever the ratios are: it is undecided between them."""
    slower = [ratio * (1.0 + margin) * 0.999 for ratio in ratios]
    outcomes = {outcome_of_ratios(ratios, at_most, margin), outcome_of_ratios(slower, at_most, margin)}

    assert not outcomes >= {Outcome.AC, Outcome.TLE}


def test_one_wild_round_decides_nothing() -> None:
    """A round beside a busy neighbour is outvoted."""
    assert Outcome.AC is outcome_of_ratios([0.4, 0.4, 9.0, 0.4, 0.4], 0.5, 0.05)
    assert Outcome.TLE is outcome_of_ratios([0.9, 0.0, 0.9, 0.9, 0.9], 0.5, 0.05)
    assert None is outcome_of_ratios([0.4, 0.4, 9.0, 9.0, 0.4], 0.5, 0.05)
    assert None is outcomes_of(msgspec.structs.replace(TASK, floor=0.4), [0.4] * 5)


def test_a_ratio_is_never_below_zero() -> None:
    """Less time than a module that does nothing is none."""
    made = Round(submission_s=0.01, reference_s=0.5, nothing_s=0.02)

    assert (0.0, True) == (made.ratio, made.tells)
    assert not Round(submission_s=0.01, reference_s=0.04, nothing_s=0.02).tells


TOML = """format = 1
name = "fast"
[performance]
module = "solution"
function = "ranked"
bounds = [{ id = "twice as fast", at_most = 0.5 }]
calls = 4
rounds = 3
"""


def test_a_task_of_speed_is_read(tmp_path: Path) -> None:
    """With its reference and its inputs."""
    files = {"judge.toml": TOML, "tests/reference.py": SLOW, "tests/inputs.py": INPUTS}

    assert TASK == load_task(write_files(tmp_path / "task", files)).work


@pytest.mark.parametrize(
    "change",
    [
        ('"twice as fast", at_most = 0.5', '"x", at_most = 0'),
        ("at_most = 0.5", "at_most = nan"),
        ("calls = 4", "calls = 0"),
        ("rounds = 3", "rounds = 30"),
        ("calls = 4", "margin = 1"),
        ("calls = 4", "floor = -1"),
        ("calls = 4", 'reference = "nowhere.py"'),
        ('[{ id = "twice as fast", at_most = 0.5 }]', "[]"),
        ("at_most = 0.5 }", 'at_most = 0.5 }, { id = "twice as fast", at_most = 0.4 }'),
    ],
)
def test_a_task_of_speed_that_is_wrong_is_told(tmp_path: Path, change: tuple[str, str]) -> None:
    """Bounds that are none, too few calls or rounds, files that are missing."""
    files = {"judge.toml": TOML.replace(*change), "tests/reference.py": SLOW, "tests/inputs.py": INPUTS}
    with pytest.raises(TaskError):
        load_task(write_files(tmp_path / "task", files))
