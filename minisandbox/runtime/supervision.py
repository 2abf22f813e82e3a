"""Waiting for a command under its limits: what the kernel does not stop by itself is stopped here.

The kernel enforces memory, processes, files and disk. Wall time and CPU time of a tree, output, and what v1 hosts do
not notify are watched here, with as few wake-ups as the limits allow: no more often than something can have changed.
"""

from __future__ import annotations

import math
import os

import trio

from minisandbox.errors import CgroupError, DeadlineError
from minisandbox.runtime.command import Command
from minisandbox.spec import ExitReason, Limits

GRACE_S = 0.1
"""How long a command's pipes are still read after its main process ended, while a background process holds them."""

KILL_DEADLINE_S = 10.0
"""How long killed processes may take to end: they are interrupted even in most system calls."""

_CPU_PATIENCE_MIN_S = 0.005
_BACKGROUND_PATIENCE_MIN_S = 0.02

_PROCESSES_PATIENCE_S = (0.02, 1.0)
"""First and longest interval of looking at a counter that does not notify; it doubles each time."""


async def supervise(command: Command, limits: Limits) -> None:
    """Wait until the main process of the command ended and its pipes are read; kill its tree at a limit.

    Raises BrokenError when the sandbox goes first, DeadlineError when a killed command does not end.
    """
    watch = _Watch(command, limits)
    while not command.ended.is_set():
        wake = watch.look(trio.current_time())
        if wake == math.inf:
            await command.ended.wait()
        else:
            with trio.move_on_at(wake):
                await command.ended.wait()
    while not command.drained.is_set():
        if command.paused:
            await command.changed.wait()  # what is in its pipe belongs to the one who asked for the pause
            continue
        with trio.move_on_after(GRACE_S) as scope:
            await command.changed.wait()
        if scope.cancelled_caught:
            break
    if command.broken is not None:
        raise command.broken


async def watch_background(command: Command, cpu_time_s: float) -> None:
    """Kill what a command left in the background once the whole tree has used its CPU time; end when nothing is left.

    Never raises: the groups of a sandbox that is closed are gone.
    """
    try:
        while command.leaf.is_populated():
            left = cpu_time_s - command.leaf.cpu_time_s()
            if left <= 0:
                command.leaf.kill()
                return
            await trio.sleep(max(_BACKGROUND_PATIENCE_MIN_S, left / (os.cpu_count() or 1)))
    except CgroupError:
        return


class _Watch:
    """When to look again at what is limited."""

    def __init__(self, command: Command, limits: Limits) -> None:
        self._command = command
        now = trio.current_time()
        self._wall_end = now + limits.wall_time_s if limits.wall_time_s is not None else math.inf
        self._cpu_limit = limits.cpu_time_s
        self._killed_at = math.inf
        polled = limits.processes is not None and command.leaf.events_fd < 0
        self._patience = _PROCESSES_PATIENCE_S[0] if polled else math.inf

    def look(self, now: float) -> float:
        """Stop the command if a limit is passed, and return the time until which nothing can have happened."""
        command = self._command
        if command.stopped_for is None:
            if now >= self._wall_end:
                command.stop(ExitReason.WALL_TIME)
            cpu_end = self._look_at_cpu(now)
            processes_end = self._look_at_processes(now)
            if command.stopped_for is None:
                return min(self._wall_end, cpu_end, processes_end)
        if self._killed_at == math.inf:
            self._killed_at = now
        elif now - self._killed_at >= KILL_DEADLINE_S:
            raise DeadlineError(f"a killed command did not end within {KILL_DEADLINE_S:g} s")
        return self._killed_at + KILL_DEADLINE_S

    def _look_at_cpu(self, now: float) -> float:
        """Were the tree to run on every core, it could not use up what is left before the time returned."""
        used = None if self._cpu_limit is None else self._command.leaf.cpu_time_s()
        if self._cpu_limit is None or used is None:
            return math.inf
        left = self._cpu_limit - used
        if left <= 0:
            self._command.stop(ExitReason.CPU_TIME)
        return now + max(_CPU_PATIENCE_MIN_S, left / (os.cpu_count() or 1))

    def _look_at_processes(self, now: float) -> float:
        if self._patience == math.inf:
            return math.inf
        self._command.on_processes()
        patience, self._patience = self._patience, min(2 * self._patience, _PROCESSES_PATIENCE_S[1])
        return now + patience
