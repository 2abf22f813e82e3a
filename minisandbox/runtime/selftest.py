"""The self-test: before a supervisor serves, a sandbox of its own tries one forbidden thing of each layer.

What a host or an update broke silently is found here, and not by the first program that is let loose. It looks with the
doctor's probes, and trusts no word from inside where it can look from outside. It changes nothing on the host.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import msgspec

from minisandbox.binds import Bind
from minisandbox.degradation import Degradation
from minisandbox.errors import HostError
from minisandbox.policy import Policy, load_policy
from minisandbox.runtime.probes import LIMIT_PROBES, PROBES, Probe
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.spec import ExitReason, Limits

LIFETIME_S = 60.0
"""An end for the sandbox whatever becomes of us; it lives for milliseconds."""

_BEFORE = b"written by the host\n"
_MARK = "== "

_WRITE = 'echo changed 2>/dev/null >>"$1"; true'
_FIND_SOCKET = 'while read -r line; do case $line in *"$2"*) echo "$2" ;; esac; done </proc/self/net/unix'

_MEMORY = next(probe for probe in LIMIT_PROBES if probe.reason is ExitReason.MEMORY)


def _find_nothing(printed: str, _policy: Policy) -> tuple[bool, str]:
    return not printed.strip(), f"found {printed.strip() or 'nothing'}"


LAYERS = (
    Probe("files", _WRITE, _find_nothing),
    *(probe for probe in PROBES if probe.name in ("processes", "network")),
    Probe("sockets", _FIND_SOCKET, _find_nothing),
)
"""What is tried by one command: to write to a file of the host, to see its processes, its interfaces, its sockets."""


LIMITS = Limits(memory_bytes=16 << 20, disk_bytes=4 << 20, disk_inodes=256, wall_time_s=20.0)
"""Small ones, since they are reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """The sandbox that tries."""

    policy: str | Policy = "default"
    limits: Limits = LIMITS
    """In place of the policy's: what is tested is that they hold, not how large they are."""
    binds: tuple[Bind, ...] = ()


SELF_TEST = SelfTest()


async def run_self_test(supervisor: Supervisor, test: SelfTest = SELF_TEST) -> None:
    """Return when every layer held. Raises HostError naming the one that did not.

    Where it cannot even try, it raises what `Supervisor.open_sandbox` and `Sandbox.run` raise then.
    """
    async with _open(supervisor, test) as sandbox:
        await _look(sandbox)
        if sandbox.limits.memory_bytes is not None and Degradation.MEMORY_LIMIT not in sandbox.degraded:
            await _exceed_memory(sandbox)


@contextlib.asynccontextmanager
async def _open(supervisor: Supervisor, test: SelfTest) -> AsyncIterator[Sandbox]:
    policy = load_policy(test.policy) if isinstance(test.policy, str) else test.policy
    for limits in (test.limits, msgspec.structs.replace(test.limits, memory_bytes=None)):
        own = msgspec.structs.replace(policy, limits=limits)
        async with contextlib.AsyncExitStack() as stack:
            try:
                opening = supervisor.open_sandbox(policy=own, binds=test.binds, lifetime_s=LIFETIME_S)
                sandbox = await stack.enter_async_context(opening)
            except HostError:  # no such controller here: then no sandbox with such a limit is opened, which is safe too
                if limits.memory_bytes is None:
                    raise
                continue
            yield sandbox
            return


async def _look(sandbox: Sandbox) -> None:
    script = "\n".join(f"echo '{_MARK}{layer.name}'\n({layer.script})" for layer in LAYERS)
    with tempfile.NamedTemporaryFile(prefix="minisandbox-self-test-") as canary, _listening() as name:
        canary.write(_BEFORE)
        canary.flush()
        result = await sandbox.run(["/bin/sh", "-c", script, "sh", canary.name, name])
        canary.seek(0)
        _require("files", canary.read() == _BEFORE, f"{canary.name} was changed from inside")
    printed = result.stdout.decode(errors="replace")
    if not result.ok:
        raise HostError(f"the self-test cannot be made: its command ended with {result.exit_reason.value}, {printed!r}")
    sections = dict(part.split("\n", 1) for part in printed.split(_MARK)[1:])
    for layer in LAYERS:
        _require(layer.name, *layer.judge(sections.get(layer.name, "?"), sandbox.policy))


async def _exceed_memory(sandbox: Sandbox) -> None:
    result = await sandbox.run(_MEMORY.command)
    detail = f"a command beyond the limit ended with {result.exit_reason.value} {result.exit_code}"
    _require("memory", result.exit_reason is ExitReason.MEMORY, detail)


@contextlib.contextmanager
def _listening() -> Iterator[str]:
    """Listen on an abstract name of the host's for the block (unix(7)): who sees it is in the host's network."""
    name = f"minisandbox-self-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + name)
        listening.listen(1)
        yield name


def _require(layer: str, holds: bool, detail: str) -> None:
    if not holds:
        raise HostError(
            f"a sandbox on this host does not hold, so none is served: layer {layer}: {detail};"
            " `minisandbox doctor` says more"
        )
