"""A scene: an episode while it is played. Its sandbox, the turns so far, and what is left of its budget.

It can be played by hand or by a policy, and forked in the middle (`branch`). It judges nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import trio

from minisandbox.errors import UsageError
from minisandbox.rollout.actions import perform
from minisandbox.rollout.spec import Budget, End, Left, Observation, Outcome, Run, Step, Submit, Trajectory, Turn
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template
from minisandbox.spec import ExitReason
from minisandbox.tasks.environment import open_environment
from minisandbox.tasks.task import Task

_BY_ITSELF = (None, ExitReason.EXITED, ExitReason.SIGNALED)
_RAN_OUT = (End.TURNS, End.TOKENS, End.WALL_TIME)


class Scene:
    """An episode that goes on. Make it with `open_scene`, or by `branch` of another."""

    def __init__(
        self,
        episode: str,
        task: Task,
        sandbox: Sandbox,
        budget: Budget,
        *,
        turns: Sequence[Turn] = (),
        started: float | None = None,
        branched_from: tuple[str, int] | None = None,
    ) -> None:
        self.episode, self.task, self.sandbox, self.budget = episode, task, sandbox, budget
        self.turns = list(turns)
        self._tokens = sum(turn.tokens for turn in turns)
        self.branched_from = branched_from
        self._started = trio.current_time() if started is None else started

    @property
    def directory(self) -> str:
        """Where the task is worked on."""
        return self.task.assignment.declared.root

    @property
    def wall_left_s(self) -> float | None:
        """How much time is left; a task's own bound for whoever solves it counts, too."""
        bounds = [each for each in (self.budget.wall_time_s, self.task.agent.timeout_s) if each is not None]
        return max(0.0, min(bounds) - self._now()) if bounds else None

    def _now(self) -> float:
        return trio.current_time() - self._started

    def left(self) -> Left:
        """Return what is left of the budget."""
        budget = self.budget
        return Left(
            turns=None if budget.turns is None else max(0, budget.turns - len(self.turns)),
            tokens=None if budget.tokens is None else max(0, budget.tokens - self._tokens),
            wall_time_s=self.wall_left_s,
        )

    @property
    def end(self) -> End | None:
        """Why there are no more turns; None while there are."""
        if self.turns and isinstance(self.turns[-1].action, Submit):
            return End.SUBMITTED
        left = self.left()
        for value, end in ((left.wall_time_s, End.WALL_TIME), (left.tokens, End.TOKENS), (left.turns, End.TURNS)):
            if value is not None and value <= 0:
                return end
        return None

    @property
    def observation(self) -> Observation:
        """What a policy sees now."""
        return Observation(
            episode=self.episode,
            turn=len(self.turns),
            instruction=self.task.instruction,
            directory=self.directory,
            outcome=self.turns[-1].outcome if self.turns else None,
            left=self.left(),
        )

    async def act(self, step: Step, *, think_s: float = 0.0) -> Turn:
        """Play one turn, and return it. Raises UsageError when there are no more, SandboxError when we failed.

        Cancelled: what ran is killed, and the turn is not kept.
        """
        if self.end is not None:
            raise UsageError(f"the episode {self.episode} is over ({self.end.value}); open another")
        began = self._now()
        bounds = [each for each in (self.budget.turn_s, self.wall_left_s) if each is not None]
        outcome = await perform(
            step.action,
            self.sandbox,
            self.directory,
            within_s=min(bounds, default=None),
            outcome_bytes=self.budget.outcome_bytes,
        )
        turn = Turn(
            index=len(self.turns),
            action=step.action,
            outcome=outcome,
            started_s=began - think_s,
            think_s=think_s,
            act_s=self._now() - began,
            tokens=step.tokens,
            data=step.data,
        )
        self.turns.append(turn)
        self._tokens += turn.tokens
        return turn

    async def run(self, command: str, *, stdin: bytes = b"", wall_time_s: float | None = None) -> Outcome:
        """Play a turn that runs a command, and return what came of it."""
        return (await self.act(Step(action=Run(command=command, stdin=stdin, wall_time_s=wall_time_s)))).outcome

    @contextlib.asynccontextmanager
    async def branch(self, episodes: Sequence[str]) -> AsyncIterator[list[Scene]]:
        """Open scenes for the block, by the names of their episodes, that go on from here; this one can, too.

        They have the turns so far and what is left of the budget, and see nothing of each other. Raises BusyError while
        something runs in the sandbox, HostError where this kernel cannot fork one, UsageError for one of a template.
        """
        async with self.sandbox.fork(len(episodes)) as sandboxes:
            yield [
                Scene(
                    episode,
                    self.task,
                    sandbox,
                    self.budget,
                    turns=self.turns,
                    started=self._started,
                    branched_from=(self.episode, len(self.turns)),
                )
                for episode, sandbox in zip(episodes, sandboxes, strict=True)
            ]

    def trajectory(self, end: End, why: str = "", artifacts: str | None = None) -> Trajectory:
        """Return what happened, for an episode that ended so."""
        reasons = [turn.outcome.exit_reason for turn in self.turns]
        hit = [reason.value for reason in reasons if reason is not None and reason not in _BY_ITSELF]
        return Trajectory(
            turns=tuple(self.turns),
            end=end,
            why=why,
            limits_hit=(*hit, *([f"budget.{end.value}"] if end in _RAN_OUT else [])),
            artifacts=artifacts,
            branched_from=self.branched_from,
        )


@contextlib.asynccontextmanager
async def open_scene(
    supervisor: Supervisor,
    task: Task,
    *,
    budget: Budget | None = None,
    episode: str = "",
    template: Template | None = None,
) -> AsyncIterator[Scene]:
    """Open a scene of a task for the block. Raises what `Supervisor.open_sandbox` raises.

    With a template (`open_warm_python`) its Python is warm, and it cannot be branched.
    """
    async with open_environment(supervisor, task, template) as sandbox:
        yield Scene(episode or task.name, task, sandbox, budget or Budget())
