"""What runs on this host: asks every supervisor for its status, and reads the counters of its sandboxes.

It only reads. A supervisor that does not answer in time is named as such.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import psutil

from minisandbox.images.state import DEFAULT_PATH, STATUS_SUFFIX
from minisandbox.runtime.status import SandboxStatus, SupervisorStatus, reaching

PATIENCE_S = 2.0
"""How long a supervisor may take to answer."""

_LAUNCHER = "minisandbox-l"
_LOCK_FD = 4


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox, with what the kernel says of it; None where that cannot be told."""

    instance: str
    sandbox: SandboxStatus
    memory_bytes: int | None
    processes: int | None
    cpu_time_s: float | None
    """Of all sandboxes that these groups ever served; two looks tell how busy it is."""
    cpus: float | None = None
    """Cores used since the look before."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen at one moment."""

    at: float
    supervisors: list[SupervisorStatus]
    silent: list[str]
    """Instances that did not answer."""
    rows: list[Row]


def find_sockets(state_dir: Path | None) -> list[Path]:
    """Return the status sockets of a state directory, and those of all launchers that can be looked at (proc(5))."""
    places = {(state_dir or DEFAULT_PATH) / "instances"}
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == _LAUNCHER:
            with contextlib.suppress(OSError):
                places.add(Path(os.readlink(f"/proc/{process.pid}/fd/{_LOCK_FD}")).parent)
    found: list[Path] = []
    for place in sorted(places):
        with contextlib.suppress(OSError):
            found += sorted(path for path in place.iterdir() if path.name.endswith(STATUS_SUFFIX))
    return found


def ask(path: Path) -> tuple[SupervisorStatus, list[SandboxStatus]] | None:
    """Return what a supervisor says, None when it is gone. Raises TimeoutError when it does not answer."""
    answer = bytearray()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, reaching(path) as name:
            connection.settimeout(PATIENCE_S)
            connection.connect(name)
            while piece := connection.recv(65536):
                answer += piece
    except (ConnectionError, FileNotFoundError):
        return None
    head, *rest = answer.splitlines()
    header = msgspec.json.decode(head, type=SupervisorStatus)
    rows = [msgspec.json.decode(line, type=SandboxStatus) for line in rest]
    if len(rows) != header.sandboxes:
        raise TimeoutError(f"the answer of {header.instance} was cut short")
    return header, rows


def look(state_dir: Path | None, before: Look | None = None) -> Look:
    """Return what runs now; `before` is an earlier look, which tells how busy each sandbox was since then."""
    supervisors: list[SupervisorStatus] = []
    silent: list[str] = []
    rows: list[Row] = []
    now = time.time()
    for path in find_sockets(state_dir):
        try:
            answer = ask(path)
            found = [] if answer is None else list(_rows(*answer))
        except (OSError, msgspec.MsgspecError, LookupError):  # gone, or of another version
            silent.append(path.name.removesuffix(STATUS_SUFFIX))
            continue
        if answer is not None:
            supervisors.append(answer[0])
            rows += found
    return Look(at=now, supervisors=supervisors, silent=silent, rows=list(_with_cpus(rows, before, now)))


def _rows(header: SupervisorStatus, sandboxes: Iterable[SandboxStatus]) -> Iterator[Row]:
    for sandbox in sandboxes:
        files = {name: template.format(group=sandbox.group) for name, template in header.files.items() if sandbox.group}
        yield Row(
            instance=header.instance,
            sandbox=sandbox,
            memory_bytes=_number(files.get("memory")),
            processes=_number(files.get("processes")),
            cpu_time_s=_cpu_time_s(files.get("cpu")),
        )


def _with_cpus(rows: Iterable[Row], before: Look | None, now: float) -> Iterator[Row]:
    earlier = {} if before is None else {_key(row): row.cpu_time_s for row in before.rows}
    for row in rows:
        used = earlier.get(_key(row))
        if before is None or used is None or row.cpu_time_s is None:
            yield row
        else:
            yield msgspec.structs.replace(row, cpus=max(0.0, row.cpu_time_s - used) / max(1e-3, now - before.at))


def _key(row: Row) -> tuple[str, int, str]:
    return row.instance, row.sandbox.number, row.sandbox.group


def _read(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text()
    except OSError:  # it was closed meanwhile
        return None


def _number(path: str | None) -> int | None:
    text = _read(path)
    return None if text is None else int(text)


def _cpu_time_s(path: str | None) -> float | None:
    """Read cpu.stat of v2, which begins with usage_usec, or cpuacct.usage of v1, in nanoseconds."""
    text = _read(path)
    if text is None:
        return None
    return int(text.split()[1]) / 1e6 if text.startswith("usage_usec") else int(text) / 1e9
