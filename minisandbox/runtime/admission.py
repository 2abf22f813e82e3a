"""Whether this host can hold one sandbox more: what is asked for, what is promised already, what is left of the host.

Values and arithmetic only: queue.py asks, and lets those wait that do not fit yet.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import msgspec

from minisandbox.errors import AdmissionError, UsageError
from minisandbox.kernel.load import Load
from minisandbox.spec import Limits


class Gate(enum.StrEnum):
    """What there can be too little of."""

    SLOTS = "slots"
    """Sandboxes at once, of `max_sandboxes`."""
    STARTS = "starts"
    """Starts under way at once: more of them would only slow each other down."""
    MEMORY_PROMISED = "memory_promised"
    """The memory limits of all open sandboxes together, by `Admission.memory_overcommit`."""
    MEMORY_FREE = "memory_free"
    """Memory that the host has available at this moment."""
    CPUS_PROMISED = "cpus_promised"
    """The CPU limits of all open sandboxes together, by `Admission.cpus_overcommit`."""
    PROCESSES = "processes"
    """Process numbers that are left on the host or in our own control group."""
    DESCRIPTORS = "descriptors"
    """Descriptors that this process may still open."""
    MEMORY_PRESSURE = "memory_pressure"
    """All tasks of the host wait for memory (PSI); starts are slowed down."""


_OF_BYTES = frozenset({Gate.MEMORY_PROMISED, Gate.MEMORY_FREE})
OF_THE_HOST = frozenset({Gate.MEMORY_FREE, Gate.PROCESSES, Gate.DESCRIPTORS, Gate.MEMORY_PRESSURE})
"""Nothing tells us when these change: they are looked at again and again while somebody waits."""


class Admission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a host is trusted with. Raises UsageError when a number makes no sense."""

    memory_overcommit: float | None = 256.0
    """How often the memory of the host, less what is reserved, may be promised: the memory limits of all sandboxes."""
    cpus_overcommit: float | None = None
    """The same of its processors. Sandboxes share them by weight: too many make each slow and none fail."""
    starts_per_core: float = 8.0
    """Starts under way at once."""
    free_memory_bytes: int = 128 << 20
    """What the host must have available for a start, beside what is reserved."""
    free_processes: int = 64
    free_descriptors: int = 16
    memory_pressure: float | None = 20.0
    """Percent of the last ten seconds in which all tasks waited for memory: above, one start a second is admitted."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf):
                raise UsageError(f"admission: {name} is {value!r}; give a number of 0 or more")
        for name in ("memory_overcommit", "cpus_overcommit", "starts_per_core"):
            if getattr(self, name) == 0:
                raise UsageError(f"admission: {name} is 0, which would admit nothing; give more")


@dataclass(frozen=True, slots=True)
class Capacity:
    """What of this host is there for sandboxes, the reserved part taken off."""

    memory_bytes: int
    cpus: float
    processes: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What one sandbox may come to use. Without a limit that is all there is."""

    memory_bytes: int | None
    cpus: float | None
    processes: int | None

    @classmethod
    def of(cls, limits: Limits) -> Demand:
        """Return the demand of a sandbox with these limits."""
        return cls(limits.memory_bytes, limits.cpus, limits.processes)


