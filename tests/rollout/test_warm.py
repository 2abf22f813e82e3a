"""Episodes of tasks that ask for a warm Python: code runs in forks of it, as in a new one, and they share nothing."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
import trio

import minisandbox
from minisandbox.errors import BusyError, DeadlineError, HostError, SandboxError, StartError, TemplateError, UsageError
from minisandbox.judge.assignment import Environment
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.store import Store
from minisandbox.rollout.actions import perform
from minisandbox.rollout.concurrency import Concurrency
from minisandbox.rollout.policy import Player
from minisandbox.rollout.prepared import Prepared
from minisandbox.rollout.referee import LocalReferee
from minisandbox.rollout.run import Plan, Run
from minisandbox.rollout.scene import open_scene
from minisandbox.rollout.scheduler import Retry
from minisandbox.rollout.spec import Action, Episode, Observation, Outcome, Python, Step, Submit, Write
from minisandbox.rollout.warm import open_warm_tasks
from minisandbox.runtime.template_pool import MOST_TEMPLATES
from minisandbox.spec import ExitReason
from minisandbox.tasks.environment import open_environment, open_warm_python
from minisandbox.tasks.task import Agent, Task
from tests.rollout.conftest import PlayAll
from tests.rollout.faults import Chance, FaultySupervisor
from tests.rollout.players import DEADLINE_S, JUDGING, Memory, acting_player, file_task, script_player

pytestmark = JUDGING

ROOT = "/submission"
RETRY = Retry(tries=10, backoff_s=0.001, backoff_most_s=0.01)
SOLVE = Write(path="hello.txt", content=b"hello\n")
IS_LOADED = "import sys; print('decimal' in sys.modules)"


def warm_task(*modules: str, name: str = "greet", **files: str) -> Task:
    """Return a task that asks for a Python with these modules."""
    return msgspec.structs.replace(file_task(name, **files), agent=Agent(warm=modules))


def of_rootfs(rootfs: str, task: Task) -> Task:
    """Return a task with another root file system."""
    environment = Environment(rootfs=rootfs)
    return msgspec.structs.replace(task, assignment=msgspec.structs.replace(task.assignment, environment=environment))


def player(*actions: Action) -> Player:
    """Return a policy that solves the task after these actions."""
    return script_player("a", lambda told: [*actions, SOLVE])


def outputs(episode: Episode) -> list[bytes]:
    """Return what each turn wrote."""
    return [turn.outcome.stdout for turn in episode.trajectory.turns]


async def test_an_episode_finds_its_modules_imported(play_all: PlayAll, memory: Memory) -> None:
    """Where the task asks for them and nowhere else; what is left is judged as ever, and the record says it."""
    tasks = [warm_task("decimal", name="warm", note="n"), file_task("cold", note="n")]
    code = f"{IS_LOADED}; import os; print(os.getcwd(), open('note').read())"
    cold, warm = await play_all(tasks, [player(Python(code=code))])

    assert (b"True\n/submission n\n", True, 1.0) == (outputs(warm)[0], warm.warm, warm.reward)
    assert (b"False\n/submission n\n", False, 1.0) == (outputs(cold)[0], cold.warm, cold.reward)
    assert [] == memory.events


async def test_a_warm_python_may_have_no_modules(play_all: PlayAll) -> None:
    """It is one all the same."""
    (episode,) = await play_all([warm_task()], [player(Python(code=IS_LOADED))])

    assert (b"False\n", True, 1.0) == (outputs(episode)[0], episode.warm, episode.reward)


async def test_episodes_of_a_kind_share_a_template_for_the_run(
    play_all: PlayAll, supervisor: minisandbox.Supervisor
) -> None:
    """Of all tasks that ask for the same, and it is gone afterwards."""
    seen: list[int] = []

    async def act(observation: Observation) -> Step:
        seen.append(len(supervisor.templates))
        return Step(action=Python(code="") if observation.turn == 0 else Submit())

    tasks = [warm_task("decimal", name=name) for name in "abc"]
    episodes = await play_all(tasks, [acting_player("a", act)], samples=2)

    assert {1} == set(seen)
    assert [True] * 6 == [episode.warm for episode in episodes]
    assert [] == supervisor.templates


LEAVES = """
import builtins, decimal, os, pathlib, sys
builtins.left = decimal.left = sys.modules["left"] = decimal
builtins.print = len
os.environ["LEFT"] = "1"
decimal.getcontext().prec = 5
for place in (".", "/tmp", "/dev/shm"):
    pathlib.Path(place, "left").touch()
