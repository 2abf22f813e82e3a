"""Opens what a run needs, plays it with a view of how far it is, and heeds signals on the way."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import trio

from minisandbox.cli.rollout_shown import Summary, drawing
from minisandbox.cli.signals import ENDING
from minisandbox.errors import SandboxError
from minisandbox.judge.integrity import SHARED_USER, caps_of
from minisandbox.judge.pipeline import Judge
from minisandbox.judge.store import Store as JudgeStore
from minisandbox.judge.warm import Warm, open_warm
from minisandbox.rollout.referee import LocalReferee, Referee, RemoteReferee
from minisandbox.rollout.run import Plan, Run
from minisandbox.rollout.scheduler import first_of
from minisandbox.rollout.source import LeftOut, tasks_of
from minisandbox.rollout.store import open_store
from minisandbox.rollout.tally import Tally
from minisandbox.runtime.opening import open_supervisor
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template_pool import MOST_TEMPLATES

JUDGE_NAME = "judge"
"""Below the directory of the records: the judge's own, which only it enters."""

_SANDBOXES_A_VERDICT = 6


async def serve_run(plan: Plan, sources: Sequence[str], options: argparse.Namespace, state_dir: Path | None) -> Summary:
    """Play a run, and return what came of it. Raises what stopped it, but for signals."""
    try:
        return await _serve(plan, sources, options, state_dir)
    except* (SandboxError, OSError) as group:
        error = first_of(group)
    raise error


async def _serve(plan: Plan, sources: Sequence[str], options: argparse.Namespace, state_dir: Path | None) -> Summary:
    session = _Session()
    processors = len(os.sched_getaffinity(0))
    templates = 2 * MOST_TEMPLATES  # of tasks, and of the judge
    most = 2 * plan.concurrency.most + _SANDBOXES_A_VERDICT * processors + templates
    with session.scope:
        async with (
            _heeding(session.heed),
            open_store(options.out) as recorder,
            open_supervisor(
                state_dir=state_dir,
                max_sandboxes=most,
                degrade=options.degrade,
                reserve_cpus=options.reserve_cpus,
                reserve_memory_bytes=options.reserve_memory or 0,
            ) as supervisor,
            open_warm(supervisor) as warm,
        ):
            referee = _referee(options, supervisor, warm, processors)
            run = session.run = Run(plan, supervisor, referee, recorder, session.tally.add, session.left_out.append)
            async with drawing(run, session.tally, quiet=options.json):
                tasks = tasks_of(sources, supervisor.state, limit=options.limit)
                await run.play(tasks, version=_version(), machine=_machine())
    return session.summary(str(options.out))


@dataclass(slots=True)
class _Session:
    """What is known of a run here, and what signals do to it."""

    run: Run | None = None
    tally: Tally = field(default_factory=Tally)
    left_out: list[LeftOut] = field(default_factory=list)
    came: list[int] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    began: float = field(default_factory=time.monotonic)

    def heed(self, number: int) -> None:
        """End: at the first Ctrl-C with what runs, else at once."""
        self.came.append(number)
        if self.run is None:
            self.scope.cancel()
        elif number == signal.SIGINT and not self.run.scheduler.state.draining:
            self.run.scheduler.drain()
        else:
            self.run.scheduler.stop()

    def summary(self, directory: str) -> Summary:
        """Return what came of it."""
        return Summary(
            directory=directory,
            before=self.run.before if self.run else 0,
            episodes=self.tally.episodes,
            turns=self.tally.turns,
            retries=self.tally.retries,
            seconds=time.monotonic() - self.began,
            policies=self.tally.summaries(),
            malformed=[f"{item.name}: {item.why}" for item in self.left_out if item.is_broken],
            left_out=[f"{item.name}: {item.why}" for item in self.left_out if not item.is_broken],
            signal=self.came[0] if self.came else None,
        )


def _referee(options: argparse.Namespace, supervisor: Supervisor, warm: Warm, processors: int) -> Referee:
    if options.judge_socket is not None:
        return RemoteReferee(options.judge_socket)
    caps = (SHARED_USER, *caps_of(supervisor.degraded))
    judge = Judge(supervisor=supervisor, store=JudgeStore.open(options.out / JUDGE_NAME), caps=caps, warm=warm)
    return LocalReferee(judge, processors)


@contextlib.asynccontextmanager
async def _heeding(heed: Callable[[int], None]) -> AsyncIterator[None]:
    """Call `heed` with each signal that asks to end, during the block; those that are ignored stay so (nohup(1))."""
    numbers = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async for number in signals:
                heed(number)

    async with trio.open_nursery() as nursery:
        if numbers:
            await nursery.start(listen)
        yield
        nursery.cancel_scope.cancel()


def _version() -> str:
    try:
        return version("minisandbox")
    except PackageNotFoundError:
        return ""


def _machine() -> dict[str, str]:
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processors": str(len(os.sched_getaffinity(0))),
        "memory_bytes": str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "python": platform.python_version(),
    }
