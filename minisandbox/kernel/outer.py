"""The outer user namespace of an ordinary user: which ids its launcher can have, and the words that ask for it.

It only reads. The launcher makes the namespace (launcher/rootless.c).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from minisandbox.kernel.host import IdRange, find_mappers, read_subordinate_ids

ALL_IDS = 2**32 - 1
"""How many ids the host's own user namespace has (user_namespaces(7))."""


@dataclass(frozen=True, slots=True)
class OuterNamespace:
    """What the launcher of an ordinary user is told: subordinate ids, or none."""

    words: tuple[str, ...]

    @property
    def single_id(self) -> bool:
        """Whether there are no ids but the user's own."""
        return len(self.words) == 1


def is_privileged() -> bool:
    """Return whether we are the host's root, who needs no namespace around."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(ALL_IDS)]


def find_outer() -> OuterNamespace | None:
    """Return what an ordinary user's launcher needs, None for the host's root."""
    if is_privileged():
        return None
    mappers = find_mappers()
    uids, gids = (max(ranges, key=lambda found: found.count, default=None) for ranges in read_subordinate_ids())
    if mappers is None or uids is None or gids is None:
        return OuterNamespace(("single",))
    return OuterNamespace((*map(str, mappers), *_range_words(uids, gids)))


def _range_words(uids: IdRange, gids: IdRange) -> tuple[str, str, str]:
    return str(uids.first), str(gids.first), str(min(uids.count, gids.count))
