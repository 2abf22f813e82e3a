"""Pipes and socket pairs whose failure is an error of ours with its name: a process may run out of descriptors.

Everything is close-on-exec from birth.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from minisandbox.errors import StartError

ADVICE = "raise the limit of open files (ulimit -n) or open fewer sandboxes"


def open_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe. Raises StartError when there is none to be had."""
    with _named("cannot make a pipe"):
        return os.pipe2(os.O_CLOEXEC)


def open_socket_pair(kind: int) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets. Raises StartError when there are none to be had."""
    with _named("cannot make a pair of sockets"):
        return socket.socketpair(socket.AF_UNIX, kind)


def open_to_all(fd: int) -> None:
    """Let programs of any user open a pipe again by name (/dev/stderr); nobody else can reach it."""
    with _named("cannot change the mode of a pipe"):
        os.fchmod(fd, 0o666)


@contextlib.contextmanager
def _named(tried: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartError(tried, "none", error.errno or 0, advice=ADVICE) from error