"""
LOOKS = """
import builtins, decimal, os, sys
print(hasattr(builtins, "left"), hasattr(decimal, "left"), "left" in sys.modules, "LEFT" in os.environ)
print(decimal.getcontext().prec, [os.path.exists(f"{place}/left") for place in (".", "/tmp", "/dev/shm")])
"""


async def test_nothing_of_an_episode_is_seen_by_another(play_all: PlayAll) -> None:
    """Neither patched builtins nor modules nor variables nor files; of a turn before, files alone."""
    many = player(Python(code=LOOKS), Python(code=LEAVES), Python(code=LOOKS))
    episodes = await play_all([warm_task("decimal")], [many], samples=6, at_once=2)
    clean = b"False False False False\n28 "

    assert [True] * 6 == [episode.warm for episode in episodes]
    for episode in episodes:
        before, _, after = outputs(episode)[:3]

        assert clean + b"[False, False, False]\n" == before
        assert clean + b"[True, True, True]\n" == after


# ---- warm and cold say the same

PROGRAMS: dict[str, Python] = {
    "print": Python(code="print(1)"),
    "input": Python(code="print(input(), open('note').read())", stdin=b"in\n"),
    "no input": Python(code="import sys; print(repr(sys.stdin.read()))"),
    "an exception": Python(code="def f():\n    raise ValueError('x')\nf()"),
    "no syntax": Python(code="print(1)\ndef f(:"),
    "an exit code": Python(code="import sys; print(2); sys.exit(3)"),
    "a last word": Python(code="import sys; sys.exit('bye')"),
    "a signal": Python(code="import os; os.kill(os.getpid(), 9)"),
    "interrupted": Python(code="raise KeyboardInterrupt"),
    "too long": Python(code="print(1, flush=True)\nwhile True: pass", wall_time_s=0.5),
    "surroundings": Python(
        code="import os, sys; print(os.getcwd(), sys.argv, sys.path, sys.executable, sys.flags, __name__, hash('a'))\n"
        "print(sorted(os.environ.items()), os.getuid(), os.getgroups(), os.umask(0), os.listdir('/proc/self/fd'))"
    ),
    "modules of the task": Python(code="import own; print(own.VALUE)"),
    "no such module": Python(code="import absent"),
    "long output": Python(code="print('x' * 5000)"),
    "too much code": Python(code=f"print(1) #{'x' * 131072}"),
    "what is no text": Python(code="print('\ud800')"),
    "the start of code": Python(code="-h"),
}


async def test_warm_and_cold_say_the_same(supervisor: minisandbox.Supervisor) -> None:
    """Output, traceback, exit code, signal and limit, and what is refused."""
    task = warm_task("decimal", note="n", **{"own.py": "VALUE = 5\n"})
    outcomes: dict[str, list[Outcome]] = {name: [] for name in PROGRAMS}
    async with open_warm_python(supervisor, task, 4) as template:
        for each in (None, template):
            async with open_environment(supervisor, task, each) as sandbox:
                for name, action in PROGRAMS.items():
                    with trio.fail_after(DEADLINE_S):
                        outcome = await perform(action, sandbox, ROOT, within_s=60.0, outcome_bytes=1000)
                    outcomes[name].append(msgspec.structs.replace(outcome, usage=None))
    cold = {name: before for name, (before, _) in outcomes.items()}

    assert cold == {name: after for name, (_, after) in outcomes.items()}
    assert b'File "<string>", line 2, in f\nValueError: x\n' in cold["an exception"].stderr
    assert [1, 3, 1] == [cold[name].exit_code for name in ("an exception", "an exit code", "no such module")]
    assert (ExitReason.WALL_TIME, b"1\n") == (cold["too long"].exit_reason, cold["too long"].stdout)
    assert "longer than" in (cold["too much code"].error or "")
    assert (cold["long output"].truncated, 1000) == (True, len(cold["long output"].stdout))
    assert b"5\n" == cold["modules of the task"].stdout


async def test_code_can_be_run_where_there_is_no_python(supervisor: minisandbox.Supervisor) -> None:
    """It is told to the policy, and the sandbox goes on."""
    async with open_scene(supervisor, of_rootfs("busybox", file_task())) as scene:
        refused = (await scene.act(Step(action=Python(code="print(1)")))).outcome
        again = await scene.run("echo ok")

    assert "python3" in (refused.error or "")
    assert b"ok\n" == again.stdout


# ---- where there is no warm Python


async def test_what_cannot_be_imported_is_played_cold(play_all: PlayAll, memory: Memory) -> None:
    """Code finds that it is not there, as in any Python; the run says why, once, and no episode fails for it."""
    tasks = [warm_task("absent_module", name=name) for name in "ab"]
    episodes = await play_all(tasks, [player(Python(code="print(1)"), Python(code="import absent_module"))], samples=2)

    assert [(False, 1.0, b"1\n", ())] * 4 == [
        (each.warm, each.reward, outputs(each)[0], each.attempts) for each in episodes
    ]
    assert [1] * 4 == [each.trajectory.turns[1].outcome.exit_code for each in episodes]
    assert ["cold"] == [name for name, _, _ in memory.events]
    assert "No module named 'absent_module'" in memory.events[0][2]["why"]


async def test_a_task_without_python_is_played_cold(play_all: PlayAll) -> None:
    """What it asks for cannot be had, and it is solved all the same."""
    (episode,) = await play_all([of_rootfs("busybox", warm_task())], [player()])

    assert (False, 1.0) == (episode.warm, episode.reward)


async def test_no_more_templates_are_open_than_there_is_room_for(
    play_all: PlayAll, supervisor: minisandbox.Supervisor, memory: Memory
) -> None:
    """Tasks that ask for another one are played cold."""
    seen: list[int] = []

    async def act(observation: Observation) -> Step:
        seen.append(len(supervisor.templates))
        return Step(action=SOLVE if observation.turn == 0 else Submit())

    modules = ["decimal", "json", "csv", "bisect", "heapq", "queue"][: MOST_TEMPLATES + 1]
    tasks = [warm_task(module, name=f"t{number}") for number, module in enumerate(modules)]
    episodes = await play_all(tasks, [acting_player("a", act)], at_once=1)

    assert [True] * MOST_TEMPLATES + [False] == [episode.warm for episode in episodes]
    assert MOST_TEMPLATES == max(seen)
    assert [1.0] * len(modules) == [episode.reward for episode in episodes]
    assert [("cold", {"task": f"t{MOST_TEMPLATES}", "why": f"{MOST_TEMPLATES} are open already"})] == [
        (name, data) for name, _, data in memory.events
    ]


async def test_a_template_that_finds_no_room_is_asked_for_again(state_dir: Path) -> None:
    """A later episode has it."""
    task, memory = warm_task("decimal"), Memory()
    async with (
        minisandbox.open_supervisor(state_dir=state_dir, max_sandboxes=1, self_test=False) as supervisor,
        open_warm_tasks(supervisor, memory.event, 4) as warm,
    ):
        async with supervisor.open_template():
            full = await warm.template(task)
        with trio.fail_after(DEADLINE_S):
            later = await warm.template(task)
            async with Prepared(supervisor, task, 1, warm).open() as sandbox:
                ran = await sandbox.run_warm(IS_LOADED)

    assert full is None
    assert later is not None
    assert b"True\n" == ran.stdout
    assert ["BusyError"] == [data["why"].partition(":")[0] for _, _, data in memory.events]


@pytest.mark.parametrize("error", [HostError("no subordinate ids"), DeadlineError("too long"), TemplateError("no", "")])
async def test_what_fails_as_surely_again_is_not_tried_again(
    supervisor: minisandbox.Supervisor, monkeypatch: pytest.MonkeyPatch, error: SandboxError
) -> None:
    """Episodes would wait for it each time."""
    tries = 0

    def open_template(*given: object, **options: object) -> NoReturn:
        nonlocal tries
        tries += 1
        raise error

    monkeypatch.setattr(supervisor, "open_template", open_template)
    memory = Memory()
    async with open_warm_tasks(supervisor, memory.event, 4) as warm:
        found = [await warm.template(warm_task("decimal")) for _ in range(3)]

    assert ([None] * 3, 1) == (found, tries)
    assert ["cold"] == [name for name, _, _ in memory.events]


# ---- faults of ours


@pytest.mark.parametrize("at_once", [1, 3])
async def test_a_pod_that_is_killed_is_tried_again(
    play_all: PlayAll, supervisor: minisandbox.Supervisor, at_once: int
) -> None:
    """Whoever was in it begins anew in another one, and none of them fails for it."""
    killed: list[str] = []

    async def act(observation: Observation) -> Step:
        if observation.turn == 0:
            return Step(action=SOLVE)
        if not killed:
            killed.append(observation.episode)
            supervisor.templates[0].kill()
        return Step(action=Python(code=IS_LOADED) if observation.turn == 1 else Submit())

    episodes = await play_all([warm_task("decimal")], [acting_player("a", act)], samples=3, at_once=at_once)

    assert [(True, 1.0, b"True\n")] * 3 == [(each.warm, each.reward, outputs(each)[1]) for each in episodes]
    assert any(each.attempts for each in episodes if each.key.id in killed)
    assert all(fault.retryable for each in episodes for fault in each.attempts)


async def test_a_warm_process_that_is_killed_is_replaced(play_all: PlayAll, supervisor: minisandbox.Supervisor) -> None:
    """In the middle of an episode, which goes on."""

    async def act(observation: Observation) -> Step:
        if observation.turn == 1:
            warm = supervisor.templates[0]._warm
            assert warm is not None
            warm.slot.cgroup.kill()
        actions: list[Action] = [Python(code=IS_LOADED), Python(code=IS_LOADED), SOLVE, Submit()]
        return Step(action=actions[observation.turn])

    (episode,) = await play_all([warm_task("decimal")], [acting_player("a", act)])

    assert ([b"True\n"] * 2, 1.0, ()) == (outputs(episode)[:2], episode.reward, episode.attempts)


async def test_code_runs_cold_when_there_is_no_warm_python_any_more(
    play_all: PlayAll, supervisor: minisandbox.Supervisor, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of an episode, in the same sandbox; later episodes are cold from the start."""

    async def ensure() -> None:
        raise TemplateError("the preload failed", "")

    async def act(observation: Observation) -> Step:
        if observation.turn == 1 and not memory.episodes:
            monkeypatch.setattr(supervisor.templates[0], "ensure", ensure)
        actions: list[Action] = [SOLVE, Python(code=IS_LOADED), Submit()]
        return Step(action=actions[observation.turn])

    episodes = await play_all([warm_task("decimal")], [acting_player("a", act)], samples=2, at_once=1)

    assert [(True, b"False\n", 1.0), (False, b"False\n", 1.0)] == [
        (each.warm, outputs(each)[1], each.reward) for each in episodes
    ]
    assert [("cold", "TemplateError: the preload failed")] == [(name, data["why"]) for name, _, data in memory.events]


