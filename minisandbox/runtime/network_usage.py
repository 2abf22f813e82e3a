"""What a sandbox did on the network: connections and bytes by endpoint, and what it was refused."""

from __future__ import annotations

from collections import deque

import msgspec

from minisandbox.endpoints import Endpoint

REFUSALS_KEPT = 16
_TEXT_MAX = 300


class EndpointUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What went to and came from one endpoint of the allow list."""

    connections: int = 0
    sent_bytes: int = 0
    """From the sandbox to the endpoint."""
    received_bytes: int = 0
    """From the endpoint to the sandbox."""


class NetworkUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured for one sandbox since it was opened, through every allow list that it had."""

    endpoints: dict[str, EndpointUsage]
    """By entry of the allow list. Connections that are still open are in it, with what they carried so far."""
    refused: int
    """Requests that were not connected, for whatever reason."""
    refusals: tuple[str, ...]
    """The last 16 reasons. What the program asked for is quoted in them."""


class Ledger:
    """Counts for one sandbox. `read` it at any time."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._refused = 0
        self._refusals: deque[str] = deque(maxlen=REFUSALS_KEPT)

    def account(self, endpoint: Endpoint) -> Account:
        """Return the account of an endpoint."""
        return self._accounts.setdefault(str(endpoint), Account())

    def refuse(self, why: str) -> None:
        """Count a request that was not served."""
        self._refused += 1
        self._refusals.append(why[:_TEXT_MAX])

    def read(self) -> NetworkUsage:
        """Return what was counted so far."""
        endpoints = {
            name: EndpointUsage(
                connections=account.connections, sent_bytes=account.sent_bytes, received_bytes=account.received_bytes
            )
            for name, account in self._accounts.items()
        }
        return NetworkUsage(endpoints=endpoints, refused=self._refused, refusals=tuple(self._refusals))


class Account:
    """Counts for one endpoint."""

    __slots__ = ("connections", "received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.connections = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    def count_sent(self, count: int) -> None:
        """Count bytes that went to the endpoint."""
        self.sent_bytes += count

    def count_received(self, count: int) -> None:
        """Count bytes that came from the endpoint."""
        self.received_bytes += count
