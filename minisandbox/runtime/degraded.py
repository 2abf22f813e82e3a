"""What this host cannot enforce for this user, found before anything is opened, and how a kill does without it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Set

from minisandbox.degradation import LIMITS_OF, Degradation, refusal
from minisandbox.errors import BrokenError, HostError
from minisandbox.kernel.cgroup import CgroupLayout, detect_layout
from minisandbox.kernel.cgroup_layout import writable_layout
from minisandbox.kernel.channel import Channel
from minisandbox.kernel.outer import OuterNamespace
from minisandbox.kernel.protocol import Request


def find_layout(outer: OuterNamespace | None) -> CgroupLayout:
    """Return the control groups that we can use; for an ordinary user there may be none.

    Raises HostError when the host's root finds none.
    """
    if outer is None:
        return detect_layout()
    try:
        return writable_layout(detect_layout())
    except HostError:
        return CgroupLayout()


def missing_protections(layout: CgroupLayout, outer: OuterNamespace | None) -> frozenset[Degradation]:
    """Return everything that cannot be enforced here."""
    missing: set[Degradation] = set()
    if outer is not None and outer.single_id:
        missing.add(Degradation.SINGLE_ID)
    if layout.is_empty:
        missing.add(Degradation.CONTROL_GROUPS)
    missing.update(name for name, controller in LIMITS_OF.items() if layout.where(controller) is None)
    return frozenset(missing)


def check_degradations(
    layout: CgroupLayout, outer: OuterNamespace | None, agreed: Set[Degradation]
) -> frozenset[Degradation]:
    """Return what is done without, of what was agreed to.

    Raises HostError for what no sandbox could have. A limit is refused later, by the sandbox that asks for it.
    """
    missing = missing_protections(layout, outer)
    for degradation in (Degradation.CONTROL_GROUPS, Degradation.SINGLE_ID):
        if degradation in missing and degradation not in agreed:
            raise refusal(degradation)
    if layout.is_empty:  # it says that there are no limits
        return missing
    return missing & agreed


def kill_inside(channel: Channel) -> None:
    """Let init kill every process of its sandbox but itself, in one step of the kernel (kill(2), -1).

    Where no control group says which processes a command has, those of all commands are killed.
    """
    if not channel.closed:
        with contextlib.suppress(BrokenError):  # then they are dead with it
            channel.send_now(Request("signal").option("signal", signal.SIGKILL).flag("all"))
