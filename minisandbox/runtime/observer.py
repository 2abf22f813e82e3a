"""What a sandbox says about its commands, to whoever wants to know; it never changes what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from minisandbox.errors import SandboxError
from minisandbox.spec import ExitReason

if TYPE_CHECKING:
    from collections.abc import Sequence


class Spent(NamedTuple):
    """What a command used; None where that cannot be told."""

    wall_time_s: float
    cpu_time_s: float | None
    memory_peak_bytes: int | None = None


class Observer:
    """Is told of each command of one sandbox. This one takes no notice."""

    __slots__ = ()

    def command_began(self, number: int, argv: Sequence[str]) -> None:
        """A command is about to be asked for."""

    def command_ended(self, number: int, reason: ExitReason, exit_code: int | None, spent: Spent) -> None:
        """It ran to an end."""

    def command_failed(self, number: int, error: SandboxError) -> None:
        """It never ran."""

    def command_dropped(self, number: int) -> None:
        """Whoever asked for it gave up, or the sandbox went first."""

    def broken(self, error: SandboxError) -> None:
        """The sandbox is gone, or was closed."""
