"""What a policy chooses between, by the words of its file. Values only."""

from __future__ import annotations

import enum


class Network(enum.Enum):
    """The network that a sandbox sees."""

    NONE = "none"
    """A network namespace of its own, with a loopback interface and nothing else; `Policy.allow` opens a way out."""
    HOST = "host"
    """The host's network namespace, abstract unix sockets included."""


class Proc(enum.Enum):
    """What /proc shows."""

    FULL = "full"
    """Processes of the sandbox, and the kernel's files."""
    PID = "pid"
    """Processes of the sandbox alone (subset=pid)."""


class Addresses(enum.Enum):
    """Where the kernel puts what a program has in memory (ADDR_NO_RANDOMIZE, personality(2))."""

    RANDOM = "random"
    """Somewhere else each time."""
    FIXED = "fixed"
    """At the same places each time."""
