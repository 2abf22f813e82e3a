"""Host ids for sandboxes: each supervisor of a host gets a range of its own.

Claims are abstract unix sockets (unix(7)): the kernel gives them up when the claiming process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import socket

from minisandbox.errors import HostError, UsageError
from minisandbox.kernel.protocol import SLOT_IDS

FIRST_ID = 1 << 28
"""Above what distributions and container managers give out by default (subuid(5): 524,288 and a few ranges more)."""

END_ID = 1 << 31
"""Ids from here on are negative to programs that keep them in an int."""

_BLOCK_SLOTS = 1024
_BLOCKS = (END_ID - FIRST_ID) // (_BLOCK_SLOTS * SLOT_IDS)

MAX_SLOTS = _BLOCKS * _BLOCK_SLOTS


class IdRange:
    """A claimed range: `base` is its first id. Give it back with `close`."""

    def __init__(self, base: int, claims: list[socket.socket]) -> None:
        self.base = base
        self._claims = claims

    def close(self) -> None:
        """Give the range back."""
        for claim in self._claims:
            claim.close()


def claim_ids(slots: int) -> IdRange:
    """Claim ids for so many slots. Raises HostError when other supervisors of this host hold too many."""
    if not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"there can be 1 to {MAX_SLOTS} sandboxes at once, not {slots}")
    wanted = -(-slots // _BLOCK_SLOTS)
    for first in range(_BLOCKS - wanted + 1):
        claims = [claim for block in range(first, first + wanted) if (claim := _claim(block)) is not None]
        if len(claims) == wanted:
            return IdRange(FIRST_ID + first * _BLOCK_SLOTS * SLOT_IDS, claims)
        for claim in claims:
            claim.close()
    raise HostError(f"no free range of user ids for {slots} sandboxes: other supervisors hold them; close one")


def _claim(block: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        claim.bind(f"\0minisandbox-ids-{block}")
        return claim
    claim.close()
    return None
