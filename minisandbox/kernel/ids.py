"""Host ids for sandboxes: each supervisor of a host gets a range of its own.

Claims are abstract unix sockets (unix(7)): the kernel gives them up when the claiming process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
from abc import ABC, abstractmethod

from minisandbox.errors import HostError, UsageError
from minisandbox.kernel.protocol import SLOT_IDS, WARDEN_ID

FIRST_ID = 1 << 28
"""Above what distributions and container managers give out by default (subuid(5): 524,288 and a few ranges more)."""

END_ID = 1 << 31
"""Ids from here on are negative to programs that keep them in an int."""

BLOCK_SLOTS = 1024
"""Claims are made by blocks of slots."""

_BLOCKS = (END_ID - FIRST_ID) // (BLOCK_SLOTS * SLOT_IDS)

MAX_SLOTS = _BLOCKS * BLOCK_SLOTS


class Ids(ABC):
    """The ids that sandboxes are made of."""

    @abstractmethod
    def base(self, slot: int) -> int:
        """Return the first id of a slot, as the launcher calls it."""

    @abstractmethod
    def warden_uid(self, slot: int) -> int:
        """Return the user who starts commands in the control groups of a slot, as we call him."""

    @property
    @abstractmethod
    def warden_gid(self) -> int:
        """The group of all inits, as we call it."""

    @property
    @abstractmethod
    def launcher_warden_gid(self) -> int:
        """The same group, as the launcher calls it."""

    @property
    def pod_base(self) -> int:
        """The first id of a pod that has these, as the launcher of the host calls it."""
        return 0

    def close(self) -> None:
        """Give them back."""
        return


class OwnIds(Ids):
    """Those of an ordinary user, which all his sandboxes share: root inside is himself."""

    def base(self, slot: int) -> int:
        """Return 0, root of the outer user namespace."""
        return 0

    def warden_uid(self, slot: int) -> int:
        """Return the user himself: an init that is another is in his group."""
        return os.geteuid()

    @property
    def warden_gid(self) -> int:
        """The group of the user."""
        return os.getegid()

    @property
    def launcher_warden_gid(self) -> int:
        """The group of the user is root's in the outer user namespace."""
        return 0


class PodIds(Ids):
    """Those of a pod, which all its sandboxes share: `first` is root inside."""

    def __init__(self, first: int) -> None:
        self.first = first

    @property
    def pod_base(self) -> int:
        """Return what the launcher of the host calls root of the pod's user namespace."""
        return self.first

    def base(self, slot: int) -> int:
        """Return 0, root of the pod's user namespace."""
        return 0

    def warden_uid(self, slot: int) -> int:
        """Return the last id of the pod."""
        return self.first + WARDEN_ID

    @property
    def warden_gid(self) -> int:
        """Nobody's: a pod's processes are in the group of all wardens."""
        return self.first + WARDEN_ID

    @property
    def launcher_warden_gid(self) -> int:
        """The same."""
        return self.warden_gid


class IdRange(Ids):
    """A claimed range, which begins with `first`. Give it back with `close`."""

    def __init__(self, first: int, claims: list[socket.socket]) -> None:
        self.first = first
        self._claims = claims

    def base(self, slot: int) -> int:
        """Return the first of the ids that a slot has for itself."""
        return self.first + slot * SLOT_IDS

    def warden_uid(self, slot: int) -> int:
        """Return the last id of a slot, which is mapped into no sandbox."""
        return self.base(slot) + WARDEN_ID

    @property
    def warden_gid(self) -> int:
        """The last id of the first slot, which is mapped into no sandbox."""
        return self.first + WARDEN_ID

    @property
    def launcher_warden_gid(self) -> int:
        """The same: the launcher is the host's root."""
        return self.warden_gid

    def close(self) -> None:
        """Give the range back."""
        for claim in self._claims:
            claim.close()


def claim_ids(slots: int) -> IdRange:
    """Claim ids for so many slots. Raises HostError when other supervisors of this host hold too many."""
    if not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"there can be 1 to {MAX_SLOTS} sandboxes at once, not {slots}")
    wanted = -(-slots // BLOCK_SLOTS)
    for first in range(_BLOCKS - wanted + 1):
        claims = [claim for block in range(first, first + wanted) if (claim := _claim(block)) is not None]
        if len(claims) == wanted:
            return IdRange(FIRST_ID + first * BLOCK_SLOTS * SLOT_IDS, claims)
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