@pytest.mark.parametrize("error", [BusyError("all slots are in use"), StartError("cannot", "clone", errno.EAGAIN)])
async def test_a_fault_that_passes_is_no_reason_to_stay_cold(
    supervisor: minisandbox.Supervisor, monkeypatch: pytest.MonkeyPatch, error: SandboxError
) -> None:
    """The next episode is warm again."""

    async def ensure() -> None:
        raise error

    task, memory = warm_task("decimal"), Memory()
    async with open_warm_tasks(supervisor, memory.event, 4) as warm:
        first = await warm.template(task)
        with monkeypatch.context() as patch:
            patch.setattr(first, "ensure", ensure)
            second = await warm.template(task)
        third = await warm.template(task)

    assert first is third
    assert (None, True) == (second, first is not None)


@pytest.mark.slow
async def test_faults_around_warm_pythons_never_make_a_false_score(
    supervisor: minisandbox.Supervisor, tmp_path: Path, memory: Memory
) -> None:
    """5 % at every step, pods and warm processes killed among them: the verdict that was earned, or none as ours."""
    chance = Chance(0.05, seed=3)
    faulty = FaultySupervisor(supervisor, chance)
    judge = Judge(supervisor=supervisor, store=Store.open(tmp_path / "judge"))

    def playing(name: str, code: str) -> Player:
        async def act(observation: Observation) -> Step:
            for template in supervisor.templates:
                if chance.comes("pod"):
                    template.kill()
                elif template._warm is not None and chance.comes("warm process"):
                    template._warm.slot.cgroup.kill()
            return Step(action=Python(code=code) if observation.turn < 3 else Submit())

        return acting_player(name, act)

    players = [playing("solver", "import decimal; open('hello.txt', 'w').write('hello\\n')"), playing("idler", "1")]
    plan = Plan(players=players, samples=10, concurrency=Concurrency(least=4, most=4), retry=RETRY)
    tasks = [warm_task("decimal", name=name) for name in "ab"]
    with trio.fail_after(4 * DEADLINE_S):
        await Run(plan, faulty, LocalReferee(judge, 2), memory).play(iter(tasks))  # type: ignore[arg-type]  # it does as a supervisor does, with faults
    episodes = list(memory.episodes.values())
    earned = {"solver": 1.0, "idler": 0.0}

    assert 2 * 2 * 10 == len(episodes)
    assert [] == [each for each in episodes if each.reward not in (earned[each.key.policy], None)]
    assert sum(each.reward is None for each in episodes) < len(episodes) / 2
    assert sum(each.warm for each in episodes) > len(episodes) / 2
    assert {"pod", "warm process", "in use"} <= {kind for kind, count in chance.thrown.items() if count}


