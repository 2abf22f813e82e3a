"""Counts what becomes of sandboxes and their commands, for those who look from outside.

Plain integers and buckets that are made once: a count costs well under a microsecond, and nothing is computed until
somebody asks. It knows no exporter, does no I/O, and never changes what becomes of a sandbox.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from minisandbox.errors import BrokenError, ClosedError, SandboxError, StartError
from minisandbox.runtime.observer import Observer, Spent
from minisandbox.spec import ExitReason

if TYPE_CHECKING:
    from minisandbox.runtime.sandbox import Sandbox
    from minisandbox.runtime.slots import Slot

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of every histogram; a last one takes what is longer."""

Event = Mapping[str, object]


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


def outcome_of(error: BaseException) -> str:
    """Return the word for a failure in a metric or an event: that of its class, without "Error", in lower case."""
    if isinstance(error, trio.Cancelled):
        return "cancelled"
    return type(error).__name__.removesuffix("Error").lower() if isinstance(error, SandboxError) else "other"


class Telemetry:
    """The counts of one supervisor. `on_event` is called with each event of its sandboxes' lives, where it is set."""

    def __init__(self, instance: str, *, with_argv: bool = False, leaked: int = 0) -> None:
        self.instance = instance
        self.on_event: Callable[[Event], object] | None = None
        self.with_argv = with_argv
        self.opened_at = time.time()
        self.leaked = leaked
        """What dead instances left and could not be removed when this one began."""
        self._clear()

    def begin(self, on_event: Callable[[Event], object] | None) -> None:
        """Begin to count anew, as if nothing had happened, and to pass events on."""
        self.on_event = on_event
        self._clear()

    def _clear(self) -> None:
        self.starting = 0
        self.queued = 0
        self.starts: dict[tuple[str, str], int] = defaultdict(int)
        """By outcome, and by the stage that failed."""
        self.opens: dict[str, int] = defaultdict(int)
        self.commands: dict[str, int] = defaultdict(int)
        """By exit reason, or what became of those that have none."""
        self.slots_taken = self.slots_made = 0
        self.parked_taken = self.parked_missing = 0
        self.open, self.start, self.run, self.close, self.wait = (Histogram() for _ in range(5))
        self.lost = 0
        """Sandboxes that went while their owner still had them."""
        self.quarantined = 0
        self.stuck: dict[str, int] = defaultdict(int)
        """Steps of clean-ups that did not end in time, by name."""
        self.launchers_lost = 0
        self.events_lost = 0

    def tell(self, event: str, **facts: object) -> None:
        """Pass one event on. What its receiver does wrong is counted and goes no further."""
        if self.on_event is None:
            return
        try:
            self.on_event({"time_s": time.time(), "event": event, "instance": self.instance, **facts})
        except Exception:  # noqa: BLE001 - the receiver is somebody else's code, and we may be closing a sandbox
            self.events_lost += 1

    def lose_events(self, count: int) -> None:
        """Count events that could not be written."""
        self.events_lost += count

    # ---- sandboxes

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Take the time of what somebody waits for: a sandbox, parked or not."""
        begun = time.monotonic()
        try:
            yield
        except BaseException as error:
            self.opens[outcome_of(error)] += 1
            raise
        self.opens["ok"] += 1
        self.open.add(time.monotonic() - begun)

    @contextlib.contextmanager
    def starting_one(self) -> Iterator[None]:
        """Take the time of a start in a slot, ahead of demand or not."""
        begun = time.monotonic()
        self.starting += 1
        try:
            yield
        except BaseException as error:
            stage = error.stage if isinstance(error, StartError) else ""
            self.starts[outcome_of(error), stage] += 1
            self.tell("start_failed", error=outcome_of(error), stage=stage, message=str(error))
            raise
        finally:
            self.starting -= 1
        self.starts["ok", ""] += 1
        self.start.add(time.monotonic() - begun)

    def queue(self, ticket: int, priority: int, waits_for: str) -> None:
        """Somebody who asked for a sandbox has to wait for admission."""
        self.queued += 1
        self.tell("queued", ticket=ticket, priority=priority, waits_for=waits_for, place=self.queued)

    def unqueue(self, ticket: int, outcome: str, waited_s: float) -> None:
        """He was let in, or went."""
        self.queued -= 1
        self.wait.add(waited_s)
        self.tell("unqueued", ticket=ticket, outcome=outcome, waited_s=waited_s)

    def started(self, sandbox: Sandbox) -> None:
        """A sandbox is ready, for somebody or to be parked."""
        timing = sandbox.timing
        self.tell(
            "started",
            sandbox=sandbox.number,
            slot=sandbox.slot.number,
            ahead=sandbox.ahead,
            slot_s=timing.slot_s,
            start_s=timing.start_s,
            stages=timing.stages,
        )

    def handed_out(self, sandbox: Sandbox) -> None:
        """A sandbox has an owner."""
        parked = sandbox.timing.parked
        self.parked_taken += parked
        self.parked_missing += not parked
        self.tell("opened", sandbox=sandbox.number, slot=sandbox.slot.number, parked=parked)

    @contextlib.contextmanager
    def closing(self, sandbox: Sandbox) -> Iterator[None]:
        """Take the time of an end."""
        begun = time.monotonic()
        yield
        close_s = time.monotonic() - begun
        self.close.add(close_s)
        self.tell("closed", sandbox=sandbox.number, slot=sandbox.slot.number, close_s=close_s)

    def quarantine(self, slot: Slot) -> None:
        """A slot was taken out of use."""
        self.quarantined += 1
        self.tell("quarantined", slot=slot.number)

    def stick(self, step: str) -> None:
        """A step of a clean-up did not end in time, and was left to itself."""
        self.stuck[step] += 1
        self.tell("stuck", step=step)

    def watch(self, number: int) -> Watch:
        """Return the observer of a new sandbox."""
        return Watch(self, number)


class Watch(Observer):
    """What is known of one sandbox and its commands."""

    __slots__ = ("_telemetry", "changed_at", "commands", "last", "number", "opened_at", "running")

    def __init__(self, telemetry: Telemetry, number: int) -> None:
        self._telemetry = telemetry
        self.number = number
        self.opened_at = self.changed_at = time.time()
        self.commands = 0
        self.running = 0
        self.last = ""
        """How the last command that ended did so: an exit reason, and after "exited" the code."""

    def command_began(self, number: int, argv: Sequence[str]) -> None:
        """Count it as running."""
        self.commands += 1
        self.running += 1
        self.changed_at = time.time()
        shown = {"argv": list(argv)} if self._telemetry.with_argv else {}
        self._telemetry.tell("run_begin", sandbox=self.number, command=number, **shown)

    def command_ended(self, number: int, reason: ExitReason, exit_code: int | None, spent: Spent) -> None:
        """Count how it ended."""
        self._end(reason.value if exit_code is None else f"{reason.value} {exit_code}")
        self._telemetry.commands[reason.value] += 1
        self._telemetry.run.add(spent.wall_time_s)
        self._telemetry.tell(
            "run_end",
            sandbox=self.number,
            command=number,
            exit_reason=reason.value,
            exit_code=exit_code,
            **spent._asdict(),
        )

    def command_failed(self, number: int, error: SandboxError) -> None:
        """Count that it never ran."""
        word = "lost" if isinstance(error, BrokenError | ClosedError) else "failed"
        self._end(word)
        self._telemetry.commands[word] += 1
        stage = error.stage if isinstance(error, StartError) else ""
        self._telemetry.tell("run_failed", sandbox=self.number, command=number, error=outcome_of(error), stage=stage)

    def command_dropped(self, number: int) -> None:
        """Count that nobody waited for its end."""
        self._end("dropped")
        self._telemetry.commands["dropped"] += 1
        self._telemetry.tell("run_dropped", sandbox=self.number, command=number)

    def broken(self, error: SandboxError) -> None:
        """Count it as lost, unless its owner closed it."""
        if isinstance(error, BrokenError):
            self._telemetry.lost += 1
            self._telemetry.tell("broken", sandbox=self.number, message=str(error))

    def _end(self, last: str) -> None:
        self.running -= 1
        self.last = last
        self.changed_at = time.time()
