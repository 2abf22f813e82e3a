"""What differs between two merged trees. A directory that both have of the same layers is passed unread.

It knows nothing of snapshots. Whiteouts and marks are how a tree came about; only what shows is compared.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from minisandbox.images.layer import field as encode_field
from minisandbox.images.merged import Found, Inode, MergedWalk
from minisandbox.images.snapshot_record import Recorder
from minisandbox.images.tree import TOP, Step

_LAST = (True, b"")


class Change(enum.Enum):
    """How a path of the second tree differs from the same path of the first."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Pair:
    """What the two trees have by one name. A directory that either has is entered and left."""

    step: Step
    name: bytes
    before: Found | None
    after: Found | None
    change: Change | None
    """None when it is the same in both, which says nothing of what is in a directory."""
    leader: bytes = b""
    """For a second name of a file in the second tree: what stands for the path of the first (`_Side.leader`)."""


class _Side:
    """One of the trees, its next step looked at ahead, without whiteouts."""

    def __init__(self, walk: MergedWalk) -> None:
        self._walk = walk
        self._leaders: dict[Inode, bytes] = {}
        self.next = self._advance()

    def take(self) -> Found:
        """Return the step and look at the one after it. What was returned is good no longer than that."""
        found = self.next
        assert found is not None
        return found

    def pass_on(self) -> None:
        """Go on to the next step."""
        self.next = self._advance()

    def prune(self) -> None:
        """Pass over the content of the directory that is entered in this step."""
        self._walk.prune()

    @property
    def key(self) -> tuple[bool, bytes]:
        """What orders the steps inside a directory: by name, and leaving it last."""
        assert self.next is not None
        return _LAST if self.next.step is Step.LEAVE else (False, self.next.name)

    def leader(self, found: Found, place: bytes) -> bytes:
        """Return the digest of the path by which a file of several names was seen first, `place` if by this one."""
        if found.step is not Step.FILE or found.status.st_nlink < 2:
            return place
        return self._leaders.setdefault(found.inode, place)

    def _advance(self) -> Found | None:
        return next((found for found in self._walk if not found.is_whiteout), None)


class Comparison(Iterator[Pair]):
    """An iterator over what differs between two trees, and the directories on the way there. Borrows both walks."""

    def __init__(self, before: MergedWalk, after: MergedWalk, recorder: Recorder) -> None:
        self._before, self._after, self._recorder = _Side(before), _Side(after), recorder
        self._where: list[tuple[_Side, ...]] = [(self._before, self._after)]
        self._places = [b""]
        self._passing: tuple[_Side, ...] = ()
        self._entered: tuple[_Side, ...] = ()

    def skip(self) -> None:
        """Pass over the content of the directory that was just entered: its LEAVE comes next."""
        for side in self._entered:
            side.prune()

    def __next__(self) -> Pair:
        for side in self._passing:
            side.pass_on()
        self._passing = ()
        while True:
            if self._before.next is None and self._after.next is None:
                raise StopIteration
            sides = self._sides()
            pair = self._pair(sides)
            self._passing = sides
            if pair.step is not Step.FILE or pair.change is not None:
                return pair
            for side in sides:
                side.pass_on()

    def _sides(self) -> tuple[_Side, ...]:
        """Return which of the trees have the next name, of those that have the directory."""
        here = self._where[-1]
        first = min(side.key for side in here)
        return tuple(side for side in here if side.key == first)

    def _pair(self, sides: tuple[_Side, ...]) -> Pair:
        before = self._before.take() if self._before in sides else None
        after = self._after.take() if self._after in sides else None
        found = after or before
        assert found is not None
        if found.step is Step.LEAVE:
            self._where.pop()
            self._places.pop()
            return Pair(Step.LEAVE, found.name, before, after, None)
        place = hashlib.sha256(self._places[-1] + encode_field(found.name)).digest()
        change, leader = self._change(before, after, place)
        self._entered = entered = tuple(side for side in sides if side.take().step is Step.ENTER)
        if entered:
            self._where.append(entered)
            self._places.append(place)
        if before and after and len(entered) == 2 and before.merged == after.merged:
            for side in sides:
                side.prune()
        step = Step.ENTER if entered else Step.FILE
        return Pair(step, found.name, before, after, change, leader)

    def _change(self, before: Found | None, after: Found | None, place: bytes) -> tuple[Change | None, bytes]:
        if before is not None and after is not None and before.step is after.step and before.inode == after.inode:
            return None, b""
        first = self._before.leader(before, place) if before else place
        second = self._after.leader(after, place) if after else place
        leader = second if second != place else b""
        if before is None:
            return Change.ADDED, leader
        if after is None:
            return Change.REMOVED, b""
        is_same = first == second and before.step is after.step and self._is_same(before, after)
        return (None if is_same else Change.CHANGED), leader

    def _is_same(self, before: Found, after: Found) -> bool:
        recorder = self._recorder
        if recorder.head(before) != recorder.head(after):
            return False
        if before.step is Step.ENTER:
            return True
        if before.status.st_size != after.status.st_size:
            return False
        return recorder.content(before) == recorder.content(after)


def compared(before: MergedWalk, after: MergedWalk, recorder: Recorder) -> Iterator[tuple[bytes, Pair]]:
    """Yield every pair that differs, with its path; none whose path is too long to be named (`entry.split_path`)."""
    names: list[bytes] = []
    with ExitStack() as stack:
        stack.enter_context(before)
        stack.enter_context(after)
        for pair in Comparison(before, after, recorder):
            if pair.step is Step.LEAVE:
                if names:
                    names.pop()
                continue
            path = b"/".join((*names, pair.name)) if pair.name != TOP else TOP
            if pair.change is not None:
                yield path, pair
            if pair.step is Step.ENTER and pair.name != TOP:
                names.append(pair.name)
