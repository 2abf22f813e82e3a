"""What can be asked about an open supervisor from outside: by metrics, by its status socket. It only looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minisandbox.kernel.cgroup_reserve import Reserved
from minisandbox.runtime.telemetry import Watch

if TYPE_CHECKING:
    from minisandbox.kernel.launcher import Launcher
    from minisandbox.runtime.sandbox import Sandbox
    from minisandbox.runtime.slots import SlotPool


class Inspected:
    """The part of a supervisor that others look at."""

    _launcher: Launcher
    _slots: SlotPool
    _sandboxes: dict[int, Sandbox]

    @property
    def live(self) -> int:
        """How many sandboxes are open, parked ones not counted."""
        return sum(not sandbox.ahead for sandbox in self._sandboxes.values())

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Slots that were taken out of use, since something of a sandbox could not be proved gone."""
        return tuple(slot.group_name or f"slot {slot.number}" for slot in self._slots.quarantined)

    @property
    def serving(self) -> bool:
        """Whether there is a launcher to start sandboxes."""
        return not self._launcher.broken

    @property
    def max_sandboxes(self) -> int:
        """How many may be open at once."""
        return self._slots.limit

    @property
    def reserved(self) -> Reserved:
        """What of the host is kept free of its sandboxes, and how."""
        return self._slots.cgroups.reserved

    def memory_bytes(self) -> int | None:
        """Return the memory that is charged to the launcher and all sandboxes; None where it is not accounted."""
        return self._slots.cgroups.memory_bytes()

    def counter_files(self) -> dict[str, str]:
        """Return where the kernel counts what a slot uses, with `{group}` for its groups."""
        return self._slots.cgroups.counter_files()

    def watched(self) -> list[tuple[Sandbox, Watch]]:
        """Return every sandbox, parked ones too, with what is known of it."""
        pairs = ((sandbox, sandbox.observer) for sandbox in self._sandboxes.values())
        return [(sandbox, watch) for sandbox, watch in pairs if isinstance(watch, Watch)]
