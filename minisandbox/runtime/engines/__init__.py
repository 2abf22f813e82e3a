"""Engines: how an init gets into a new container, from which on it serves on its control socket."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from minisandbox.errors import StartError
from minisandbox.kernel.protocol import Request
from minisandbox.runtime.engines.native import StartSpec


class Attempt(Protocol):
    """One start. READY or the step that failed comes on the control socket of its spec."""

    def request(self, spec: StartSpec) -> Request:
        """Return what to ask of the launcher."""

    def failure(self) -> StartError | None:
        """Return why a start ended without a word of its init, as far as the engine knows."""


class Engine(Protocol):
    """One way to make containers. What the launcher forks is the init, whose end is the end of its sandbox."""

    def attempt(self) -> AbstractContextManager[Attempt]:
        """Hold for the block what one start needs. Raises HostError where this engine cannot be had."""

    def close(self) -> None:
        """Give up what all starts share."""