@dataclass(slots=True)
class Booked:
    """What was given to those who are in."""

    sandboxes: int = 0
    memory_bytes: int = 0
    cpus: float = 0.0
    starting: int = 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why something does not fit."""

    gate: Gate
    asked: float
    free: float

    def __str__(self) -> str:
        asked, free = (_text(self.gate, number) for number in (self.asked, self.free))
        return f"{self.gate}: {asked} asked for, {free} left"

    def error(self, *, ever: bool) -> AdmissionError:
        """Return the refusal: for ever, or for as long as the host is as it is."""
        missing = _text(self.gate, self.asked - self.free)
        when = "this host can never hold it" if ever else "nothing that this supervisor could close would help"
        why = f"a sandbox was not admitted, {self}: {missing} too much, and {when}; {_ADVICE[self.gate]}"
        return AdmissionError(self.gate.value, self.asked, self.free, why, retryable=not ever)


_ADVICE = {
    Gate.SLOTS: "close a sandbox, or raise max_sandboxes",
    Gate.STARTS: "try again",
    Gate.MEMORY_PROMISED: "lower memory_bytes, or raise Admission.memory_overcommit",
    Gate.MEMORY_FREE: "end what uses the memory of this host, or reserve less",
    Gate.CPUS_PROMISED: "lower cpus, or raise Admission.cpus_overcommit",
    Gate.PROCESSES: "lower processes, or raise kernel.pid_max and the pids.max of our control group",
    Gate.DESCRIPTORS: "raise RLIMIT_NOFILE (ulimit -n)",
    Gate.MEMORY_PRESSURE: "try again",
}


class Bookkeeper:
    """Knows what was promised of a capacity under a policy."""

    def __init__(self, policy: Admission, capacity: Capacity) -> None:
        self.policy, self.capacity = policy, capacity
        self.booked = Booked()
        memory_overcommit, cpus_overcommit = policy.memory_overcommit or 1.0, policy.cpus_overcommit or 1.0
        self._whole = replace(
            capacity,
            memory_bytes=int(capacity.memory_bytes * min(1.0, memory_overcommit)),
            cpus=capacity.cpus * min(1.0, cpus_overcommit),
        )
        """The most that one sandbox can get."""

    def check(self, demand: Demand) -> None:
        """Raise AdmissionError for what this host can never hold, whoever else is gone."""
        cpus = None if self.policy.cpus_overcommit is None else demand.cpus
        for gate, asked, most in (
            (Gate.MEMORY_PROMISED, demand.memory_bytes, self._whole.memory_bytes),
            (Gate.CPUS_PROMISED, cpus, self._whole.cpus),
            (Gate.PROCESSES, demand.processes, self.capacity.processes),
        ):
            if asked is not None and asked > most:
                raise Shortage(gate, asked, most).error(ever=True)

    def shortage(self, demand: Demand, load: Load, count: int = 1) -> Shortage | None:
        """Return what there is too little of for so many more, None when they fit."""
        policy, capacity, booked = self.policy, self.capacity, self.booked
        starts = max(1.0, policy.starts_per_core * capacity.cpus)
        if booked.starting >= starts:
            return Shortage(Gate.STARTS, 1, 0)
        memory_bytes, cpus = (count * each for each in self._promise(demand))
        if policy.memory_overcommit is not None:
            left = policy.memory_overcommit * capacity.memory_bytes - booked.memory_bytes
            if memory_bytes > left:
                return Shortage(Gate.MEMORY_PROMISED, memory_bytes, max(0.0, left))
        if policy.cpus_overcommit is not None:
            left = policy.cpus_overcommit * capacity.cpus - booked.cpus
            if cpus > left:
                return Shortage(Gate.CPUS_PROMISED, cpus, max(0.0, left))
        return self._shortage_of_host(load)

    def _shortage_of_host(self, load: Load) -> Shortage | None:
        policy, needed = self.policy, self.policy.free_memory_bytes
        if load.available_bytes < needed:
            return Shortage(Gate.MEMORY_FREE, needed, load.available_bytes)
        if load.free_processes < policy.free_processes:
            return Shortage(Gate.PROCESSES, policy.free_processes, load.free_processes)
        if load.free_descriptors < policy.free_descriptors:
            return Shortage(Gate.DESCRIPTORS, policy.free_descriptors, load.free_descriptors)
        pressed = load.memory_pressure
        if policy.memory_pressure is not None and pressed is not None and pressed > policy.memory_pressure:
            return Shortage(Gate.MEMORY_PRESSURE, policy.memory_pressure, pressed)
        return None

    def _promise(self, demand: Demand) -> tuple[int, float]:
        memory_bytes = self._whole.memory_bytes if demand.memory_bytes is None else demand.memory_bytes
        return memory_bytes, self._whole.cpus if demand.cpus is None else demand.cpus

    def book(self, demand: Demand) -> None:
        """Give it what it asks for."""
        memory_bytes, cpus = self._promise(demand)
        self.booked.sandboxes += 1
        self.booked.memory_bytes += memory_bytes
        self.booked.cpus += cpus
        self.booked.starting += 1

    def release(self, demand: Demand) -> None:
        """Take it back."""
        memory_bytes, cpus = self._promise(demand)
        self.booked.sandboxes -= 1
        self.booked.memory_bytes -= memory_bytes
        self.booked.cpus -= cpus


def _text(gate: Gate, number: float) -> str:
    if gate in _OF_BYTES:
        return f"{number / 2**20:,.0f} MiB"
    return f"{number:.0f} %" if gate is Gate.MEMORY_PRESSURE else f"{number:g}"
