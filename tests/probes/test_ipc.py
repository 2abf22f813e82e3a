"""What is left in the kernel by one sandbox for another one to find: shared memory, semaphores, queues, keys."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from minisandbox import Sandbox, Supervisor
from tests.probes.lab import PROBE, Defence, is_denied, open_successor, parse, policy_of, probe_bind

OBJECTS = frozenset({"shm-file", "message-queue", "sysv-memory", "sysv-semaphore", "sysv-queue"})
KEYS = frozenset({"session-key", "user-key"})


async def ask(sandbox: Sandbox, what: str) -> dict[str, str]:
    """Have the probe `leave` or `look` for one of each kind."""
    result = await sandbox.run([PROBE, "ipc", what])
    assert result.ok, result.stderr
    return parse(result.stdout.decode())


def found(outcomes: dict[str, str]) -> set[str]:
    """Return the kinds that were made or found."""
    return {name for name, outcome in outcomes.items() if outcome == "ok"}


async def test_objects_are_seen_by_no_sibling_and_no_successor(supervisor: Supervisor, probe_dir: Path) -> None:
    """Row 33: neither beside it nor later in the same slot. Defence off: another command of one sandbox sees all."""
    policy = policy_of(Defence.DEFAULT)
    async with supervisor.open_sandbox(policy=policy, binds=[probe_bind(probe_dir)]) as first:
        left = await ask(first, "leave")
        own = await ask(first, "look")
        slot = first.slot.number
        async with supervisor.open_sandbox(policy=policy, binds=[probe_bind(probe_dir)]) as second:
            sibling = await ask(second, "look")
    async with open_successor(supervisor, slot, policy, probe_bind(probe_dir)) as third:
        later = await ask(third, "look")

    assert OBJECTS == found(left) == found(own)
    assert set() == found(sibling)
    assert set() == found(later)


@pytest.mark.parametrize("defence", [Defence.DEFAULT, Defence.STRICT, Defence.PRIVILEGED], ids=lambda d: d.value)
async def test_keys_cannot_be_left(supervisor: Supervisor, probe_dir: Path, defence: Defence) -> None:
    """Row 17: keyrings belong to users and sessions, which no namespace tells apart, so there are none inside."""
    async with supervisor.open_sandbox(policy=policy_of(defence), binds=[probe_bind(probe_dir)]) as sandbox:
        left = await ask(sandbox, "leave")
        looked = await ask(sandbox, "look")

    assert all(is_denied(outcomes[name]) for outcomes in (left, looked) for name in KEYS)


async def test_keys_can_be_left_without_filters(supervisor: Supervisor, probe_dir: Path) -> None:
    """Row 17, defence off: then the kernel gives out keys, and another command finds them."""
    policy = policy_of(Defence.UNFILTERED)
    async with supervisor.open_sandbox(policy=policy, binds=[probe_bind(probe_dir)]) as sandbox:
        await ask(sandbox, "leave")
        looked = await ask(sandbox, "look")

    assert KEYS <= found(looked)


@pytest.fixture
def session_keyring() -> None:
    """A session keyring of this process, as one has who logged in: the launcher inherits it (session-keyring(7))."""
    join_session_keyring = 1
    call = {"x86_64": 250, "aarch64": 219}[os.uname().machine]  # keyctl(2)
    if ctypes.CDLL(None, use_errno=True).syscall(call, join_session_keyring, None) < 0:
        pytest.skip(f"this host gives no session keyring: {os.strerror(ctypes.get_errno())}")


async def test_keys_are_private_without_filters_too(
    session_keyring: None, supervisor: Supervisor, probe_dir: Path
) -> None:
    """Row 17: each sandbox has a session keyring of its own, not that of whoever started the supervisor.

    So a second defence keeps keys from a sibling and from the next one in the slot. Defence off: see the test before.
    """
    policy, bind = policy_of(Defence.UNFILTERED), probe_bind(probe_dir)
    async with supervisor.open_sandbox(policy=policy, binds=[bind]) as first:
        left = await ask(first, "leave")
        slot = first.slot.number
        async with supervisor.open_sandbox(policy=policy, binds=[bind]) as second:
            sibling = await ask(second, "look")
    async with open_successor(supervisor, slot, policy, bind) as third:
        later = await ask(third, "look")

    assert KEYS <= found(left)
    assert set() == found(sibling) & KEYS
    assert set() == found(later) & KEYS