# ---- scenes


async def test_a_warm_scene_cannot_be_branched(supervisor: minisandbox.Supervisor) -> None:
    """It says so, and goes on."""
    task = warm_task("decimal")
    async with open_warm_python(supervisor, task, 4) as template:
        async with open_scene(supervisor, task, template=template) as scene:
            with pytest.raises(UsageError, match="template"):
                async with scene.branch(["left"]):
                    pass
            outcome = (await scene.act(Step(action=Python(code=IS_LOADED)))).outcome

    assert b"True\n" == outcome.stdout


@pytest.mark.requires_root
async def test_a_cold_scene_of_such_a_task_can_be_branched(supervisor: minisandbox.Supervisor) -> None:
    """Its code is run by a new Python each time."""
    async with open_scene(supervisor, warm_task("decimal")) as scene:
        await scene.act(Step(action=Python(code="open('shared', 'w').write('s')")))
        async with scene.branch(["left"]) as (left,):
            outcome = (await left.act(Step(action=Python(code=f"{IS_LOADED}; print(open('shared').read())")))).outcome

    assert b"False\ns\n" == outcome.stdout


# ---- numpy


@pytest.fixture
async def numpy_rootfs(supervisor: minisandbox.Supervisor) -> str:
    """The name of a root file system with numpy."""
    if subprocess.run(["/usr/bin/python3", "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("the Python of this host has no pip to install numpy with")
    try:
        with trio.fail_after(240):
            await supervisor.find_rootfs("python")
    except (SandboxError, trio.TooSlowError) as error:
        pytest.skip(f"numpy cannot be had here: {str(error).splitlines()[0]}")
    return "python"


@pytest.mark.slow
async def test_numpy_is_there_before_it_is_imported(play_all: PlayAll, numpy_rootfs: str) -> None:
    """And draws other numbers in each episode, by generators that are made there."""
    code = "import sys; there = 'numpy' in sys.modules; import numpy; print(there, numpy.random.random())"
    task = of_rootfs(numpy_rootfs, warm_task("numpy"))
    episodes = await play_all([task], [player(Python(code=code))], samples=3)
    seen = {outputs(episode)[0] for episode in episodes}

    assert [(True, 1.0)] * 3 == [(each.warm, each.reward) for each in episodes]
    assert all(line.startswith(b"True 0.") for line in seen)
    assert 3 == len(seen)
