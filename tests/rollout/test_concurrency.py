"""How many episodes run at once follows the load, within its bounds."""

from __future__ import annotations

import pytest

from minisandbox.errors import UsageError
from minisandbox.rollout.concurrency import Concurrency, Load, Meter, next_target

BOUNDS = Concurrency(least=2, most=64)
IDLE = Load(busy=0.1, queueing=0.5, memory_free=0.8)


def settled(target: int, load: Load, *, is_full: bool = True) -> int:
    """Return where it comes to rest under a load that stays."""
    for _ in range(100):
        target = next_target(target, BOUNDS, load, is_full=is_full)
    return target


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (IDLE, 64),
        (Load(busy=1.0, queueing=1.5, memory_free=0.8), 16),
        (Load(busy=1.0, queueing=9.0, memory_free=0.8), 2),
        (Load(busy=0.1, queueing=0.5, memory_free=0.05), 2),
        (Load(busy=0.1, queueing=0.5, memory_free=0.15), 16),
    ],
)
def test_it_goes_where_the_load_allows(load: Load, expected: int) -> None:
    """Up to the most while idle, down to the least when memory or processors are short, and it stays when just busy."""
    assert expected == settled(16, load)


def test_it_does_not_grow_while_there_is_room_already() -> None:
    """More are allowed only when all that are allowed run."""
    assert 16 == settled(16, IDLE, is_full=False)


def test_one_step_is_no_jump() -> None:
    """A quarter, and at least one."""
    assert 20 == next_target(16, BOUNDS, IDLE, is_full=True)
    assert 3 == next_target(2, BOUNDS, IDLE, is_full=True)


def test_bounds_that_cannot_be_are_refused() -> None:
    """From 1 up, the least not above the most."""
    for least, most in ((0, 4), (5, 4)):
        with pytest.raises(UsageError, match="concurrency"):
            Concurrency(least=least, most=most)


def test_the_meter_sees_this_machine() -> None:
    """Shares are from 0 to 1, and at least this process wants to run."""
    load = Meter().look()

    assert 0.0 <= load.busy <= 1.0
    assert 0.0 < load.memory_free <= 1.0
    assert load.queueing > 0.0
